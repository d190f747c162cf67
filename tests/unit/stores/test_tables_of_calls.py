"""The tables of calls in tests that need stores have every method; `make check` has no stores."""

from collections.abc import Mapping

import pytest

from afterword.streams.stores.episodes import EpisodeQueries
from afterword.streams.stores.index import EpisodeIndex
from afterword.streams.stores.messages import MessageArchive
from afterword.streams.stores.mongo import MongoEpisodes, MongoMessages, MongoRecords
from tests.contract.stores.test_foreign_arguments import EPISODES, INDEX, MESSAGES
from tests.integration.stores.test_mongo import CALLS

CHECKED_BEFORE = {
    *("put", "put_row", "put_conversation", "put_many", "assign", "copy", "copy_assignments", "change"),
    *("of_present_users", "hand_over", "search"),
}
"""Methods that take records, events and queries, whose models have checked every field."""
WITHOUT_ARGUMENTS = {"count", "total", "all_messages", "pages", "prepare", "push_out_removed", "close"}


@pytest.mark.parametrize(
    ("protocol", "calls"), [(EpisodeQueries, EPISODES), (MessageArchive, MESSAGES), (EpisodeIndex, INDEX)]
)
def test_every_method_is_called_with_operators(protocol: type, calls: Mapping[str, object]) -> None:
    methods = {name for name in dir(protocol) if name[0] != "_"} - CHECKED_BEFORE - WITHOUT_ARGUMENTS
    missing = methods - {name.partition(" ")[0] for name in calls}
    assert missing == set(), "tests/contract/stores/test_foreign_arguments.py"


def test_every_method_of_mongodbs_own_is_called() -> None:
    stores = (MongoEpisodes, MongoMessages, MongoRecords)
    methods = {f"{store.__name__}.{name}" for store in stores for name in vars(store) if name[0] != "_"}
    missing = methods - {name.partition(" ")[0] for name in CALLS}
    assert missing == set(), "CALLS in tests/integration/stores/test_mongo.py"
