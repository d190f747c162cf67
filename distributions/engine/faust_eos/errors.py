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
"""Errors that no retry can fix. They stop the worker. A record that is too large is among them, because the topic's
limit is at fault: nothing is lost until it is raised."""
TRANSIENT = (kafka_errors.KafkaError, kafka_errors.IllegalOperation, OSError, TimeoutError)
"""Errors that are answered by starting over, unless they are also in `FATAL`. A producer that is fenced in the middle
of a commit raises IllegalOperation, which is not a KafkaError."""
RETRIABLE = frozenset(
    {2, 3, 5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 41, 51, 56, 70, 71, 72, 74, 75, 78}
    | {80, 83, 84, 88, 89, 100, 103, 106, 122, 123, 133}
)
"""The error codes that Kafka 4.4 calls retriable."""
NOT_OF_A_RECORD = RETRIABLE | {-1, 1, 8, 21, 45, 46, 47, 48, 49, 50, 52, 55, 57, 59, 60, 77, 90, 105, 109, 120}
"""Codes that are no judgment of a record: of a transaction, a producer, a broker, or of nothing at all (-1). Kafka's
answer to a produce request refuses a record with any other code that is not in `FATAL`."""
NEWEST_CODE = 136
NAMES = {87: "InvalidRecord", 88: "UnstableOffsetCommit", 90: "ProducerIsFenced", 120: "TransactionAbortable"}
"""Names of those codes that aiokafka 0.14 lacks and that a producer meets."""
for _code in {*range(NEWEST_CODE + 1)} - kafka_errors.kafka_errors.keys():
    # otherwise aiokafka makes an UnknownError of it, which does not have the number, and never retries
    _fields = {"errno": _code, "retriable": _code in RETRIABLE}
    kafka_errors.kafka_errors[_code] = type(
        NAMES.get(_code, f"KafkaError{_code}"), (kafka_errors.BrokerResponseError,), _fields
    )
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
    if isinstance(error, OutputRefused):  # the engine's own words
        return str(error)
    frames = traceback.walk_tb(error.__traceback__)
    lines = [(frame.f_globals.get("__name__", ""), line) for frame, line in frames]
    packages = [name.partition(".")[0] for name, _ in lines]
    application = next((package for package in packages if package not in AROUND_AGENTS), ENGINE)
    places = [f" at {name}:{line}" for name, line in lines if name.partition(".")[0] == application]
    return type(error).__name__ + (places[-1] if places else "")


def described(error: BaseException) -> str:
    """Return the error's message and its notes."""
    return "; ".join([str(error), *getattr(error, "__notes__", ())])


class OutputRefused(kafka_errors.KafkaError):
    """Kafka refuses a record that the agent sent to `topic`, and would refuse it again."""

    def __init__(self, topic: str, error: kafka_errors.BrokerResponseError) -> None:
        super().__init__(f"topic {topic} refuses a record with {type(error).__name__} ({error.errno})")
        self.topic = topic

    __str__ = Exception.__str__


def refuses_record(error: BaseException) -> bool:
    """Return whether this answer to a produce request refuses a record, however often it is sent."""
    if not isinstance(error, kafka_errors.BrokerResponseError) or isinstance(error, FATAL):
        return False
    return error.errno not in NOT_OF_A_RECORD


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
