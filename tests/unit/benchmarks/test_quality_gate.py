"""The quality gate on conversations and summaries that its limits were not chosen on."""

from collections import Counter

from benchmarks.quality import gate
from benchmarks.quality.pairs import read
from benchmarks.quality.rouge import rouge


def test_the_gate_reaches_its_precision_and_recall_on_the_half_that_was_held_out() -> None:
    result = gate.run("test")
    assert result.precision >= 0.95
    assert result.recall >= 0.95


def test_the_set_is_large_and_nothing_of_a_conversation_is_in_both_halves() -> None:
    pairs = read()
    kinds = Counter((pair.split, pair.kind) for pair in pairs)
    assert min(kinds.values()) >= 7
    assert min(Counter(pair.split for pair in pairs).values()) >= 200
    assert not {p.id for p in pairs if p.split == "dev"} & {p.id for p in pairs if p.split == "test"}


def test_rouge_counts_shared_words_pairs_and_the_longest_common_sequence() -> None:
    scores = rouge("The cats sat on the mat.", "The cat lay on the mat")
    assert (round(scores.one, 3), round(scores.two, 3), round(scores.longest, 3)) == (0.833, 0.6, 0.833)
