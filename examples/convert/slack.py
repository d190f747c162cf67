"""Convert an unpacked Slack export for `afterword import jsonl`. Usage: python slack.py EXPORT_FOLDER > slack.jsonl"""

import html
import json
import re
import sys
from datetime import UTC, datetime
from pathlib import Path

export = Path(sys.argv[1])
NO_TEXT = (None, "", "This content can't be displayed.")
"""What Slack may write as the text of a message that has only blocks or attachments."""
SAID = (None, "bot_message", "me_message", "thread_broadcast", "reply_broadcast", "file_share", "slackbot_response")
"""Subtypes of what people and apps say. Slack itself writes the others, in somebody's name."""
NAMES = ("display_name", "real_name", "name")
LINK = re.compile(r"<([@#!]?)([^<>|]+)(?:\|([^<>]*))?>")


def people():
    """Return the names of the users and their ids."""
    listed = export / "users.json"
    users = json.loads(listed.read_text()) if listed.exists() else []
    named = [(user["id"], {**user, **user.get("profile", {})}) for user in users]
    return {key: next((user[name] for name in NAMES if user.get(name)), key) for key, user in named}


def plain(text):
    """Resolve mentions, links and escaped characters."""

    def shown(link):
        kind, target, label = link.groups()
        if kind == "@":
            return "@" + names.get(target, label or target)
        if kind:
            name = (label or target.split("^")[0]).lstrip("#@")
            return name if target.startswith("date") else f"{'#' if kind == '#' else '@'}{name}"
        address = target.removeprefix("mailto:")
        return f"{label} ({address})" if label and label != address else address

    return html.unescape(LINK.sub(shown, text))


def texts(value):
    """Return all texts of blocks, in order."""
    if not isinstance(value, dict):
        return [text for item in value for text in texts(item)] if isinstance(value, list) else []
    if value.get("type") == "user":
        return [f"<@{value['user_id']}>"]
    if value.get("type") == "link":
        return [f"<{value['url']}|{value.get('text', '')}>"]
    found = [t for k, v in value.items() for t in ([v] if k == "text" and isinstance(v, str) else texts(v))]
    if value.get("type") == "rich_text_quote":
        return ["&gt; " + "".join(found).replace("\n", "\n&gt; ")]
    return ["".join(found)] if value.get("type") == "rich_text_section" else found


def attached(said, is_bot):
    """Yield what a message has besides its text. Words of somebody else that a person shares are quoted."""
    for one in said.get("attachments") or []:
        fields = [field.get(key) for field in one.get("fields") or [] for key in ("title", "value")]
        shown = list(filter(None, [one.get("pretext"), one.get("title"), one.get("text"), *fields]))
        shown = shown or texts([one.get("blocks"), one.get("message_blocks")]) or [one.get("fallback")]
        text = plain("\n".join(filter(None, shown)))
        if is_bot and not one.get("is_share"):
            yield text
        elif text:
            named = (one.get(key) for key in ("author_name", "author_subname", "service_name"))
            author = names.get(one.get("author_id")) or next(filter(None, named), None)
            yield "> " + (f"{author}: {text}" if author else text).replace("\n", "\n> ")
    for file in said.get("files") or []:
        yield f"[file: {file['name']}]" if file.get("name") else "[file]"


names, lines = people(), []
for day in sorted(export.glob("*/*.json")):
    for said in json.loads(day.read_text()):
        is_bot = bool(said.get("bot_id")) or said.get("user") == "USLACKBOT"
        text = said.get("text")
        if text in NO_TEXT:
            text = "\n".join(texts(said.get("blocks")))
        content = "\n".join(filter(None, [plain(text), *attached(said, is_bot)]))
        if said.get("subtype") not in SAID or said.get("hidden") or not content:
            sys.stderr.write(f"left out: {day} {said.get('ts')} {said.get('subtype') or 'empty'}\n")
            continue
        message = {
            "id": said["ts"],
            "conversation_id": "-".join(filter(None, [day.parent.name, said.get("thread_ts")])),
            "user_id": said.get("user") or said.get("bot_id"),
            "role": "assistant" if is_bot else "user",
            "content": content,
            "sent_at": datetime.fromtimestamp(float(said["ts"]), UTC).isoformat(),
        }
        lines.append(json.dumps(message) + "\n")
sys.stdout.write("".join(lines))  # all or nothing: an import never sees half of a failed conversion
