"""Real conversations to try things out with; where they come from is in README.md, their licence in LICENSE."""

from importlib.resources import files


def sample_lines() -> list[bytes]:
    """JSON messages, one a line, as `afterword produce` takes them."""
    return files(__name__).joinpath("conversations.jsonl").read_bytes().splitlines()
