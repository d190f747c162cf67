"""What the engine raises; a class's docstring is its message."""

from afterword.streams.errors import AfterwordError


def described(error: BaseException) -> str:
    """Its message and its notes."""
    return "; ".join([str(error), *getattr(error, "__notes__", ())])


class EngineError(AfterwordError):
    """the engine cannot go on"""


class AgentFailed(EngineError):
    """the agent failed on {where}: {cause!r}"""

    where: str
    cause: BaseException


class BatchClosed(EngineError):
    """the agent wrote to {what} after its batch was closed: a task must not outlive the event that started it"""


class NotInAgent(EngineError):
    """table {table} can only be changed by an agent, while it handles an event"""


class NoAgent(EngineError):
    """{where}: no agent takes this topic"""


class StateLost(EngineError):
    """{where}: the group has committed offset {committed}, but the changelog only reaches {source}. Its records are
    gone; restore the changelog topic, or reset the group's offset to {source} to read the messages again"""


class SourceReplaced(EngineError):
    """{where} ends at offset {end}, but the state was made from records up to {source}: this is another topic. Delete
    the changelog topics and the group's offsets to start anew, or give the application another id"""


class ChangelogMismatch(EngineError):
    """changelog {changelog} has {found} partitions, its source {topic} has {expected}: they must be equal"""


class ChangelogLost(EngineError):
    """changelog {changelog} lacks what the others have up to offset {source} of the source: its records are gone.
    Restore the topic, or delete all changelogs of the application and the group's offsets to start anew"""


class OutputMissing(EngineError):
    """topic {topic}, to which the agent writes, does not exist; nothing was committed of the records that led to it"""


class Stalled(EngineError):
    """no progress for {seconds:g} seconds: {what}. Whatever supervises the worker starts it again"""


class StoreFailed(EngineError):
    """the local state in {path} cannot be used: {cause}"""
