"""The converters in `examples/convert` print what `afterword import jsonl` takes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from afterword.writing.importing.formats import ImportOptions
from tests.rows import with_rows
from tests.unit.afterword.writing.importing.histories import messages_of, read_all, reasons

CONVERTERS = Path(__file__).parents[5] / "examples" / "convert"
SLACK = json.loads(Path(__file__).with_name("exports").joinpath("slack.json").read_text())
PEOPLE = [
    {"id": "U1", "name": "rosa", "profile": {"display_name": "rosa", "real_name": "Rosa Quist"}},
    {"id": "U2", "name": "tom", "profile": {"display_name": "", "real_name": "Tom Arp"}},
]
SHAREGPT = [{"id": 1, "conversations": [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Good morning"}]}]


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, str(CONVERTERS / name), *arguments], capture_output=True, timeout=300)


def converted(name: str, *arguments: str) -> list[tuple[str, ...]]:
    done = run(name, *arguments)
    assert done.returncode == 0, done.stderr
    outcomes = read_all("jsonl", {"-": done.stdout}, ImportOptions())
    assert reasons(outcomes) == []
    return [(m.conversation_id, m.user_id, m.role, m.content) for m in messages_of(outcomes)]


def of_slack(folder: Path, *messages: dict[str, Any]) -> list[str]:
    """The contents of messages in the channel `camp`, sent by rosa unless they say otherwise."""
    written = [{"user": "U1", "ts": f"17724420{n:02}.000100"} | message for n, message in enumerate(messages)]
    (folder / "camp").mkdir()
    (folder / "camp" / "2026-03-02.json").write_text(json.dumps(written))
    (folder / "users.json").write_text(json.dumps(PEOPLE))
    return [content for *_, content in converted("slack.py", str(folder))]


@with_rows
def test_message_of_slack_is_converted_as_read(tmp_path: Path, message: dict[str, Any], content: str) -> None:
    assert of_slack(tmp_path, message) == [content]


SLACKS_OWN = "channel_topic channel_purpose channel_name channel_archive channel_join group_join pinned_item bot_add"


@pytest.mark.parametrize("subtype", [*SLACKS_OWN.split(), "huddle_thread", "tombstone", "reminder_add", "new one"])
def test_lines_slack_wrote_are_left_out(tmp_path: Path, subtype: str) -> None:
    assert of_slack(tmp_path, {"text": "<@U1> did it", "subtype": subtype}, {"text": "Hi"}) == ["Hi"]
    assert run("slack.py", str(tmp_path)).stderr.count(b"left out") == 1


def test_an_export_of_slack_is_converted(tmp_path: Path) -> None:
    (tmp_path / "general").mkdir()
    (tmp_path / "general" / "2024-05-01.json").write_text(json.dumps(SLACK))
    assert converted("slack.py", str(tmp_path)) == [
        ("general", "U1", "user", "Who deploys?"),
        ("general-1714550001.000100", "B7", "assistant", "Release 42 of *atlas* failed"),
        ("general", "B7", "assistant", "On birch\nRetry"),
        ("general", "B7", "assistant", "CPU high\nHost\nbirch\nDisk full"),
    ]


def test_calls_and_results_of_sharegpt_have_their_roles(tmp_path: Path) -> None:
    said = [
        {"from": "human", "value": "Is it raining?"},
        {"from": "function_call", "value": '{"name": "weather", "arguments": {"city": "Bergen"}}'},
        {"from": "observation", "value": "dry"},
        {"from": "narrator", "value": "He waits."},
        {"from": "GPT", "value": "No."},
    ]
    (tmp_path / "a.json").write_text(json.dumps([{"conversations": said}, *SHAREGPT]))
    assert [(role, content) for _, _, role, content in converted("sharegpt.py", str(tmp_path / "a.json"), "ann")] == [
        ("user", "Is it raining?"),
        ("assistant", ""),
        ("tool", "dry"),
        ("assistant", "No."),
        ("user", "Hello"),
        ("assistant", "Good morning"),
    ]
    assert b"record 1, message 3: role 'narrator'" in run("sharegpt.py", str(tmp_path / "a.json"), "ann").stderr


@with_rows
@pytest.mark.parametrize("key", ["conversations", "items", "messages"])
def test_message_of_sharegpt_is_converted_as_said(
    tmp_path: Path, key: str, said: dict[str, str], role: str, content: str, tools: list[str]
) -> None:
    (tmp_path / "a.json").write_text("\ufeff" + json.dumps({key: [said]}, indent=1))
    done = run("sharegpt.py", str(tmp_path / "a.json"), "ann")
    [message] = messages_of(read_all("jsonl", {"-": done.stdout}, ImportOptions()))
    assert (message.role, message.content, list(message.tools)) == (role, content, tools)


def test_unknown_sharegpt_records_are_named_and_others_converted(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([{"text": "Hi"}, {"conversations": ["Hi"]}, *SHAREGPT]))
    assert converted("sharegpt.py", str(tmp_path / "a.json"), "ann") == [
        ("1", "ann", "user", "Hello"),
        ("1", "ann", "assistant", "Good morning"),
    ]
    left_out = run("sharegpt.py", str(tmp_path / "a.json"), "ann").stderr.decode().splitlines()
    assert left_out == ["left out: record 1: it has no conversations", "left out: record 2, message 0: role None"]


def test_failed_conversion_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([*SHAREGPT, 7]))
    done = run("sharegpt.py", str(tmp_path / "a.json"), "ann")
    assert (done.stdout, done.returncode) == (b"", 1)


EXPORTS = Path(__file__).with_name("exports")


@with_rows
def test_export_is_converted(script: str, file: str, told: list[list[str]], left_out: list[str]) -> None:
    path = str(EXPORTS / file)
    assert [[*one] for one in converted(script, path)] == told
    lines = run(script, path).stderr.decode().splitlines()
    assert [line.removeprefix("left out: ").removeprefix(f"{path} ") for line in lines] == left_out


@with_rows
def test_message_of_telegram_is_converted_as_read(tmp_path: Path, message: dict[str, Any], content: str) -> None:
    said = {"id": 1, "type": "message", "date_unixtime": "1772442001", "from": "Ida", "from_id": "user5", **message}
    chat = {"name": "Ida", "type": "personal_chat", "id": 5, "messages": [said]}
    (tmp_path / "a.json").write_text(json.dumps(chat))
    assert converted("telegram.py", str(tmp_path / "a.json")) == [("user5", "user5", "user", content)]


def test_time_of_telegram_without_a_zone_is_refused(tmp_path: Path) -> None:
    said = {"id": 1, "type": "message", "date": "2026-03-02T10:00:00", "from": "Ida", "from_id": "user5", "text": "Hi"}
    (tmp_path / "a.json").write_text(json.dumps({"type": "personal_chat", "id": 5, "messages": [said]}))
    done = run("telegram.py", str(tmp_path / "a.json"))
    assert (done.stdout, done.returncode) == (b"", 1)
    assert b"no time zone" in done.stderr
