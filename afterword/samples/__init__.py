"""Real conversations to try things out with; where they come from is in README.md, their licence in LICENSE."""

from importlib.resources import files


def sample_lines() -> list[bytes]:
    """Return JSON messages, one per line, as `afterword produce` reads them."""
    return files(__name__).joinpath("conversations.jsonl").read_bytes().splitlines()
