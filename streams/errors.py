"""Exceptions that Afterword raises; a class's docstring is its message."""

from typing import Any


class AfterwordError(Exception):
    """Something went wrong."""

    def __init__(self, **values: Any) -> None:
        super().__init__(" ".join((type(self).__doc__ or "").split()).format(**values))
        self.__dict__.update(values)

    @property
    def error_type(self) -> str:
        """Stable snake_case name for logs, metrics and dead letters."""
        return snake_case(type(self))


def snake_case(kind: type) -> str:
    return "".join("_" + c.lower() if c.isupper() else c for c in kind.__name__).lstrip("_")


class ConfigurationError(AfterwordError):
    """{setting}: {problem}"""


class TopicMissing(ConfigurationError):
    """topic {topic} does not exist; create it with: afterword topics create"""


class BrokerUnavailable(AfterwordError):
    """Kafka at {servers} cannot be reached: {problem}"""


class BrokerRefuses(BrokerUnavailable):
    """Kafka at {servers} rejected the connection: {problem}"""


class RequestRefused(BrokerUnavailable):
    """Kafka at {servers} refused a request: {problem}"""


class WorkerFailed(AfterwordError):
    """the worker cannot continue: {problem}"""


class OtherLoop(AfterwordError, RuntimeError):
    """this {client} belongs to the event loop that used it first: open another one on this loop, or run all on one,
    for example with `await Runner.run(…)` instead of `Runner.run_sync(…)` in a thread"""


class OwnerMissing(AfterwordError, ValueError):
    """{field} does not name an owner: reading is always limited to one user"""


class StoreUnavailable(AfterwordError):
    """{store} cannot be reached: {problem}"""


class StoreRefuses(StoreUnavailable):
    """{store} {problem}"""

    status: int
    """HTTP status of the answer."""


class StateUnreadable(AfterwordError):
    """the stored state cannot be read: {problem}"""


class RowUnreadable(StateUnreadable):
    """a row of the stored state cannot be read: {problem}"""

    problem: str


class ProviderError(AfterwordError):
    """the LLM gave no usable answer: {problem}"""

    problem: str = ""
    named: frozenset[str] = frozenset()
    """Fields of the request that the server's error mentions."""


class ProviderUnavailable(ProviderError):
    """the LLM cannot be reached: {problem}"""

    retry_after: float = 0.0
    """Seconds that the server asks to wait; 0 if it does not ask."""
    has_response: bool = False
    """True if the server responded, but not with an answer."""
    was_held: bool = False
    """True if nothing was asked, because the server wants no question yet."""
    stops_asking: bool = False
    """True if any other request would be refused too, for example because of the key."""


class ProviderRateLimited(ProviderUnavailable):
    """the LLM is rate limited{about}"""

    def __init__(self, *, retry_after: float = 0.0, reason: str = "", **values: Any) -> None:
        asked = f"; it asks to wait {retry_after:.3g} seconds" if retry_after else ""
        about = f" {reason}".rstrip() + asked
        super().__init__(**{**values, "retry_after": retry_after, "reason": reason, "about": about})


class ProviderMisconfigured(ProviderUnavailable):
    """the LLM rejects this configuration: {problem}"""

    is_refusal: bool = True
    """True if the server may have refused the text of this one request instead."""


class PromptRefused(ProviderError):
    """the LLM refuses this prompt but answers others: {problem}"""


class PromptFailed(ProviderError):
    """the LLM fails at this prompt but answers others, so it is asked again later: {problem}"""


class ContextExceeded(ProviderError):
    """the prompt is longer than the model's context ({status}): set AFTERWORD_LLM__CONTEXT_TOKENS to the server's"""


class BudgetExhausted(ProviderError):
    """the LLM was not asked: the budget of {whose}, {limit} tokens an hour, is used up"""


class AnswerInvalid(ProviderError):
    """the LLM's answer cannot be used: {problem}"""


class SummaryRefused(ProviderError):
    """the LLM's summary was refused: {problem}"""

    reason: str
    """Name of the summary's problem, such as `ungrounded`."""

    @property
    def error_type(self) -> str:
        return self.reason
