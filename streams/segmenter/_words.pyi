def prepare(
    known: dict[bytes, int],
    english_bit: int,
    refers_bit: int,
    refers_within: int,
    stem_bytes: int,
    most_content: int,
    /,
) -> None: ...
def words_in(plain: bytes, /) -> tuple[int, int, int, list[int]]: ...
