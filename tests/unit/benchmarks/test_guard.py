"""Regressions, and the baseline that the guard keeps."""

from pathlib import Path

import orjson
import pytest

from benchmarks.guard import BASELINE, Kept, baseline_of, encoded, judge, main, read

ROOT = Path(__file__).parents[3]
STEADY = Kept(ratio=2.0, lowest=1.9)
SCATTERED = Kept(ratio=2.0, lowest=1.0)


def verdicts(kept: dict[str, Kept], found: dict[str, float]) -> dict[str, str]:
    return {one.name: one.verdict for one in judge(kept, found)}


def a_run(path: Path, **ratios: float) -> str:
    path.write_bytes(orjson.dumps({"ratios": ratios, "machine": {"cores": "2"}}))
    return str(path)


@pytest.mark.parametrize(("found", "verdict"), [(2.0, "fine"), (1.21, "fine"), (1.19, "slower"), (9.0, "fine")])
def test_a_ratio_far_below_the_kept_one_is_a_regression(found: float, verdict: str) -> None:
    assert verdicts({"a": STEADY}, {"a": found}) == {"a": verdict}


@pytest.mark.parametrize(("found", "verdict"), [(0.86, "fine"), (0.84, "slower")])
def test_where_the_kept_runs_scatter_the_limit_is_below_their_lowest(found: float, verdict: str) -> None:
    assert verdicts({"a": SCATTERED}, {"a": found}) == {"a": verdict}


def test_a_comparison_that_is_left_out_fails_and_a_new_one_does_not() -> None:
    judged = judge({"a": STEADY}, {"b": 1.0})
    assert [(one.name, one.verdict, one.failed) for one in judged] == [("a", "gone", True), ("b", "new", False)]


def test_the_baseline_has_the_median_and_the_lowest_of_what_every_run_has() -> None:
    runs = [{"a": 1.0, "b": 1.0}, {"a": 3.0}, {"a": 2.0, "b": 1.0}]
    assert baseline_of(runs) == {"a": Kept(2.0, 1.0)}
    assert baseline_of([]) == {}


def test_what_is_renewed_is_what_is_compared_with(tmp_path: Path) -> None:
    baseline = f"--baseline={tmp_path / 'baseline.json'}"
    runs = [a_run(tmp_path / f"{n}.json", a=ratio) for n, ratio in enumerate((2.0, 2.2, 1.8))]
    assert main([*runs, baseline, "--renew"]) == 0
    assert read(tmp_path / "baseline.json") == {"a": Kept(2.0, 1.8)}
    assert main([a_run(tmp_path / "good.json", a=1.3), baseline]) == 0
    assert main([a_run(tmp_path / "bad.json", a=1.1), baseline]) == 1


def test_the_table_says_what_was_found_and_where_the_limit_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "baseline.json").write_bytes(encoded({"a": STEADY}, 1, {}))
    main([a_run(tmp_path / "run.json", a=1.1), f"--baseline={tmp_path / 'baseline.json'}"])
    printed = capsys.readouterr().out
    assert all(text in printed for text in ("2.00", "1.20", "1.10", "slower"))


def test_the_baseline_that_is_committed_can_be_read() -> None:
    kept = read(ROOT / BASELINE)
    assert kept
    assert all(one.lowest <= one.ratio for one in kept.values())
