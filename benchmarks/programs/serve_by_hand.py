"""The read of `GET context` by hand: FastAPI and motor, the documents that make up a context, and nothing checked."""

import os
from typing import Any

from fastapi import FastAPI
from motor.motor_asyncio import AsyncIOMotorClient

RECENT = 6
EPISODES = 5
app = FastAPI()
client: Any = AsyncIOMotorClient(os.environ["AFTERWORD_MONGO__URI"], tz_aware=True)
database = client[os.environ.get("AFTERWORD_MONGO__DATABASE", "afterword")]
SHOWN = {"_id": 0, "id": 1, "role": 1, "content": 1, "sent_at": 1, "user_id": 1}


@app.get("/context/{conversation_id}")
async def show_context(conversation_id: str) -> dict[str, Any]:
    """Title, rolling summary, last short summaries and last messages of a conversation."""
    of_conversation = {"conversation_id": conversation_id}
    conversation = await database["conversations"].find_one({"_id": conversation_id}) or {}
    rolling = await database["conversation_summaries"].find_one(of_conversation, sort=[("row", -1)]) or {}
    episodes = database["episodes"].find(of_conversation, {"short_summary": 1}, sort=[("ordinal", -1)], limit=EPISODES)
    newest = [("sent_at", -1), ("source.offset", -1)]
    messages = database["messages"].find(of_conversation, SHOWN, sort=newest, limit=RECENT)
    return {
        "title": conversation.get("title"),
        "rolling_summary": rolling.get("content"),
        "summaries": [one.get("short_summary") for one in await episodes.to_list(None)],
        "messages": (await messages.to_list(None))[::-1],
    }
