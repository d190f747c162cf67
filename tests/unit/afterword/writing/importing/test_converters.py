"""The converters in `examples/convert` print what `afterword import jsonl` takes."""

import json
import subprocess
import sys
from pathlib import Path

from afterword.writing.importing.formats import ImportOptions
from tests.unit.afterword.writing.importing.histories import messages_of, read_all, reasons

CONVERTERS = Path(__file__).parents[5] / "examples" / "convert"
SLACK = [
    {"type": "message", "subtype": "channel_join", "user": "U1", "text": "<@U1> has joined", "ts": "1714550000.000100"},
    {"type": "message", "user": "U1", "text": "Who deploys?", "ts": "1714550001.000100"},
    {
        "type": "message",
        "bot_id": "B7",
        "text": "",
        "ts": "1714550002.000100",
        "thread_ts": "1714550001.000100",
        "blocks": [{"type": "section", "text": {"type": "mrkdwn", "text": "Release 42 of *atlas* failed"}}],
    },
    {
        "type": "message",
        "bot_id": "B7",
        "text": "This content can't be displayed.",
        "ts": "1714550003.000100",
        "blocks": [
            {
                "type": "rich_text_section",
                "elements": [
                    {"type": "text", "text": "On "},
                    {"type": "text", "text": "birch", "style": {"bold": True}},
                ],
            },
            {"type": "button", "text": {"type": "plain_text", "text": "Retry"}, "value": "retry_42"},
        ],
    },
    {
        "type": "message",
        "bot_id": "B7",
        "text": "",
        "ts": "1714550004.000100",
        "attachments": [
            {"fallback": "CPU", "title": "CPU high", "fields": [{"title": "Host", "value": "birch"}]},
            {"fallback": "Disk full", "image_url": "https://example.org/graph.png"},
        ],
    },
]
SHAREGPT = [{"id": 1, "conversations": [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Good morning"}]}]


def converted(name: str, *arguments: str) -> list[tuple[str, ...]]:
    command = [sys.executable, str(CONVERTERS / name), *arguments]
    done = subprocess.run(command, capture_output=True, check=True, timeout=300)
    outcomes = read_all("jsonl", {"-": done.stdout}, ImportOptions())
    assert reasons(outcomes) == []
    return [(m.conversation_id, m.user_id, m.role, m.content) for m in messages_of(outcomes)]


def test_an_export_of_slack_is_converted(tmp_path: Path) -> None:
    (tmp_path / "general").mkdir()
    (tmp_path / "general" / "2024-05-01.json").write_text(json.dumps(SLACK))
    assert converted("slack.py", str(tmp_path)) == [
        ("general", "U1", "user", "Who deploys?"),
        ("general-1714550001.000100", "B7", "assistant", "Release 42 of *atlas* failed"),
        ("general", "B7", "assistant", "On birch\nRetry"),
        ("general", "B7", "assistant", "CPU high\nHost\nbirch\nDisk full"),
    ]


def test_lists_of_sharegpt_are_converted(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(SHAREGPT))
    assert converted("sharegpt.py", str(tmp_path / "a.json"), "ann") == [
        ("1", "ann", "user", "Hello"),
        ("1", "ann", "assistant", "Good morning"),
    ]
