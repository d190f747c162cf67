"""Training cuts a dialogue as the segmenter does: else its threshold and its scores are those of another program."""

from itertools import accumulate

from afterword.streams.segmenter import shifts
from afterword.streams.settings import Episodes
from benchmarks.quality.segmentation import Dialogue, read
from benchmarks.quality.shift_training import segment
from tests.unit.segmenter.chat import Chat, episodes, flush, say

LIMITS = Episodes(
    topic_shift="auto", trigger=1000, trigger_tokens=10**9, max_episode_size=1000, max_pending_messages=1000
)


def cut_by_the_segmenter(dialogue: Dialogue) -> list[bool]:
    chat = Chat(LIMITS)
    sent = [say(f"m{n}", turn.text, at=n, role=turn.role) for n, turn in enumerate(dialogue)]
    sizes = [len(episode.messages) for episode in episodes(chat.process([*sent, flush()]).outgoing)]
    ends = set(accumulate(sizes))
    return [n in ends for n in range(len(dialogue))]


def test_training_cuts_a_dialogue_where_the_segmenter_does():
    for dialogues in read().values():
        for dialogue in dialogues[:60]:
            assert segment(shifts.weights(), dialogue) == cut_by_the_segmenter(dialogue)
