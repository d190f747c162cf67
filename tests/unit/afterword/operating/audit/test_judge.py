"""Every finding makes the report fail, and work in progress does not."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from afterword.operating.audit import EXAMPLES_NAMED, FATES, STANDING, Report, derive_expected, judge
from afterword.operating.evidence import Circumstances, Evidence, open_evidence
from tests.rows import with_rows

Numbers = dict[str, int]


def statements(name: str) -> list[str]:
    """Return the statements of an SQL file of this folder, which blank lines separate."""
    return Path(__file__).with_name(f"{name}.sql").read_text(encoding="utf-8").split("\n\n")


WRITING, CLEAN = statements("deployment"), statements("clean")


def judged(done: Iterable[str], **circumstances: Any) -> Report:
    """Audit a deployment that these statements make."""
    with open_evidence() as tables:
        for statement in (*WRITING, *done):
            tables.rows(statement)
        tables.circumstances = Circumstances(**circumstances)
        return judge(tables)


def assert_judged(report: Report, findings: list[str], counts: Numbers) -> None:
    assert [*report.findings] == findings
    assert report.clean is not bool(findings)
    assert all(found.examples for found in report.findings.values())
    counted = {f"{kind} {name}": vars(report)[kind][name] for kind, name in map(str.split, counts)}
    assert counted == counts


@with_rows
def test_audit_of_a_changed_deployment_finds_what_is_wrong(
    sentence: str, statements: list[str], circumstances: dict[str, Any], findings: list[str], counts: Numbers
) -> None:
    assert_judged(judged([*CLEAN, *statements], **circumstances), findings, counts)


@with_rows
def test_audit_of_agents_finds_what_is_wrong(
    sentence: str, statements: list[str], circumstances: dict[str, Any], findings: list[str], counts: Numbers
) -> None:
    assert_judged(judged(statements, **circumstances), findings, counts)


def test_consistent_deployment_is_clean() -> None:
    report = judged(CLEAN)
    assert report.clean
    fates = dict.fromkeys(FATES, 0) | {"in_an_episode": 4, "pending": 1, "not_consumed": 1}
    others = {"flushes": 0, "changes": 0, "changed_repeats": 0, "expired": 0, "archived": 6}
    assert report.messages == {"total": 6, **fates, **others}
    assert (report.episodes["total"], report.summaries["announced"], report.summaries["repeats"]) == (2, 2, 0)


def test_empty_deployment_is_clean() -> None:
    assert judged([]).clean


def said(*numbers: int) -> list[str]:
    """Let messages come one after the other."""
    return [f"INSERT INTO say (n, offset) VALUES ({n}, {offset})" for offset, n in enumerate(numbers)]


NUMBERS = st.sets(st.integers(0, 11))


@given(
    st.integers(0, 12), NUMBERS, NUMBERS, st.sets(st.integers(0, 14)), st.sets(st.integers(12, 14)), NUMBERS, NUMBERS
)
def test_every_message_has_exactly_one_fate(consumed, repeats, skipped, dead, refused, waiting, placed):
    done = said(*(n // 2 if n in repeats else n for n in range(12)))
    done += [f"UPDATE message SET skipped = TRUE WHERE offset = {offset}" for offset in skipped]
    done += [f"INSERT INTO dead_letter VALUES ('message', 0, {offset}, FALSE)" for offset in dead]
    done += [f"INSERT INTO invalid VALUES ('message', 0, {offset})" for offset in refused]
    done += [f"INSERT INTO pending VALUES (0, {offset}, 'c', 'c', FALSE)" for offset in waiting]
    done += [f"INSERT INTO consumed VALUES ('segmenter', 0, {consumed})"]
    done += [f"INSERT INTO close (ordinal, numbers, offset) VALUES (1, '{sorted(placed)}', 0)"]
    messages = judged(done).messages
    assert sum(messages[fate] for fate in FATES) == messages["total"] == 12 + len(refused)


def test_examples_are_bounded_and_the_count_is_not() -> None:
    lost = judged([*said(*range(3 * EXAMPLES_NAMED)), "INSERT INTO consumed VALUES ('segmenter', 0, 1000)"])
    assert lost.findings["lost"].count == 3 * EXAMPLES_NAMED
    assert len(lost.findings["lost"].examples) == EXAMPLES_NAMED


def test_report_prints_as_json_and_as_lines() -> None:
    report = judged([*CLEAN, "DELETE FROM pending"], notes=["index not checked"])
    assert json.loads(json.dumps(report.as_dict()))["findings"]["lost"]["count"] == 1
    text = "\n".join(report.lines())
    assert "note: index not checked" in text
    assert "partition 0, offset 4" in text
    assert text.endswith("NOT CLEAN")
    assert list(judged(CLEAN).lines())[-1].startswith("clean")


def test_long_conversation_is_judged_message_by_message() -> None:
    steps = []

    class Watched(Evidence):
        def rows(self, sql: str, **values: object) -> Iterator[Any]:
            found = super().rows(sql, **values)
            return (steps.append("read") or row for row in found)

        def add(self, *_: object) -> None:
            steps.append("judged")

    with open_evidence() as tables:
        for statement in (*WRITING, *said(0, 1, 0, 2)):
            tables.rows(statement)
        tables.run_all(STANDING)
        tables.__class__ = Watched
        derive_expected(tables)
    assert steps == ["read", "judged", "read", "judged", "read", "read", "judged"]
