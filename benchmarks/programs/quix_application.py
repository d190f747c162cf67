"""quixstreams as its guide to exactly-once and state has it; in a virtual environment of its own."""

from quixstreams import Application

from benchmarks.programs.configuration import Configuration

COMMIT_SECONDS = 1.0
"""Its own default is 5, with which a round has too few commits to be timed by."""


def application(bench: Configuration) -> Application:
    """State is in RocksDB with a changelog, both by default; JSON is read and written by orjson, as in the others."""
    return Application(
        broker_address=bench.bootstrap,
        consumer_group=bench.group,
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        commit_interval=COMMIT_SECONDS,
        state_dir=bench.state,
        loglevel="WARNING",
    )
