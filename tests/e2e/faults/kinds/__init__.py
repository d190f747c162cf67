"""Every kind of fault, in the order of the table."""

from collections import defaultdict

from tests.e2e.faults.fault import Fault
from tests.e2e.faults.kinds.brokers import BrokerHung, BrokerKilled, Cluster
from tests.e2e.faults.kinds.ingest import IngestKilled
from tests.e2e.faults.kinds.losses import ChangelogDamaged, RecordsExpired
from tests.e2e.faults.kinds.machine import ClockJumps, DiskFull
from tests.e2e.faults.kinds.records import Poison, Repeats
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
from tests.e2e.faults.kinds.topics import Compacted, Grown, OutputDeleted, SummarizerRefused, TooSmall, Unauthorized
from tests.e2e.faults.kinds.workers import (
    ArchiversMembership,
    Freeze,
    Kill,
    Membership,
    Sigterm,
    StateLost,
    SummarizersMembership,
)

FAULTS: tuple[type[Fault], ...] = (
    Kill,
    StateLost,
    Membership,
    SummarizersMembership,
    ArchiversMembership,
    Freeze,
    Sigterm,
    IngestKilled,
    Repeats,
    Poison,
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
    TooSmall,
    Unauthorized,
    SummarizerRefused,
    OutputDeleted,
    Compacted,
    DiskFull,
    ClockJumps,
    ChangelogDamaged,
    RecordsExpired,
    Grown,
)


def companies() -> dict[str, list[type[Fault]]]:
    """Return the kinds that share a deployment in the short form, by company."""
    found: dict[str, list[type[Fault]]] = defaultdict(list)
    for fault in FAULTS:
        if fault.company:
            found[fault.company].append(fault)
    return dict(found)
