"""Nothing committed looks like a secret. Needs no network; the pipeline's scanner knows more patterns."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATTERNS = {
    "private key": r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----",
    "AWS access key": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "Google API key": r"\bAIza[0-9A-Za-z_-]{35}\b",
    "GitHub token": r"\b(?:gh[pousr]_[0-9A-Za-z]{36}|github_pat_[0-9A-Za-z_]{22,})\b",
    "GitLab token": r"\bglpat-[0-9A-Za-z_-]{20,}\b",
    "Slack token": r"\bxox[abprs]-[0-9A-Za-z-]{10,}\b",
    "OpenAI or Anthropic key": r"\bsk-(?:proj-|ant-)?[0-9A-Za-z_-]{32,}\b",
    "Hugging Face token": r"\bhf_[0-9A-Za-z]{30,}\b",
    "PyPI token": r"\bpypi-[0-9A-Za-z_-]{50,}\b",
    "JSON Web Token": r"\beyJ[0-9A-Za-z_-]{10,}\.eyJ[0-9A-Za-z_-]{10,}\.[0-9A-Za-z_-]*",
}
"""Patterns of secrets, as their makers publish them."""
SECRET = re.compile("|".join(f"(?:{pattern})" for pattern in PATTERNS.values()))


def committed() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git work tree")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_committed_files_hold_no_secret() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{number}"
        for file in committed()
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1)
        if SECRET.search(line)
    ]
    assert found == []
