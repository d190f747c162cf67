"""Everything that may happen to summarizers, in any order; and what must be in the stores and on the topic then."""

from collections import defaultdict
from itertools import pairwise

from aiokafka.errors import KafkaConnectionError
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from afterword.schemas import SummaryCreated
from afterword.schemas.ids import message_key
from afterword.streams.errors import StoreUnavailable
from tests.model.machine import WORKERS, FaultMachine, Moment, moments, when_it_suits_least
from tests.model.network import Call
from tests.model.process import AGENT
from tests.model.summarizing import CONVERSATIONS, RETRIES, SOURCE, SUMMARIES, Worker, World, closed

KAFKA_CALLS = {"getmany", "beginning_offsets", "end_offsets", "describe"}
PRODUCER_CALLS = {"open", "committed", "produce", "offsets", "commit", "abort"}
conversations = st.sampled_from(CONVERSATIONS)
rubbish = st.sampled_from([False, False, False, True])


class SummarizerMachine(FaultMachine):
    moments = moments(
        AGENT,
        "getmany",
        "open",
        "committed",
        "produce",
        "offsets",
        "commit",
        "marker",
        "find",
        "summarize",
        "add",
        "latest_row",
        "put_row",
        "advance",
        "assign",
    )

    def new_world(self) -> World:
        return World(WORKERS)

    def error_for(self, call: Call, error: type[Exception]) -> Exception:
        if call.name in PRODUCER_CALLS:
            return error()
        if call.name in KAFKA_CALLS:
            return KafkaConnectionError()
        return StoreUnavailable(store=call.name, problem="away")

    # -- the outside

    @rule(when=when_it_suits_least, of=st.lists(st.tuples(conversations, rubbish), min_size=1, max_size=6))
    def episodes_close(self, when: Moment, of: list[tuple[str, bool]]) -> None:
        """Close episodes of these conversations, or append a record that is none."""
        self.go_on_until(when)
        for conversation, is_rubbish in of:
            (self.world.append_rubbish if is_rubbish else self.world.close_episode)(conversation)

    @rule(when=when_it_suits_least, conversation=conversations, ordinal=st.integers(1, 3))
    def an_episode_comes_again(self, when: Moment, conversation: str, ordinal: int) -> None:
        self.go_on_until(when)
        self.world.repeat_episode(conversation, ordinal)

    @rule(when=when_it_suits_least, away=st.booleans())
    def the_llm_goes_or_comes(self, when: Moment, away: bool) -> None:
        self.go_on_until(when)
        self.world.shared.llm_is_away = away

    @rule(when=when_it_suits_least, slow=st.booleans())
    def the_group_takes_offsets_over_slowly(self, when: Moment, slow: bool) -> None:
        self.go_on_until(when)
        self.world.broker.slow_down_the_group(slow)

    @invariant()
    def no_offset_is_committed_of_a_record_that_is_not_finished(self) -> None:
        assert not (hasattr(self, "world") and self.world.passed_over)

    @invariant()
    def a_commit_names_what_it_announces_and_is_not_too_long(self) -> None:
        assert not (hasattr(self, "world") and (self.world.unnamed or self.world.too_long))

    @invariant()
    def nothing_is_announced_twice(self) -> None:
        if hasattr(self, "world"):
            assert not self.world.repeated()

    # -- quiet

    def is_quiet(self, owner: Worker) -> bool:
        self.world.shared.llm_is_away = False
        broker = self.world.broker
        ends = {source: broker.log(source).end for source in (SOURCE, RETRIES)}
        done = all(broker.offsets.get(source, (0, "")) == (end, "") for source, end in ends.items())
        return bool(owner.partition.ready and owner.replaces and done and not broker.log(SUMMARIES).open)

    def check(self, owner: Worker) -> None:
        for conversation, last in self.world.last.items():
            self._check_conversation(conversation, last)
        self._check_announcements()
        self.no_offset_is_committed_of_a_record_that_is_not_finished()
        self.nothing_is_announced_twice()

    def _check_conversation(self, conversation: str, last: int) -> None:
        shared = self.world.shared
        episodes = [closed(conversation, ordinal) for ordinal in range(1, last + 1)]
        for episode in episodes:
            stored = shared.episodes.episodes[episode.episode_id]
            assert stored.fingerprint == episode.fingerprint
            assert stored.summary.quality.source == "llm", "a fallback has stayed"
            assert shared.index.points[episode.episode_id].summary == stored.summary
            keys = [message_key(conversation, message.id, episode.tenant_id) for message in episode.messages]
            assert {shared.messages.episode_ids[key] for key in keys} == {episode.episode_id}
        if episodes:
            counted = shared.episodes.known[conversation]
            assert (counted.episode_count, counted.last_ordinal) == (last, last)
            assert counted.message_count == sum(episode.message_count for episode in episodes)
            rows = shared.episodes.rows[conversation]
            covered = [(row.first_ordinal, row.last_ordinal) for row in rows]
            assert covered[0][0] == 1
            assert covered[-1][1] == last
            assert all(before[1] + 1 == after[0] for before, after in pairwise(covered))

    def _check_announcements(self) -> None:
        shared, first = self.world.shared, defaultdict(list)
        told: dict[str, SummaryCreated] = {}
        for summary in self.world.announced:
            assert told.setdefault(summary.event_id, summary) == summary, "one id, two contents"
            assert summary.supersedes is None or summary.supersedes in told, "replaces what was not announced"
            if summary.ordinal not in first[summary.conversation_id]:
                first[summary.conversation_id].append(summary.ordinal)
        for stored in shared.episodes.episodes.values():
            assert told[stored.summary.event_id] == stored.summary, "announced is not what is stored"
        announced = {conversation: ordinals for conversation, ordinals in first.items() if ordinals}
        produced = {c: list(range(1, last + 1)) for c, last in self.world.last.items() if last}
        assert announced == produced, "not everything was announced, or not in order"
