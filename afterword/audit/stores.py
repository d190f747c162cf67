"""What MongoDB holds of messages and episodes."""

from afterword.audit.snapshot import Archived, Snapshot, Stored, digest
from afterword.streams.settings import Mongo
from afterword.streams.stores import mongo
from afterword.streams.stores.mongo import MongoEpisodes, MongoMessages


async def read_stores(settings: Mongo, snapshot: Snapshot) -> None:
    """Raises: StoreUnavailable."""
    database = mongo.connect(settings)
    try:
        async for episode in MongoEpisodes(database).all_episodes():
            snapshot.stored[episode.episode_id] = Stored(episode.made_from, episode.fingerprint)
        async for message in MongoMessages(database).all_messages():
            snapshot.messages[digest(message.key)] = Archived(message.episode_id, message.archived)
    finally:
        await mongo.close(database)
