"""Every kind of fault, in the order of the table.

What the model check and the engine's simulation cover has no kind here: lost, older or newer state, members that come
and go, expired records, damaged changelogs, refused outputs, and clocks that jump.
"""

from collections import defaultdict

from tests.e2e.faults.fault import Fault
from tests.e2e.faults.kinds.brokers import BrokerHung, BrokerKilled, Cluster
from tests.e2e.faults.kinds.stores import (
    FileLocked,
    LlmDown,
    LlmResets,
    LlmSlow,
    MongoDown,
    MongoHung,
    MongoResets,
    MongoSlow,
    QdrantDown,
    QdrantResets,
    QdrantSlow,
)
from tests.e2e.faults.kinds.workers import Kill

FAULTS: tuple[type[Fault], ...] = (
    Kill,
    BrokerKilled,
    BrokerHung,
    Cluster,
    FileLocked,
    MongoDown,
    MongoHung,
    MongoSlow,
    MongoResets,
    QdrantDown,
    QdrantSlow,
    QdrantResets,
    LlmDown,
    LlmSlow,
    LlmResets,
)


def companies() -> dict[str, list[type[Fault]]]:
    """Return the kinds that share a deployment in the short form, by company."""
    kinds: dict[str, list[type[Fault]]] = defaultdict(list)
    for fault in FAULTS:
        kinds[fault.company].append(fault)
    return dict(kinds)
