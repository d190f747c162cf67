from pathlib import Path

from afterword.streams.installed import revision


def test_distribution_carries_its_revision(tmp_path: Path) -> None:
    assert revision(tmp_path) == "unknown"
    (tmp_path / "REVISION").write_text("abc\n")
    assert revision(tmp_path) == "abc"
