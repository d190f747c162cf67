"""Convert ShareGPT's `conversations` lists for `afterword import jsonl`. Usage: python sharegpt.py FILE USER > a"""

import json
import sys
from pathlib import Path

ROLES = {
    **dict.fromkeys(("human", "user", "prompter"), "user"),
    **dict.fromkeys(("gpt", "assistant", "bot", "model", "chatgpt", "bard", "bing", "claude"), "assistant"),
    **dict.fromkeys(("tool", "observation", "function", "function_response", "tool_response", "ipython"), "tool"),
    **dict.fromkeys(("system", "developer"), "system"),
}
CALLS = ("function_call", "tool_call")


def tools(call):
    """Return the names of the called tools, without their arguments."""
    try:
        found = json.loads(call)
    except ValueError:
        return []
    calls = found if isinstance(found, list) else [found]
    return [one["name"] for one in calls if isinstance(one, dict) and isinstance(one.get("name"), str)]


text = Path(sys.argv[1]).read_text()
lines = []
listed = json.loads(text if text.lstrip().startswith("[") else f"[{','.join(filter(str.strip, text.splitlines()))}]")
for place, record in enumerate(listed, 1):
    for number, said in enumerate(record.get("conversations") or record.get("conversation") or []):
        stated, content = said.get("from") or said.get("role"), said.get("value") or said.get("content")
        role = "assistant" if stated in CALLS else ROLES.get(str(stated).lower())
        if role is None or not isinstance(content, str):
            sys.stderr.write(f"left out: record {place}, message {number}: role {stated!r}\n")
            continue
        message = {
            "id": str(number),
            "conversation_id": str(record.get("id", place)),
            "user_id": sys.argv[2],
            "role": role,
            "content": "" if stated in CALLS else content,
            "tools": tools(content) if stated in CALLS else [],
        }
        lines.append(json.dumps(message) + "\n")
sys.stdout.write("".join(lines))  # all or nothing: an import never sees half of a failed conversion
