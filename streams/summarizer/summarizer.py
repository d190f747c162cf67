"""Summarizes an episode: plan what the LLM is shown, take from the hour's budget, ask, check, or fall back.

With masking, the LLM is shown numbered placeholders, and the originals are put back into its answer. Everything in a
request is masked before anything is made of it: plan, prompts and fences.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import structlog
from opentelemetry.trace import Tracer

from afterword.schemas import EpisodeMessage, Usage
from afterword.schemas.summaries import OK, add_up, total
from afterword.streams.errors import (
    BudgetExhausted,
    ContextExceeded,
    ProviderError,
    ProviderUnavailable,
    StoreUnavailable,
    SummaryRefused,
)
from afterword.streams.settings import Budget, QualitySettings, Settings
from afterword.streams.stores.bookkeeping import Budgets, Records, budget_key
from afterword.streams.summarizer.long_input import COMBINED_AT_LEAST, Plan, SpareTokens, combining, plan_of
from afterword.streams.summarizer.prompt import JSON_FRAME, PLAIN_FRAME
from afterword.streams.summarizer.providers import (
    ExtractiveProvider,
    LlmProvider,
    Provider,
    make_provider,
    template_of,
)
from afterword.streams.summarizer.retrying import Deadline
from afterword.streams.summarizer.summary import DECIMALS, SHORT_SENTENCES, Summary, SummaryRequest
from afterword.streams.tasks import gather_or_cancel
from afterword.streams.telemetry.metrics import Metrics
from afterword_text.answer import Limits
from afterword_text.gate import LONG_SENTENCES, Problem, SourceTexts, assess
from afterword_text.sentences import first_sentences
from afterword_text.texts import FIELDS
from afterword_text.tokens import count_tokens, message_tokens

if TYPE_CHECKING:
    from afterword.streams.redactor import Redactor

Placeholder = tuple[str, int]
"""Name and number of a placeholder."""
M = TypeVar("M", bound=EpisodeMessage)


class Masking:
    """The placeholders of one request, such as `[EMAIL_1]`, and what they stand for.

    Values are numbered in the order in which they occur in the previous summary, in the overlap, and in the messages.
    The same request gets the same placeholders, and a conversation keeps those in its previous summary.
    """

    def __init__(self, redactor: "Redactor") -> None:
        self._redactor = redactor
        self._keys: dict[tuple[str, str], Placeholder] = {}
        """Placeholders by name and value."""
        self._values: dict[Placeholder, str] = {}
        self._counts: dict[str, int] = {}

    def masked(self, text: str) -> str:
        """Replace each entity with its placeholder.

        A text that looks like one of our placeholders is itself replaced with one, so that `restored` brings it back
        too.
        """
        parts: list[str] = []
        at = 0
        for known in self._redactor.numbered.finditer(text) if "[" in text else ():
            parts += self._without_entities(text[at : known.start()]), self._placeholder(known[1].upper(), known[0])
            at = known.end()
        return "".join([*parts, self._without_entities(text[at:])])

    def restored(self, text: str) -> str:
        """Put the originals back; an unknown placeholder stays as it is."""
        if not self._values:
            return text
        return self._redactor.numbered.sub(
            lambda match: self._values.get((match[1].upper(), int(match[2])), match[0]), text
        )

    def request(self, request: SummaryRequest) -> SummaryRequest:
        previous = self.masked(request.previous_rolling)
        overlap = tuple(map(self._message, request.episode.overlap))
        messages = tuple(map(self._message, request.episode.messages))
        episode = request.episode.model_copy(update={"messages": messages, "overlap": overlap})
        problem = None if request.problem is None else self.masked(request.problem)
        return replace(request, episode=episode, previous_rolling=previous, problem=problem)

    def summary(self, summary: Summary, request: SummaryRequest) -> Summary:
        """Return a masked request's summary with the originals, cut to its permitted lengths."""
        limits = Limits(request.rolling_tokens, request.max_summary_length)
        masked: dict[str, str] = {name: getattr(summary, name) for name in FIELDS}
        restored = {name: self.restored(text) for name, text in masked.items()}
        texts: dict[str, Any] = {
            name: limits.cut(name, text) for name, text in restored.items() if text != masked[name]
        }
        facts = tuple(
            fact.model_copy(
                update={"statement": self.restored(fact.statement), "about": fact.about and self.restored(fact.about)}
            )
            for fact in summary.facts
        )
        return replace(summary, **texts, facts=facts)

    def _message(self, message: M) -> M:
        shown = {"content": self.masked(message.content), "author": message.author and self.masked(message.author)}
        return message.model_copy(update=shown)

    def _without_entities(self, text: str) -> str:
        from afterword.streams.redactor import replaced  # with its libraries it is needed only here

        spans = self._redactor.spans(text)
        return replaced(text, spans, lambda span: self._placeholder(span.name, text[span.start : span.end]))

    def _placeholder(self, name: str, value: str) -> str:
        key = self._keys.get((name, value))
        if key is None:
            number = self._counts[name] = self._counts.get(name, 0) + 1
            key = self._keys[name, value] = name, number
            self._values[key] = value
        return f"[{key[0]}_{key[1]}]"


STAGE = "summarize"
PROMPT_TOKENS = 600
"""Approximate tokens of the instructions."""
MOST_HALVINGS = 4
"""An episode that is too long for the server is cut smaller this often."""
ANSWER_TOKENS = 800
"""Approximate tokens of an answer, without its rolling summary."""

log = structlog.get_logger()


class SummaryCheck:
    """Measures an LLM's summaries, and finds the faults for which they are refused."""

    def __init__(self, quality: QualitySettings, metrics: Metrics, instructions: str = "") -> None:
        """`instructions` are all instructions that prompts contain, which a summary must not repeat."""
        self._quality = quality
        self._metrics = metrics
        self.instructions = instructions

    async def check(self, source: SourceTexts, made: Summary, episode_id: str) -> tuple[Summary, Sequence[Problem]]:
        """Return the summary with its measures, and the faults for which it is refused, worst first."""
        summary = replace(  # a long text is cut instead of refused
            made,
            short_summary=first_sentences(made.short_summary, SHORT_SENTENCES),
            long_summary=first_sentences(made.long_summary, LONG_SENTENCES[1]),
        )
        # in a thread, so that other lanes continue: the first check in a language loads models, and long ones take time
        assessment = await asyncio.to_thread(assess, source, summary, self._quality.min_grounding)
        measured = {"grounding": round(assessment.grounding, DECIMALS), "unsupported": assessment.unsupported}
        summary = replace(summary, quality=summary.quality.model_copy(update=measured))
        if not assessment.problems or not self._quality.enabled:
            return summary, ()
        worst = assessment.problems[0].reason
        self._metrics.quality_rejections.labels(worst).inc()
        about = {"grounding": measured["grounding"], "episode_id": episode_id}
        log.warning("summary_refused", stage="check", error_type=worst, **about)
        return summary, assessment.problems


def source_of(request: SummaryRequest, instructions: str) -> SourceTexts:
    """Collect everything that the provider was shown. The previous rolling summary was checked when it was made."""
    messages = request.episode.messages
    authors = dict.fromkeys(message.author for message in messages if message.author)
    roles = dict.fromkeys(message.role for message in messages)
    return SourceTexts(
        episode=_contents(messages),
        context="\n".join((request.previous_rolling, _contents(request.episode.overlap), *authors)),
        by_speaker=tuple(_contents(m for m in messages if m.role == role) for role in roles),
        carried=request.previous_rolling,
        instructions=instructions,
        sent_at=tuple(message.sent_at for message in (*request.episode.overlap, *messages)),
    )


def _contents(messages: Iterable[EpisodeMessage]) -> str:
    return "\n".join(message.content for message in messages)


class Estimate(NamedTuple):
    """Tokens that were taken from counters for a summary under way."""

    keys: Sequence[str]
    """Keys of the counters."""
    amount: int


@dataclass(frozen=True)
class TokenBudget:
    """The hour's budgets, which all workers share.

    An estimate is taken before the LLM is asked, so that summaries under way count, and is corrected afterwards. A
    cancelled summary leaves its estimate. While the counters are unreachable there is no limit: the database is down,
    so only episodes in flight can be summarized.
    """

    budget: Budget
    budgets: Budgets
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)

    async def take(self, request: SummaryRequest) -> Estimate:
        """Take a summary's estimate from the budgets. Raises: BudgetExhausted if one of them is used up."""
        amount, now, taken = estimate(request), self.clock(), list[str]()
        of_tenant = budget_key(now, request.episode.tenant_id, of_tenant=True)
        # the tenant's budget comes first, so that a tenant that has used it up takes nothing from the common one
        counters = (
            (of_tenant, self.budget.tenant_tokens_per_hour, "a tenant"),
            (budget_key(now), self.budget.tokens_per_hour, "all tenants"),
        )
        try:
            for key, limit, whose in counters:
                if limit is None:
                    continue
                if not await self.budgets.take(key, amount, limit):
                    await self._correct(taken, -amount)
                    raise BudgetExhausted(whose=whose, limit=limit)
                taken.append(key)
        except StoreUnavailable as error:
            _not_counted(error)
        return Estimate(taken, amount)

    async def settle(self, taken: Estimate, usage: Usage, *, is_metered: bool = True) -> None:
        """Correct the counters to what was really used; if the server does not say, to no less than the estimate."""
        used = usage.prompt_tokens + usage.completion_tokens
        if used and not is_metered:
            used = max(used, taken.amount)
        await self._correct(taken.keys, used - taken.amount)

    async def _correct(self, keys: Sequence[str], amount: int) -> None:
        try:
            for key in keys:
                await self.budgets.correct(key, amount)
        except StoreUnavailable as error:
            _not_counted(error)


def half_of(room: SpareTokens, plan: Plan) -> SpareTokens:
    """Return less room: the plan's longest part must lose half of what it shows."""
    longest = min(plan.parts, key=room)
    shown = count_tokens(_contents((*longest.episode.overlap, *longest.episode.messages)))
    missing = room(longest) + shown // 2
    return lambda request: room(request) - missing


def estimate(request: SummaryRequest) -> int:
    """Estimate the tokens of a summary whose first answer is usable."""
    episode = request.episode
    read = episode.token_count + sum(message_tokens(message.content) for message in episode.overlap)
    before = count_tokens(request.previous_rolling)
    return PROMPT_TOKENS + read + before + ANSWER_TOKENS + min(before + ANSWER_TOKENS, request.rolling_tokens)


def _not_counted(error: StoreUnavailable) -> None:
    log.warning("tokens_not_counted", stage="budget", error_type=error.error_type)


class Summarizer:
    """Makes summaries; may be used for several episodes at a time.

    Without `room` the provider gets every episode whole; without a `budget` it may use any number of tokens;
    without a `check` its summaries are accepted as they are.
    """

    def __init__(
        self,
        provider: Provider,
        *,
        room: SpareTokens | None = None,
        budget: TokenBudget | None = None,
        check: SummaryCheck | None = None,
        redactor: "Redactor | None" = None,
        waits: tuple[type[ProviderError], ...] = (),
        seconds: float = inf,
        is_metered: Callable[[], bool] = lambda: True,
    ) -> None:
        """What `redactor` finds is shown to the provider as placeholders.

        `is_metered` tells whether the LLM's server says how many tokens it used.
        `seconds` limits the time of a summary's calls. `waits` are the errors on which the episode waits; on any other,
        the extractive method steps in.
        """
        self._provider = provider
        self._fallback = ExtractiveProvider()
        self._room = room
        self._budget = budget
        self._check = check
        self._redactor = redactor
        self._waits = waits
        self._seconds = seconds
        self._is_metered = is_metered
        self._split = asyncio.Lock()

    async def summarize(self, request: SummaryRequest) -> Summary:
        """Make a summary, if necessary without the LLM. Raises: the ProviderErrors on which the episode waits."""
        try:
            return await self.summarize_without_fallback(request)
        except self._waits:
            raise
        except ProviderError as error:
            log.warning(
                "summary_fell_back",
                stage=STAGE,
                error_type=error.error_type,
                problem=str(error),
                episode_id=request.episode.episode_id,
            )
            summary = await self._fallback.summarize(request)
            quality = summary.quality.model_copy(update={"source": "fallback", "reason": error.error_type})
            return replace(summary, quality=quality, calls=add_up(request.calls))

    async def summarize_without_fallback(self, request: SummaryRequest) -> Summary:
        """Make a summary within budget and deadline. The request gets its calls, even if it fails.

        Raises: ProviderError.
        """
        request, earlier = replace(request, deadline=Deadline(self._seconds)), len(request.calls)
        taken = await self._budget.take(request) if self._budget else None
        try:
            summary = await self._ask_until_good(request)
        except ProviderError:
            await self._settle(taken, total(request.calls[earlier:]))
            raise
        await self._settle(taken, total(request.calls[earlier:]))
        return replace(summary, calls=add_up(request.calls))

    async def check(self) -> None:
        """Check that the LLM answers. Raises: ProviderError."""
        await self._provider.check()

    async def close(self) -> None:
        await self._provider.close()

    async def _settle(self, taken: Estimate | None, used: Usage) -> None:
        if self._budget and taken:
            await self._budget.settle(taken, used, is_metered=self._is_metered())

    async def _ask_until_good(self, request: SummaryRequest) -> Summary:
        """Ask, check, and ask once more with what was wrong. Raises: ProviderError, in the end a SummaryRefused."""
        if self._check is None:
            return await self._ask(request)
        asked = request
        source = source_of(request, self._check.instructions)  # once, because it is analyzed once for both answers
        while True:
            answer = await self._ask(asked)
            summary, problems = await self._check.check(source, answer, request.episode.episode_id)
            if not problems:
                return summary
            reason = problems[0].reason
            request.calls[:] = [replace(one, outcome=reason) if one.outcome == OK else one for one in request.calls]
            if asked is not request or request.deadline.left <= 0:
                raise SummaryRefused(reason=reason, problem=problems[0].feedback)
            asked = replace(request, problem="; ".join(problem.feedback for problem in problems))

    async def _ask(self, request: SummaryRequest) -> Summary:
        """Ask; with a `redactor`, the provider sees placeholders, and the summary has the originals."""
        if self._redactor is None:
            return await self._ask_as_planned(request)
        masking = Masking(self._redactor)
        masked = await request.read(lambda: masking.request(request))
        return masking.summary(await self._ask_as_planned(masked), request)

    async def _ask_as_planned(self, request: SummaryRequest) -> Summary:
        """Ask for the episode as a whole, or in parts if it is longer than the LLM's context.

        If the server's context turns out to be smaller than the settings say, the parts become smaller.
        """
        room = self._room
        for has_another in (True,) * MOST_HALVINGS + (False,):
            plan = await self._plan(request, room)
            try:
                summary = await self._ask_for(request, plan, room)
            except ContextExceeded:
                if room is None or not has_another:
                    raise
                room = half_of(room, plan)
                log.warning("episode_planned_smaller", stage=STAGE, episode_id=request.episode.episode_id)
            else:
                break
        if not plan.truncated:
            return summary
        return replace(summary, quality=summary.quality.model_copy(update={"truncated": True}))

    async def _ask_for(self, request: SummaryRequest, plan: Plan, room: SpareTokens | None) -> Summary:
        if len(plan.parts) == 1:
            return await self._provider.summarize(plan.parts[0])
        # one episode at a time: its parts use all available calls, and with many episodes none would ever finish
        async with self._split:
            return await self._ask_in_parts(request, plan.parts, room)

    async def _plan(self, request: SummaryRequest, room: SpareTokens | None, at_least: int = 1) -> Plan:
        if room is None:
            return Plan((request,), truncated=False)
        return await request.read(lambda: plan_of(request, room, at_least))

    async def _ask_in_parts(
        self, request: SummaryRequest, parts: Sequence[SummaryRequest], room: SpareTokens | None
    ) -> Summary:
        """Summarize the parts concurrently, then their summaries like an episode, if necessary again in parts."""
        summaries = await gather_or_cancel(*map(self._provider.summarize, parts))
        combined = combining(request, parts, summaries)
        plan = await self._plan(combined, room, COMBINED_AT_LEAST)
        if len(plan.parts) == 1:
            summary = await self._provider.summarize(plan.parts[0])
        elif len(plan.parts) < len(parts):
            summary = await self._ask_in_parts(combined, plan.parts, room)
        else:
            raise ProviderError(problem="llm.context_tokens has no room for what is asked")
        # keep the facts of the parts, because the last call read summaries, not messages
        return replace(summary, facts=tuple(fact for part in summaries for fact in part.facts))


def make_summarizer(
    settings: Settings, budgets: Budgets | None, metrics: Metrics, tracer: Tracer, records: Records | None = None
) -> Summarizer:
    """Make the configured summarizer, which connects with its first question. Without `budgets`, its use of tokens is
    unlimited; with `records`, all workers pause together when the LLM's server refuses everything.

    Raises: ConfigurationError if a setting of the LLM cannot be used.
    """
    provider = make_provider(settings, metrics, tracer, records)
    budget = TokenBudget(settings.budget, budgets) if budgets and settings.budget.limited else None
    waits, seconds = waited_for(settings), settings.llm.summary_seconds
    if not isinstance(provider, LlmProvider):  # the extractive method reads episodes of any length, and invents nothing
        return Summarizer(provider, budget=budget, waits=waits, seconds=seconds)
    return Summarizer(
        provider,
        room=provider.room,
        budget=budget,
        check=SummaryCheck(settings.quality, metrics, instructions(settings)),
        # where everything is redacted already, nothing is left to find
        redactor=settings.redaction.redactor() if settings.redaction.where == "llm" else None,
        waits=waits,
        seconds=seconds,
        is_metered=lambda: provider.client.is_metered,
    )


def instructions(settings: Settings) -> str:
    """Return all instructions that prompts may contain."""
    return f"{JSON_FRAME}\n{PLAIN_FRAME}\n{template_of(settings.summarizer).text}"


def waited_for(settings: Settings) -> tuple[type[ProviderError], ...]:
    """Return the errors after which an episode waits for the LLM instead of being summarized without it. A refused
    request is not among them, because waiting would not help.
    """
    return (ProviderUnavailable, BudgetExhausted) if settings.summarizer.on_llm_outage == "wait" else ()
