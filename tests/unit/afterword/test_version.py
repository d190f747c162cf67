import subprocess
from pathlib import Path

from afterword.installed import UNKNOWN, revision

GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]


def package(root: Path) -> Path:
    made = root / "afterword"
    made.mkdir()
    return made


def test_the_revision_of_a_distribution_was_written_into_it(tmp_path: Path) -> None:
    (package(tmp_path) / "REVISION").write_text("abc\n")
    assert revision(tmp_path / "afterword") == "abc"


def test_the_revision_of_a_checkout_is_gits(tmp_path: Path) -> None:
    for arguments in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*GIT, *arguments], cwd=tmp_path, check=True)
    head = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=tmp_path, text=True).strip()
    assert revision(package(tmp_path)) == head


def test_without_both_the_revision_is_unknown(tmp_path: Path) -> None:
    assert revision(package(tmp_path)) == UNKNOWN


def test_a_checkout_without_commits_has_no_revision(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    assert revision(package(tmp_path)) == UNKNOWN
