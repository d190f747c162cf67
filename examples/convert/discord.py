"""Convert DiscordChatExporter's JSON for `afterword import jsonl`. Usage: python discord.py CHANNEL.json... > a"""

import json
import re
import sys
from pathlib import Path

SAID = ("Default", "Reply", "20", "23")
"""Types of what people and bots say; the numbers are answers to commands. Discord itself writes the others."""
MENTION = re.compile(r"<@!?(\d+)>")


def quoted(text):
    return "> " + text.replace("\n", "\n> ")


def embedded(said):
    """Return the texts of a message's embeds: what a bot says, or the preview of a link."""
    texts = []
    for embed in said.get("embeds") or []:
        fields = [field.get(key) for field in embed.get("fields") or [] for key in ("name", "value")]
        texts += [embed.get("title"), embed.get("description"), *fields]
    return "\n".join(filter(None, texts))


def attached(said):
    files = [f"[file: {file['fileName']}]" for file in said.get("attachments") or []]
    return "\n".join([*files, *(f"[sticker: {sticker['name']}]" for sticker in said.get("stickers") or [])])


def content_of(said):
    """Return a message's text. What a person forwards, or links to, was written by others and is quoted."""
    names = {user["id"]: user.get("nickname") or user["name"] for user in said.get("mentions") or []}
    text = MENTION.sub(lambda found: "@" + names.get(found[1], found[1]), said.get("content") or "")
    forwarded = said.get("forwardedMessage") or {}
    others = [forwarded.get("content"), embedded(forwarded), attached(forwarded)]
    own = [text, attached(said)]
    (own if said["author"].get("isBot") else others).append(embedded(said))
    return "\n".join([*filter(None, own), *map(quoted, filter(None, others))])


lines = []
for name in sys.argv[1:]:
    export = json.loads(Path(name).read_text(encoding="utf-8-sig"))
    for said in export["messages"]:
        author, content = said["author"], content_of(said)
        if said["type"] not in SAID or not content:
            kind = "empty" if said["type"] in SAID else said["type"]
            sys.stderr.write(f"left out: {name} {said['id']} {kind}\n")
            continue
        message = {
            "id": said["id"],
            "conversation_id": export["channel"]["id"],
            "user_id": ((said.get("interaction") or {}).get("user") or author)["id"],
            "role": "assistant" if author.get("isBot") else "user",
            "author": author.get("nickname") or author["name"],
            "content": content,
            "sent_at": said["timestamp"],
        }
        lines.append(json.dumps(message) + "\n")
sys.stdout.write("".join(lines))  # all or nothing: an import never sees half of a failed conversion
