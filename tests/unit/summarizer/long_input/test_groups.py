"""Places where an episode may be cut."""

from hypothesis import given
from hypothesis import strategies as st

from afterword.schemas import EpisodeMessage
from afterword_text.tokens import groups, packed
from tests.rows import with_rows
from tests.samples import an_episode_message

ROLES = {"u": "user", "a": "assistant", "s": "system", "t": "tool", "c": "assistant", "f": "user"}


def said(letters: str) -> list[EpisodeMessage]:
    """u user, a assistant, s system, t tool; c an assistant and f a user whose message names tools."""
    return [
        an_episode_message(f"m{n}", role=ROLES[letter], tools=("search",) if letter in "cf" else ())
        for n, letter in enumerate(letters)
    ]


@with_rows
def test_call_and_its_results_are_one_group(letters: str, kept_together: list[str]) -> None:
    assert [letters[run.start : run.stop] for run in groups(said(letters))] == kept_together


@given(st.text(alphabet="uastcf", max_size=40))
def test_every_message_is_in_one_group(letters: str) -> None:
    runs = groups(said(letters))
    assert [at for run in runs for at in run] == list(range(len(letters)))
    assert all(letters[run.start] != "t" for run in runs[1:])


@given(st.lists(st.integers(0, 30), max_size=40), st.integers(1, 60))
def test_runs_are_ordered_few_and_fit_if_possible(sizes: list[int], room: int) -> None:
    runs = packed(sizes, room)
    assert [at for run in runs for at in run] == list(range(len(sizes)))
    totals = [sum(sizes[at] for at in run) for run in runs]
    assert all(total <= room or len(run) == 1 for total, run in zip(totals, runs, strict=True))
    if max(sizes, default=0) <= room:
        assert len(runs) <= 2 * sum(sizes) // room + 1


def test_runs_are_even() -> None:
    assert packed([10] * 11, 100) == [range(6), range(6, 11)]
    assert packed([90, 10, 10, 90], 100) == [range(2), range(2, 4)]
    assert packed([], 100) == []
