"""The quality gate on conversations and summaries that were not used to choose its limits."""

from benchmarks.quality import gate


def test_gate_reaches_its_precision_and_recall_held_out() -> None:
    result = gate("test")
    assert result.precision >= 0.95
    assert result.recall >= 0.95
