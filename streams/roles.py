"""The roles of `afterword worker`: the commands, dev, the audit, the page and the chart read this table."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # settings take long to import, and the command line lists the roles
    from afterword.streams.settings import Kafka


class Role(NamedTuple):
    """A kind of worker. Its package in `streams` has its name, and `agent.start` there makes its apps."""

    help: str
    reads: "Callable[[Kafka], str] | None" = None
    """The topic of ours that it reads in `Kafka.group_of` its name; None for the roles that not everybody runs."""


ROLES = {
    "segmenter": Role(
        "Split conversations into episodes: messages → episode.closed.", lambda kafka: kafka.messages_topic
    ),
    "summarizer": Role(
        "Summarize episodes: episode.closed → the stores and summary.created.", lambda kafka: kafka.episodes_topic
    ),
    "archiver": Role(
        "Archive the latest version of every message: messages → the stores.", lambda kafka: kafka.messages_topic
    ),
    "ingest": Role("Map records on other applications' topics to messages: their topics → messages."),
    "webhooks": Role("Post summaries and deletions to HTTP endpoints."),
}
ALWAYS_RUN = tuple(name for name, role in ROLES.items() if role.reads)
"""The roles of every deployment."""
ALL = "all"
"""In place of a role: those of every deployment, in one process."""


def names_of(role: str) -> tuple[str, ...]:
    return ALWAYS_RUN if role == ALL else (role,)


def inputs_of(kafka: "Kafka") -> dict[str, tuple[str, str]]:
    """Return the group and the input topic of each role that every deployment runs."""
    return {name: (kafka.group_of(name), role.reads(kafka)) for name, role in ROLES.items() if role.reads}
