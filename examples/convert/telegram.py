"""Convert Telegram Desktop's result.json for `afterword import jsonl`. Usage: python telegram.py result.json > a"""

import json
import re
import sys
from datetime import UTC, datetime
from pathlib import Path

MEDIA = {
    **dict.fromkeys(("voice_message", "audio_file"), "[audio]"),
    **dict.fromkeys(("video_file", "video_message", "animation"), "[video]"),
    "sticker": "[sticker]",
}
PEERS = {"personal_chat": "user", "bot_chat": "user", "saved_messages": "user", "private_group": "chat"}
"""What ids of a kind of chat begin with; those of others with "channel"."""


def plain(text):
    """Join the parts of a text. Quotations have a mark, and links behind a text their address."""
    shown = []
    for part in [text] if isinstance(text, str) else text:
        if isinstance(part, str):
            shown.append(part)
        elif part["type"] == "blockquote":
            shown.append(f"\n{quoted(part['text'])}\n")
        else:
            shown.append(f"{part['text']} ({part['href']})" if part.get("href") else part["text"])
    return "".join(shown).strip()


def quoted(text):
    return "> " + text.replace("\n", "\n> ")


def media(said):
    """Yield what a message has besides its text."""
    if said.get("photo"):
        yield "[image]"
    if said.get("file"):
        name = f"[file: {said['file_name']}]" if said.get("file_name") else "[file]"
        yield MEDIA.get(said.get("media_type"), name)
    if poll := said.get("poll"):
        yield "\n- ".join(map(plain, [poll["question"], *(answer["text"] for answer in poll["answers"])]))
    if said.get("place_name"):
        yield ", ".join(filter(None, [said["place_name"], said.get("address")]))
    elif said.get("location_information"):
        yield "[location]"
    if said.get("contact_information"):
        yield "[contact]"


def content_of(said):
    """Return a message's text. What its sender only forwarded, or let a bot write, is quoted."""
    content = "\n".join(filter(None, [plain(said.get("text") or ""), *media(said)]))
    is_own = said.get("forwarded_from_id") == said["from_id"] if "forwarded_from" in said else "via_bot" not in said
    if is_own or not content:
        return content
    author = said.get("forwarded_from") or said.get("via_bot")
    return quoted(f"{author}: {content}" if author else content)


def messages_of(chat):
    """Yield the messages of a chat, and write on standard error which are left out."""
    peer, listed = PEERS.get(chat["type"], "channel"), chat["messages"]
    bot = f"user{chat['id']}" if chat["type"] == "bot_chat" else None
    person = next((said["from_id"] for said in listed if said.get("from_id") not in (None, bot)), None)
    for said in listed:
        content = content_of(said) if said["type"] == "message" and said.get("from_id") else ""
        if not content:
            sys.stderr.write(f"left out: {peer}{chat['id']} {said['id']} {said.get('action') or said['type']}\n")
            continue
        if "date_unixtime" not in said:
            sys.exit("its times have no time zone: export it again with a newer Telegram Desktop")
        is_bot = said["from_id"] == bot
        yield {
            "id": str(said["id"]),
            "conversation_id": f"{peer}{chat['id']}",
            "user_id": (person if is_bot else None) or said["from_id"],
            "role": "assistant" if is_bot else "user",
            "author": said.get("author") or said.get("from"),
            "content": content,
            "sent_at": datetime.fromtimestamp(int(said["date_unixtime"]), UTC).isoformat(),
        }


text = Path(sys.argv[1]).read_text(encoding="utf-8")
# Telegram writes control characters as \x0B, which JSON does not know.
text = re.sub(r"\\(?:x([0-9A-F]{2})|.)", lambda found: rf"\u00{found[1]}" if found[1] else found[0], text)
export = json.loads(text)
parts = [export.get(name, {}).get("list", []) for name in ("chats", "left_chats")]
chats = [export] if "messages" in export else [chat for part in parts for chat in part]
lines = [json.dumps(message) + "\n" for chat in chats for message in messages_of(chat)]
sys.stdout.write("".join(lines))  # all or nothing: an import never sees half of a failed conversion
