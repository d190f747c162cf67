"""Convert ShareGPT's `conversations` lists for `afterword import jsonl`. Usage: python sharegpt.py FILE USER > a"""

import json
import re
import sys
from pathlib import Path

ROLES = {
    **dict.fromkeys(("human", "user", "prompter"), "user"),
    **dict.fromkeys(("gpt", "assistant", "ai", "bot", "model", "chatgpt", "bard", "bing", "claude"), "assistant"),
    **dict.fromkeys(("tool", "observation", "function", "function_response", "tool_response", "ipython"), "tool"),
    **dict.fromkeys(("system", "developer"), "system"),
}
CALLS = ("function_call", "functioncall", "tool_call", "tool_calls")
LISTS = ("conversations", "conversation", "items", "messages")
CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
THOUGHTS = re.compile(r"\A\s*<think>.*?(?:</think>|\Z)", re.DOTALL)


def tools(call):
    """Return the names of the called tools, without their arguments."""
    try:
        found = json.loads(call)
    except ValueError:
        return []
    calls = found if isinstance(found, list) else [found]
    return [one["name"] for one in calls if isinstance(one, dict) and isinstance(one.get("name"), str)]


def records(text):
    """Return the records of a file: an array, one object, or one object per line."""
    try:
        found = json.loads(text)
    except ValueError:
        found = [json.loads(line) for line in text.splitlines() if line.strip()]
    return found if isinstance(found, list) else [found]


lines = []
for place, record in enumerate(records(Path(sys.argv[1]).read_text(encoding="utf-8-sig")), 1):
    listed = next((record[name] for name in LISTS if isinstance(record.get(name), list)), None)
    if listed is None:
        sys.stderr.write(f"left out: record {place}: it has no {LISTS[0]}\n")
    for number, said in enumerate(listed or []):
        turn = said if isinstance(said, dict) else {}
        stated, content = turn.get("from") or turn.get("role"), turn.get("value") or turn.get("content")
        kind = str(stated).lower().replace("-", "_")
        role = "assistant" if kind in CALLS else ROLES.get(kind)
        if role is None or not isinstance(content, str):
            sys.stderr.write(f"left out: record {place}, message {number}: role {stated!r}\n")
            continue
        calls = (CALL.findall(content) or [content]) if kind in CALLS else []
        if role == "assistant":
            calls = calls or CALL.findall(content)
            content = "" if kind in CALLS else CALL.sub("", THOUGHTS.sub("", content)).strip()
        message = {
            "id": str(number),
            "conversation_id": str(record.get("id", place)),
            "user_id": sys.argv[2],
            "role": role,
            "content": content,
            "tools": [name for call in calls for name in tools(call)],
        }
        lines.append(json.dumps(message) + "\n")
sys.stdout.write("".join(lines))  # all or nothing: an import never sees half of a failed conversion
