"""A Faust app on the engine."""

import shutil
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import faust
import structlog
from aiokafka import AIOKafkaConsumer
from prometheus_client import CollectorRegistry

from faust_eos.batch import take_batch
from faust_eos.database import private_directory
from faust_eos.errors import StoreFailed
from faust_eos.failures import Breaker
from faust_eos.metrics import EngineMetrics
from faust_eos.options import LIFE_CYCLE, Options
from faust_eos.store import Table, TableManager
from faust_eos.watchdog import stalls_before

log = structlog.get_logger()

SCHEME = "eos"
MAX_POLL_INTERVAL_SECONDS = 14 * 86400.0
"""Two weeks, which is practically never. A partition whose agent is slow, or that holds a record back, fetches nothing
although its worker is alive. The watchdog ends workers that make no progress much sooner."""
PLAINTEXT = {"security_protocol": "PLAINTEXT"}


class App(faust.App):
    """An ordinary `faust.App`: agents, topics, tables and sends are Faust's, and the engine provides their guarantees.

    `brokers` is `host:port`, or several of them separated by commas. `security` holds aiokafka's arguments for TLS and
    SASL, such as `ssl_context`, and applies to every client. By default, `metrics` live in a registry that is not
    exported. `consumer_class` reads the sources; a subclass may limit what it decodes.
    """

    logger = LIFE_CYCLE

    def __init__(
        self,
        app_id: str,
        *,
        brokers: str,
        engine: Options,
        datadir: Path,
        security: Mapping[str, Any] = PLAINTEXT,
        metrics: EngineMetrics | None = None,
        consumer_class: Callable[..., AIOKafkaConsumer] = AIOKafkaConsumer,
        **options: Any,
    ) -> None:
        self.engine = engine
        self.security = security
        self.consumer_class = consumer_class
        self.breaker = Breaker()
        """The breaker that all partitions of this worker share."""
        self.engine_metrics = metrics or EngineMetrics(CollectorRegistry(), app_id)
        super().__init__(
            app_id,
            broker=[f"{SCHEME}://{broker.strip()}" for broker in brokers.split(",")],
            datadir=datadir,
            Table=Table,
            TableManager=TableManager,
            stream_wait_empty=True,  # drain before the agents are cancelled
            topic_disable_leader=True,
            topic_allow_declare=False,  # topics are created by the cluster's operator
            producer_max_request_size=engine.max_request_bytes,
            consumer_auto_offset_reset="earliest",
            broker_max_poll_interval=MAX_POLL_INTERVAL_SECONDS,
            web_enabled=False,
            **options,
        )

    async def on_first_start(self) -> None:
        """Create the data directory and its parents, because Faust creates only the last one, and remove old state.

        Raises: StoreFailed.
        """
        path = self.conf.datadir
        try:
            private_directory(path)
            topics = {name for agent in self.agents.values() for name in getattr(agent.channel, "topics", ())}
            remove_old_state(self.conf.tabledir, topics, time.time() - self.engine.stale_seconds)
        except OSError as error:
            raise StoreFailed(path=path, cause=error.strerror) from error
        self.engine_metrics.stalled(stalls_before(self.stalls_file))
        await super().on_first_start()

    @property
    def stalls_file(self) -> Path:
        """The file that counts how often a stall has ended a process of this worker."""
        return Path(self.conf.datadir) / f"{self.conf.id}-stalls"

    def stream(self, *args: Any, **kwargs: Any) -> Any:
        """Return Faust's stream, whose events bind whatever the agent writes to their batch."""
        stream = super().stream(*args, **kwargs)
        stream.add_processor(take_batch)
        return stream


def remove_old_state(directory: Path, topics: Collection[str], before: float) -> None:
    """Delete local state of these topics that was last written before that Unix time: it is too old to be used.

    Other workers have had its partitions since. Raises: OSError.
    """
    for path in directory.glob("*-[0-9]*"):
        if path.name.rpartition("-")[0] not in topics:
            continue
        # what a killed process leaves of such a directory is still too old
        if max((file.stat().st_mtime for file in path.iterdir()), default=0.0) < before:
            shutil.rmtree(path)
            log.info("old_state_removed", stage="state", path=str(path))
