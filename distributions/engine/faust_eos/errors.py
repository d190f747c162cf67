"""Errors of the engine, whose class docstrings are their messages, and a classification of Kafka's errors."""

import math
import sys
import traceback
from typing import Any

from aiokafka import errors as kafka_errors

FATAL = (
    kafka_errors.ClusterAuthorizationFailedError,
    kafka_errors.GroupAuthorizationFailedError,
    kafka_errors.InvalidTopicError,
    kafka_errors.MessageSizeTooLargeError,
    kafka_errors.RecordListTooLargeError,
    kafka_errors.RecordTooLargeError,
    kafka_errors.SaslAuthenticationFailed,
    kafka_errors.TopicAuthorizationFailedError,
    kafka_errors.TransactionalIdAuthorizationFailed,
    kafka_errors.UnsupportedVersionError,
)
"""Errors that no retry can fix. They stop the worker."""
TRANSIENT = (kafka_errors.KafkaError, kafka_errors.IllegalOperation, OSError, TimeoutError)
"""Errors that are answered by starting over, unless they are also in `FATAL`. A producer that is fenced in the middle
of a commit raises IllegalOperation, which is not a KafkaError."""
ENGINE = __name__.partition(".")[0]
AROUND_AGENTS = sys.stdlib_module_names | {ENGINE, "faust", "mode"}
"""Packages whose frames surround an agent's in a traceback."""
LONGEST_RESTART_SECONDS, MOST_RESTART_DOUBLINGS = 2.0, 10
"""Longest wait before a partition is reopened; the wait doubles up to this. When a broker is down, many partitions of
many workers keep asking it."""


def restart_seconds(heartbeat_seconds: float, failures: int) -> float:
    """Return the wait before a partition that has failed `failures` times in a row is opened again.

    If it failed because it was fenced, another worker owns it, and the answer to the next heartbeat will say so.
    """
    shortest = 1.5 * heartbeat_seconds
    return max(shortest, min(LONGEST_RESTART_SECONDS, math.ldexp(shortest, min(failures, MOST_RESTART_DOUBLINGS) - 1)))


def place_of(error: BaseException) -> str:
    """Return the type and place of an unforeseen error, as in `KeyError at shop.orders:12`.

    The place is the innermost line of the application's package in the traceback. The application's package is that of
    the outermost line outside the engine, Faust and the standard library. The error's own text is left out, because it
    may quote a message.
    """
    frames = traceback.walk_tb(error.__traceback__)
    lines = [(frame.f_globals.get("__name__", ""), line) for frame, line in frames]
    packages = [name.partition(".")[0] for name, _ in lines]
    application = next((package for package in packages if package not in AROUND_AGENTS), ENGINE)
    places = [f" at {name}:{line}" for name, line in lines if name.partition(".")[0] == application]
    return type(error).__name__ + (places[-1] if places else "")


def described(error: BaseException) -> str:
    """Return the error's message and its notes."""
    return "; ".join([str(error), *getattr(error, "__notes__", ())])


class EngineError(Exception):
    """the engine cannot continue"""

    def __init__(self, **values: Any) -> None:
        super().__init__(" ".join((type(self).__doc__ or "").format(**values).split()))
        self.__dict__.update(values)

    @property
    def error_type(self) -> str:
        """Stable snake_case name of the class, for logs."""
        return "".join("_" + c.lower() if c.isupper() else c for c in type(self).__name__).lstrip("_")


class AgentFailed(EngineError):
    """the agent failed on {where}: {cause!r}"""

    where: str
    cause: BaseException


class EverythingFails(EngineError):
    """{number} records with different keys failed in a row and none succeeded; the last one was on {where}, with
    {failure}. The records that were read together were not committed; earlier ones may be dead letters. Fix what they
    have in common, then restart"""


class BatchClosed(EngineError):
    """the agent wrote to {what} after its batch was closed: a task must not outlive the event that started it"""


class NotInAgent(EngineError):
    """table {table} can only be used by an agent, while it handles an event"""


class NoAgent(EngineError):
    """{where}: no agent reads this topic"""


class StateLost(EngineError):
    """{where}: the group has committed offset {committed}, but the changelog only reaches {source}: records are
    missing. Restore the changelog topic, or reset the group's offset to {source} to read the messages again"""


class SourceReplaced(EngineError):
    """{where} ends at offset {end}, but its records were read up to {source}: this is a different topic. Delete the
    group's offsets, and the changelog topics if there are any, to start over, or give the application another id"""


class SourceRecreated(EngineError):
    """{topic} was deleted and recreated: the state belongs to the topic with id {expected}, but this one has {found}.
    Delete the group's offsets and the changelog topics to start over, or give the application another id"""


class SourceGrown(EngineError):
    """{topic} has {found} partitions, but was read when it had {expected}: keys have moved to other partitions, away
    from their earlier records. The worker stops reading. Move to a new topic with {found} partitions"""


class ChangelogMismatch(EngineError):
    """changelog {changelog} has {found} partitions, its source {topic} has {expected}: they must be equal"""


class ChangelogLost(EngineError):
    """changelog {changelog} lacks records that the others have, up to offset {source} of the source. Restore the topic,
    or delete all changelogs of the application and the group's offsets to start over"""


class ChangelogDeletes(EngineError):
    """changelog {changelog} has cleanup.policy={policy}, so Kafka deletes rows that are still needed. Set it to
    compact, then start again"""


class ChangelogTruncated(EngineError):
    """changelog {changelog} begins at offset {first}: earlier records were deleted, and rows of the state with them.
    Restore the topic, or delete all changelogs of the application and the group's offsets to start over"""


class ChangelogReplaced(EngineError):
    """changelog {changelog} was deleted and recreated under a running worker: a transaction began at {found}, and the
    one before it ended at {previous}. Restore the topic, or delete all changelogs of the application and the group's
    offsets to start over"""


class OutputMissing(EngineError):
    """topic {topic}, to which the agent writes, does not exist; the records that led to the write were not committed"""


class Stalled(EngineError):
    """no progress for {seconds:g} seconds: {what}; exiting so that the supervisor restarts the worker"""


class StoreFailed(EngineError):
    """the local state in {path} cannot be used: {cause}"""

    cause: object
