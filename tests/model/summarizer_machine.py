"""Events that can happen to summarizers, in any order, and checks of the stores and topics afterwards."""

from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

from aiokafka.errors import KafkaConnectionError
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from afterword.schemas import ConversationUpdated
from afterword.schemas.base import message_key
from afterword.streams.errors import StoreUnavailable
from distributions.engine.tests.simulation.network import Call
from distributions.engine.tests.simulation.process import AGENT
from tests.model.machine import WORKERS, FaultMachine, Moment, moments, when_it_suits_least
from tests.model.summarizing import (
    AWAY,
    CHANGING,
    CONVERSATIONS,
    CURRENT,
    SIZE,
    SOURCE,
    SUMMARIES,
    Talk,
    Worker,
    World,
    marks,
)

KAFKA_CALLS = {"getmany", "beginning_offsets", "end_offsets", "describe"}
PRODUCER_CALLS = {"open", "committed", "register", "produce", "offsets", "commit", "abort"}
conversations = st.sampled_from(CONVERSATIONS)
changing = st.sampled_from(CHANGING)
rubbish = st.sampled_from([False, False, False, True])
kinds = st.sampled_from(
    ["edit", "edit", "confirm", "repeat", "repeat", "send_again", "delete", "delete", "delete_all", "assign", "assign"]
)
"""`repeat` sends a message again with another text, and `send_again` its last record, which may have been edited."""
pending_kinds = st.sampled_from(["edit", "edit", "confirm", "repeat", "repeat", "send_again", "delete"])
pending_changes = st.tuples(pending_kinds, st.integers(0, SIZE - 1))


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
        "lookup",
        "summarize",
        "put",
        "latest_row",
        "put_row",
        "put_conversation",
        "assign",
        "archive",
        "change",
        "holding",
        "states",
        "present_users",
        "remove",
        "totals",
    )

    def new_world(self) -> World:
        return World(WORKERS)

    def error_for(self, call: Call, error: type[Exception]) -> Exception:
        if call.name in PRODUCER_CALLS:
            return error()
        if call.name in KAFKA_CALLS:
            return KafkaConnectionError()
        return AWAY if call.name == "summarize" else StoreUnavailable(store=call.name, problem="away")

    # -- the outside

    @rule(when=when_it_suits_least, of=st.lists(st.tuples(conversations, rubbish), min_size=1, max_size=6))
    def episodes_close(self, when: Moment, of: list[tuple[str, bool]]) -> None:
        """Close episodes of these conversations, or append an invalid record."""
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
        """The archiver now archives `number` records."""
        self.go_on_until(when)
        self.world.archive(is_behind, number)

    @rule(when=when_it_suits_least, is_behind=st.booleans(), number=st.integers(0, 3))
    def the_segmenter_falls_behind_or_catches_up(self, when: Moment, is_behind: bool, number: int) -> None:
        """The segmenter now writes `number` records. If it stays behind, a request may overtake other records."""
        self.go_on_until(when)
        self.world.segment(is_behind, number)

    @rule(when=when_it_suits_least, away=st.booleans())
    def the_llm_goes_or_comes(self, when: Moment, away: bool) -> None:
        self.go_on_until(when)
        self.world.shared.llm_is_away = away

    @rule(when=when_it_suits_least)
    def fallbacks_are_looked_for(self, when: Moment) -> None:
        self.go_on_until(when)
        self.world.look_for_fallbacks()

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
        end = broker.log(SOURCE).end
        done = not self.world.unarchived and broker.offsets.get(SOURCE, (0, "")) == (end, "")
        if not (owner.partition.ready and done) or broker.log(SUMMARIES).open or broker.log(CURRENT).open:
            return False
        self.world.look_for_fallbacks()
        return bool(broker.log(SOURCE).end == end)

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
        """Check that everything derives from existing messages, and nothing deleted or replaced is left."""
        shared, stores = self.world.shared, self.world.shared.episodes
        stored = [stores.episodes[e.episode_id] for e in talk.closed if e.episode_id in stores.episodes]
        assert sorted(i for e in stored for i in e.summary.message_ids) == sorted(talk.left), "not each in one episode"
        for episode in stored:
            core, overlap = talk.told(episode.core_ids), talk.told(episode.overlap_ids)
            assert marks(episode.summary.long_summary) == core | overlap, "a summary of something else"
            assert episode.summary.quality.source == "llm", "a fallback has stayed"
            assert shared.index.points[episode.summary.episode_id].summary == episode.summary
            assert marks(shared.index.points[episode.summary.episode_id].raw_text) == core
            users = {episode.summary.user_id, *episode.participants, *episode.writers}
            users.update(shared.index.points[episode.summary.episode_id].episode.writers)
            assert users == {talk.user}, "a part of an episode is another user's"
        self._check_rows(talk.name)
        living = {message.content for message in talk.left.values()}
        counted = stores.known.get(talk.name)
        for held in (*stored, *stores.all_rows.get(talk.name, []), counted, *shared.messages.messages.values()):
            old = {mark for mark in marks(repr(held)) if mark[0] == talk.name} - living
            assert not old, f"{old} should be gone: {held}"
        kept = [one.message for one in shared.messages.messages.values()]
        assert {one.user_id for one in kept if one.conversation_id == talk.name} <= {talk.user}, (
            "a message is another's"
        )
        assert not counted or counted.user_id in ("", talk.user), "the conversation is another user's"
        numbers = (counted.episode_count, counted.message_count) if counted else (0, 0)
        assert numbers == (len(stored), len(talk.left)), "counted wrongly"
        assert shared.index.points.keys() <= stores.episodes.keys(), "a point is left"

    def _check_rows(self, conversation: str) -> None:
        """Check that each row summarizes the current episodes of its range, and that there is one for each episode."""
        stores = self.world.shared.episodes
        rows = stores.all_rows.get(conversation, [])
        living = {e.ordinal: e for e in stores.episodes.values() if e.summary.conversation_id == conversation}
        for row in rows:
            of_range = {n: e for n, e in sorted(living.items()) if row.first_ordinal <= n <= row.last_ordinal}
            wanted = tuple((n, episode.summary.revision) for n, episode in of_range.items())
            assert row.inputs == wanted, "a row was made from something else"
            told = set().union(*(marks(episode.summary.long_summary) for episode in of_range.values()))
            assert marks(row.content) <= told, "a row says what its episodes do not"
            assert bool(row.content) == bool(of_range), "a row of nothing, or an empty one"
        covered = [(row.first_ordinal, row.last_ordinal) for row in rows]
        assert all(before[1] + 1 == after[0] for before, after in pairwise(covered)), "rows do not meet"
        assert all(any(first <= n <= last for first, last in covered) for n in living), "an episode is in no row"

    def _check_conversation(self, talk: Talk) -> None:
        shared, conversation, last, episodes = self.world.shared, talk.name, len(talk.closed), talk.closed
        for episode in episodes:
            stored = shared.episodes.episodes[episode.episode_id]
            assert stored.fingerprint == episode.fingerprint
            assert stored.summary.quality.source == "llm", "a fallback has stayed"
            assert shared.index.points[episode.episode_id].summary == stored.summary
            keys = [message_key(conversation, message.id, episode.tenant_id) for message in episode.messages]
            assert {shared.messages.episode_ids[key] for key in keys} == {episode.episode_id}
        self._check_rows(conversation)
        if episodes:
            counted = shared.episodes.known[conversation]
            assert (counted.episode_count, counted.last_ordinal) == (last, last)
            assert counted.message_count == sum(episode.message_count for episode in episodes)

    def _check_announcements(self) -> None:
        """Check that the last revision of everything was announced, none twice, and each id with one content."""
        stores, told, times = self.world.shared.episodes, dict[str, Any](), Counter[str]()
        for event in self.world.events:
            key = f"{type(event).__name__} {event.event_id}"
            assert told.setdefault(key, event) == event, "one id, two contents"
            times[key] += 1
        assert all(number == 1 for number in times.values()), "announced twice"
        for stored in (*stores.episodes.values(), *stores.deleted.values()):
            key = f"{type(stored.event).__name__} {stored.event.event_id}"
            assert told.get(key) == stored.event, "announced is not what is stored"
        ordinals, as_closed = defaultdict[str, set[int]](set), defaultdict[str, list[int]](list)
        for summary in self.world.announced:
            ordinals[summary.conversation_id].add(summary.ordinal)
            if summary.revision == 1:  # a revision that a repeated record overtook may stay unannounced
                as_closed[summary.conversation_id].append(summary.ordinal)
        closed = {talk.name: set(range(1, len(talk.closed) + 1)) for talk in self.world.talks.values() if talk.closed}
        assert ordinals == closed, "not everything was announced"
        assert all(found == sorted(found) for found in as_closed.values()), "not in order"
        self._check_readers()
        self._check_current()

    def _check_current(self) -> None:
        """Check that the compacted topics agree with what is stored."""
        stores, current = self.world.shared.episodes, self.world.current
        for stored in (*stores.episodes.values(), *stores.deleted.values()):
            assert current[stored.event.episode_id] == stored.event, "an episode is not current"
        for name, known in stores.known.items():
            event = current[name]
            assert isinstance(event, ConversationUpdated)
            counts = (event.episode_count, event.message_count)
            assert (event.title, *counts) == (known.title, known.episode_count, known.message_count)
            rows = [(row.revision, row.content) for row in stores.all_rows.get(name, [])]
            assert [(row.revision, row.text) for row in event.rolling] == rows, "a row is not current"

    def _check_readers(self) -> None:
        """Check that a reader that keeps the highest revisions has what is stored."""
        stores, rows, last = self.world.shared.episodes, dict[tuple[str, int], Any](), dict[str, Any]()
        for event in self.world.events:
            if isinstance(event, ConversationUpdated):
                name = event.conversation_id
                last[name] = max(event, last.get(name, event), key=lambda one: one.revision)
                for row in event.rolling:
                    known = rows.get((name, row.row), row)
                    rows[name, row.row] = max(known, row, key=lambda one: one.revision)
        for name, known in stores.known.items():
            event = last[name]
            counts = (event.episode_count, event.message_count)
            assert (event.revision, event.title, *counts) == (
                known.revision,
                known.title,
                known.episode_count,
                known.message_count,
            ), "a conversation was not announced"
            for row in stores.all_rows.get(name, []):
                told = rows[name, row.row]
                assert (told.revision, told.text) == (row.revision, row.content), "a row was not announced"
