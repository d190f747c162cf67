"""Everything that may happen to summarizers, in any order; and what must be in the stores and on the topic then."""

from collections import Counter, defaultdict
from itertools import pairwise

from aiokafka.errors import KafkaConnectionError
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from afterword.schemas import SummaryCreated, SummaryDeleted
from afterword.schemas.ids import message_key
from afterword.streams.errors import StoreUnavailable
from afterword.withheld import read_withheld
from tests.model.machine import WORKERS, FaultMachine, Moment, moments, when_it_suits_least
from tests.model.network import Call
from tests.model.process import AGENT
from tests.model.summarizing import (
    CHANGING,
    CONVERSATIONS,
    RETRIES,
    SIZE,
    SOURCE,
    SUMMARIES,
    Talk,
    Worker,
    World,
    done_at_once,
    marks,
)

KAFKA_CALLS = {"getmany", "beginning_offsets", "end_offsets", "describe"}
PRODUCER_CALLS = {"open", "committed", "register", "produce", "offsets", "commit", "abort"}
LONG_SECONDS = 1e6
conversations = st.sampled_from(CONVERSATIONS)
changing = st.sampled_from(CHANGING)
rubbish = st.sampled_from([False, False, False, True])
kinds = st.sampled_from(["edit", "edit", "delete", "delete", "delete_all"])
pending_changes = st.tuples(st.sampled_from(["edit", "edit", "edit", "delete"]), st.integers(0, SIZE - 1))


class SummarizerMachine(FaultMachine):
    moments = moments(
        AGENT,
        "getmany",
        "open",
        "committed",
        "register",
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
        "archive",
        "holding",
        "states",
        "remove",
        "refuse",
        "recount",
    )

    @initialize(quick_seconds=st.sampled_from([0.0, LONG_SECONDS]))
    def begin(self, quick_seconds: float) -> None:  # type: ignore[override]  # drawn once for a history
        """`quick_seconds`: as of the pipeline; what is stored is looked at before, or only after it is."""
        self.quick_seconds = quick_seconds
        super().begin()

    def new_world(self) -> World:
        return World(WORKERS, self.quick_seconds)

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

    @rule(when=when_it_suits_least, conversation=changing, changes=st.lists(pending_changes, min_size=1, max_size=3))
    def an_episode_closes_whose_messages_changed(
        self, when: Moment, conversation: str, changes: list[tuple[str, int]]
    ) -> None:
        self.go_on_until(when)
        self.world.close_episode(conversation, changes)

    @rule(when=when_it_suits_least, conversation=conversations, ordinal=st.integers(1, 3))
    def an_episode_comes_again(self, when: Moment, conversation: str, ordinal: int) -> None:
        self.go_on_until(when)
        self.world.repeat_episode(conversation, ordinal)

    @rule(when=when_it_suits_least, conversation=changing, of=st.lists(st.tuples(kinds, st.integers(0, 8)), max_size=3))
    def messages_change(self, when: Moment, conversation: str, of: list[tuple[str, int]]) -> None:
        self.go_on_until(when)
        for kind, number in of:
            self.world.change(conversation, kind, number)

    @rule(
        when=when_it_suits_least,
        conversation=changing,
        ordinal=st.integers(1, 3),
        revision=st.integers(0, 2),
        times=st.integers(1, 2),
    )
    def a_summary_is_to_be_redone(
        self, when: Moment, conversation: str, ordinal: int, revision: int, times: int
    ) -> None:
        self.go_on_until(when)
        self.world.redo(conversation, ordinal, revision, times)

    @rule(when=when_it_suits_least, is_behind=st.booleans(), number=st.integers(0, 8))
    def the_archiver_falls_behind_or_catches_up(self, when: Moment, is_behind: bool, number: int) -> None:
        """`number`: of records that it archives now."""
        self.go_on_until(when)
        self.world.archive(is_behind, number)

    @rule(when=when_it_suits_least, is_behind=st.booleans(), number=st.integers(0, 3))
    def the_segmenter_falls_behind_or_catches_up(self, when: Moment, is_behind: bool, number: int) -> None:
        """`number`: of records that it writes now, if it stays behind: a request may overtake the others."""
        self.go_on_until(when)
        self.world.segment(is_behind, number)

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
        self.world.segment(False, 0)
        self.world.archive(False, 0)
        broker = self.world.broker
        ends = {source: broker.log(source).end for source in (SOURCE, RETRIES)}
        archived = not self.world.unarchived
        done = archived and all(broker.offsets.get(source, (0, "")) == (end, "") for source, end in ends.items())
        return bool(owner.partition.ready and owner.replaces and done and not broker.log(SUMMARIES).open)

    def check(self, owner: Worker) -> None:
        for talk in self.world.talks.values():
            if talk.name in CHANGING:
                self._check_changed(talk)
            else:
                self._check_conversation(talk)
        self._check_announcements()
        self.no_offset_is_committed_of_a_record_that_is_not_finished()
        self.nothing_is_announced_twice()

    def _check_changed(self, talk: Talk) -> None:
        """Everything is made of the living, and nothing that was deleted or replaced is anywhere."""
        shared, stores = self.world.shared, self.world.shared.episodes
        stored = [stores.episodes[e.episode_id] for e in talk.closed if e.episode_id in stores.episodes]
        assert sorted(i for e in stored for i in e.summary.message_ids) == sorted(talk.left), "not each in one episode"
        for episode in stored:
            core, overlap = (
                {talk.left[i].content for i in ids if i in talk.left}
                for ids in (episode.summary.message_ids, episode.overlap_ids)
            )
            assert marks(episode.summary.long_summary) == core | overlap, "a summary of something else"
            assert episode.summary.quality.source == "llm", "a fallback has stayed"
            assert shared.index.points[episode.summary.episode_id].summary == episode.summary
            assert marks(shared.index.points[episode.summary.episode_id].raw_text) == core
        counted = done_at_once(stores.conversation, talk.name)
        rows = [row for row in stores.rows.get(talk.name, []) if row.content]
        living = {message.content for message in talk.left.values()}
        for held in (*stored, *rows, counted, *shared.messages.messages.values()):
            old = {mark for mark in marks(repr(held)) if mark[0] == talk.name} - living
            assert not old, f"{old} should be gone: {held}"
        numbers = (counted.episode_count, counted.message_count) if counted else (0, 0)
        assert numbers == (len(stored), len(talk.left)), "counted wrongly"
        assert bool(rows) == bool(stored), "rows of nothing, or none"
        assert shared.index.points.keys() <= stores.episodes.keys(), "a point is left"
        withheld = done_at_once(read_withheld, shared.messages, [talk.name])
        assert not any(map(withheld.hides, stored)), "readers are not shown an episode"
        if counted:
            asked = stores, talk.name, "t1", None, counted.last_ordinal
            assert not done_at_once(withheld.conceals, *asked), "readers are not shown a conversation"

    def _check_conversation(self, talk: Talk) -> None:
        shared, conversation, last, episodes = self.world.shared, talk.name, len(talk.closed), talk.closed
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
        told: dict[str, SummaryCreated | SummaryDeleted] = {}
        times: Counter[str] = Counter()
        for summary in self.world.announced:
            assert told.setdefault(summary.event_id, summary) == summary, "one id, two contents"
            times[summary.event_id] += 1
            if summary.conversation_id not in CHANGING:
                assert summary.supersedes is None or summary.supersedes in told, "replaces what was not announced"
            if summary.ordinal not in first[summary.conversation_id]:
                first[summary.conversation_id].append(summary.ordinal)
        for event_id, summary in told.items():
            if summary.episode_id not in self.world.come_again:
                assert times[event_id] == 1, "announced twice"
            if not summary.reason:  # a change may come between a revision and its announcement
                assert summary.supersedes is None or summary.supersedes in told, "replaces what was not announced"
        for stored in (*shared.episodes.episodes.values(), *shared.episodes.deleted.values()):
            assert told.get(stored.event.event_id) == stored.event, "announced is not what is stored"
        announced = {conversation: ordinals for conversation, ordinals in first.items() if ordinals}
        produced = {t.name: list(range(1, len(t.closed) + 1)) for t in self.world.talks.values() if t.closed}
        assert announced == produced, "not everything was announced, or not in order"
