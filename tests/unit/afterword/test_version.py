from pathlib import Path

from afterword.installed import revision


def test_the_revision_of_a_distribution_was_written_into_it(tmp_path: Path) -> None:
    assert revision(tmp_path) == "unknown"
    (tmp_path / "REVISION").write_text("abc\n")
    assert revision(tmp_path) == "abc"
