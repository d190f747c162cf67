"""Convert an unpacked Slack export for `afterword import jsonl -`. Usage: python slack.py EXPORT_FOLDER"""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

export = Path(sys.argv[1])
NO_TEXT = (None, "", "This content can't be displayed.")
"""What Slack may write as the text of a message that has only blocks or attachments."""


def texts(value):
    """Return all texts of blocks and attachments, in order."""
    if not isinstance(value, dict):
        return [text for item in value for text in texts(item)] if isinstance(value, list) else []
    written = ("text",) if "type" in value else ("pretext", "title", "text", "value")  # attachments have no type
    found = [t for k, v in value.items() for t in ([v] if k in written and isinstance(v, str) else texts(v))]
    if value.get("type") == "rich_text_section":
        return ["".join(found)]
    return found or [value[k] for k in value if k == "fallback"]


for day in sorted(export.glob("*/*.json")):
    for said in json.loads(day.read_text()):
        content = said.get("text")
        if content in NO_TEXT:
            content = "\n".join(texts([said.get("blocks"), said.get("attachments")]))
        if said.get("subtype") in ("channel_join", "channel_leave") or not content:
            sys.stderr.write(f"left out: {day} {said.get('ts')}\n")
            continue
        message = {
            "id": said["ts"],
            "conversation_id": "-".join(filter(None, [day.parent.name, said.get("thread_ts")])),
            "user_id": said.get("user") or said.get("bot_id"),
            "role": "assistant" if said.get("bot_id") else "user",
            "content": content,
            "sent_at": datetime.fromtimestamp(float(said["ts"]), UTC).isoformat(),
        }
        sys.stdout.write(json.dumps(message) + "\n")
