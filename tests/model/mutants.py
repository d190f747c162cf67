"""Breaks the engine and the agents on purpose, to measure the model check by how many of the breaks it finds.

Each is applied to a copy of the source tree, where the model check then runs, or the unit tests of the mechanism where
a history would need too many coincidences.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
MOST_HISTORIES = 1_200
"""Histories to try before a mutant counts as not found."""
COPIED = ("afterword", "consumers", "distributions", "schemas", "streams", "tests", "pyproject.toml")


class Mutant(NamedTuple):
    sentence: str
    machine: str
    """A machine of the model check, or a file of tests."""
    file: str
    old: str
    new: str


SEGMENTER, SUMMARIZER, DAMAGED = "segmenter", "summarizer", "damaged"
AMENDING_TESTS, REDOING_TESTS = "tests/unit/summarizer/test_amending.py", "tests/unit/summarizer/test_redoing.py"
STORE_TESTS = "tests/contract/stores/test_episode_stores.py"
ENGINE = "distributions/engine/faust_eos"
CHANGELOG_TESTS = "distributions/engine/tests/test_changelog.py"
OWNERS_TESTS = "tests/model/test_owners.py"
SOURCES, TRANSACTION, CHANGELOG = f"{ENGINE}/kafka.py", f"{ENGINE}/transaction.py", f"{ENGINE}/changelog.py"
EXACTLY_ONCE, AT_LEAST_ONCE, WINDOW = f"{ENGINE}/exactly_once.py", f"{ENGINE}/at_least_once.py", f"{ENGINE}/window.py"
RECONCILER, CONVERSATIONS = "streams/summarizer/reconciler.py", "streams/summarizer/conversations.py"
STORES = "streams/stores/sqlite.py"

MUTANTS = (
    Mutant(
        "the ordinals of a forgotten conversation begin anew",
        SEGMENTER,
        "streams/segmenter/state.py",
        "return State(self.tenant_id, last_ordinal=self.last_ordinal, agents=",
        "return State(self.tenant_id, agents=",
    ),
    Mutant(
        "a repeat with another text is dropped",
        SEGMENTER,
        "streams/segmenter/processor.py",
        "        if known in texts:\n",
        "        if known is not None:\n",
    ),
    Mutant(
        "the bookmark is of the batch before",
        SEGMENTER,
        EXACTLY_ONCE,
        "Bookmark(next_offset, before.lineage",
        "Bookmark(max(before.source, 0), before.lineage",
    ),
    Mutant(
        "the source offset is committed in a transaction of its own",
        "distributions/engine/tests/test_transaction.py",
        TRANSACTION,
        "        await all_arrived(sent)\n        await self._producer.commit",
        "        await asyncio.gather(*[batch.arrived() for batch in sent], return_exceptions=True)\n"
        "        await self._producer.commit",
    ),
    Mutant(
        "rows are in RocksDB before they are committed",
        SEGMENTER,
        EXACTLY_ONCE,
        "            marks = await self.producer.commit(",
        "            self.database.write(changes, before)\n            marks = await self.producer.commit(",
    ),
    Mutant(
        "earlier owners are not fenced",
        SEGMENTER,
        EXACTLY_ONCE,
        "TransactionalProducer(transactional_id(group, source), clients",
        "TransactionalProducer(f'{group}-{id(self)}', clients",
    ),
    Mutant(
        "a tick does not wait for the horizon",
        SEGMENTER,
        EXACTLY_ONCE,
        "            if end is not None and await kafka.position(source) >= end and not self.stopping:",
        "            if end is not None and not self.stopping:",
    ),
    Mutant(
        "a tick moves the source offset",
        SEGMENTER,
        EXACTLY_ONCE,
        "        offset = max(self.database.position.source, 0)\n",
        "        offset = max(self.database.position.source, 0) + 1\n",
    ),
    Mutant(
        "a commit without an answer is taken for done",
        SEGMENTER,
        TRANSACTION,
        "        await self._producer.commit_transaction()\n",
        "        try:\n"
        "            await self._producer.commit_transaction()\n"
        "        except KafkaError:\n"
        "            self._producer._in_transaction = False\n",
    ),
    Mutant(
        "recovery forgets deletions",
        SEGMENTER,
        CHANGELOG,
        "        else:\n            rows.append(",
        "        elif record.value is not None:\n            rows.append(",
    ),
    Mutant(
        "recovery believes the local state, and reads the last bookmark only",
        SEGMENTER,
        CHANGELOG,
        "        consumer.seek(changelog, max(bookmark, first[changelog]))",
        "        consumer.seek(changelog, end[changelog] - 2 if bookmark >= 0 else first[changelog])",
    ),
    Mutant(
        "recovery reads what was aborted",
        SEGMENTER,
        CHANGELOG,
        'isolation_level="read_committed"',
        'isolation_level="read_uncommitted"',
    ),
    Mutant(
        "state that is older than compaction's memory is used",
        CHANGELOG_TESTS,
        CHANGELOG,
        "    stale_seconds: float\n    replayed",
        "    ignored: float\n    stale_seconds = 1e12\n    replayed",
    ),
    Mutant(
        "what a failed agent left is committed",
        "distributions/engine/tests/test_batch.py",
        f"{ENGINE}/batch.py",
        "            self.done.set_exception(AgentFailed(where=self.where, cause=cause))",
        "            self.done.set_result(None)",
    ),
    Mutant(
        "deletions do not get into the changelog",
        SEGMENTER,
        f"{ENGINE}/drivers.py",
        "        return list(batch.tables.get(self.table_name, {}).items())\n",
        "        return [row for row in batch.tables.get(self.table_name, {}).items() if row[1] is not None]\n",
    ),
    Mutant(
        "a batch of outputs that is full loses a record",
        SEGMENTER,
        TRANSACTION,
        "                builder = self._producer.create_batch()\n"
        "                builder.append(key=key, value=value, timestamp=timestamp, headers=headers)\n",
        "                builder = self._producer.create_batch()\n",
    ),
    Mutant(
        "ids of messages are forgotten too early",
        SEGMENTER,
        "streams/segmenter/rules.py",
        "min(after.next_seq - window, after.overlap_first)",
        "min(after.next_seq - window + 1, after.overlap_first)",
    ),
    Mutant(
        "records that expired are passed over without a word",
        SEGMENTER,
        SOURCES,
        "    metrics.expired(lost)\n",
        "",
    ),
    Mutant(
        "after records have expired reading goes on at the end",
        SEGMENTER,
        SOURCES,
        "    return max(position, first)\n",
        "    return end if first > position >= 0 else max(position, first)\n",
    ),
    Mutant(
        "a fetch that was cut short counts as all that there is",
        SEGMENTER,
        EXACTLY_ONCE,
        "        offset = part[taken - 1].offset + 1 if taken else part[0].offset\n",
        "        offset = max(part[-1].offset + 1, self.consumer.kafka.highwater(self.source) or 0)\n",
    ),
    Mutant(
        "a record that was refused is left out",
        SEGMENTER,
        TRANSACTION,
        "        await self._producer.send_offsets_to_transaction(dict(offsets), group)\n"
        "        await all_arrived(sent)\n",
        "        await self._producer.send_offsets_to_transaction(dict(offsets), group)\n"
        "        answers = await asyncio.gather(*[batch.arrived() for batch in sent], return_exceptions=True)\n"
        "        if any(isinstance(answer, KafkaError) for answer in answers):\n"
        "            await self._producer.abort_transaction()\n"
        "            return\n",
    ),
    Mutant(
        "the beginning of a changelog may be gone",
        DAMAGED,
        CHANGELOG,
        "            if first[changelog] > max(bookmark, 0):\n",
        "            if False:\n",
    ),
    Mutant(
        "a changelog may have been made anew",
        CHANGELOG_TESTS,
        CHANGELOG,
        "        if first <= self.previous:\n",
        "        if False:\n",
    ),
    Mutant(
        "the state may be behind the group",
        OWNERS_TESTS,
        EXACTLY_ONCE,
        "        if committed > recovered:\n",
        "        if False:\n",
    ),
    Mutant(
        "one changelog may lack what the other has",
        OWNERS_TESTS,
        CHANGELOG,
        "        _check_bookmarks(marks, self.changelogs)\n        return records\n",
        "        return records\n",
    ),
    Mutant(
        "the highest finished offset is committed instead of the lowest unfinished",
        SUMMARIZER,
        WINDOW,
        "        return next(iter(self._unfinished), self.next)",
        "        return self.next",
    ),
    Mutant(
        "summaries are announced in a transaction of their own",
        SUMMARIZER,
        AT_LEAST_ONCE,
        "                await producer.commit_outputs(outputs, {self._source: offset}, self._app.conf.id)\n",
        "                await producer.commit_outputs(outputs, {}, self._app.conf.id)\n"
        "                await producer.commit_outputs([], {self._source: offset}, self._app.conf.id)\n",
    ),
    Mutant(
        "a commit does not name what is finished beyond its offset",
        SUMMARIZER,
        AT_LEAST_ONCE,
        "OffsetAndMetadata(progress.offset, progress.metadata())",
        'OffsetAndMetadata(progress.offset, "")',
    ),
    Mutant(
        "a commit names what is left to the next one",
        SUMMARIZER,
        AT_LEAST_ONCE,
        "self._window.progress(without=rest)",
        "self._window.progress()",
    ),
    Mutant(
        "what a commit leaves to the next one is dropped",
        SUMMARIZER,
        AT_LEAST_ONCE,
        "        del self._finished[:number]\n",
        "        self._finished.clear()\n",
    ),
    Mutant(
        "earlier owners of a partition of episodes are not fenced",
        SUMMARIZER,
        AT_LEAST_ONCE,
        "        writer = transactional_id(self._app.conf.id, self._source)\n",
        '        writer = f"{self._app.conf.id}-{id(self)}"\n',
    ),
    Mutant(
        "after a failed commit nobody looks what was committed",
        SUMMARIZER,
        AT_LEAST_ONCE,
        "            await self._learn()\n",
        "            if not self._known.is_set():\n                await self._learn()\n",
    ),
    Mutant(
        "progress is read that a transaction may still change",
        SUMMARIZER,
        "distributions/engine/tests/simulation/clients.py",
        "            ready=lambda: self.broker.is_stable(source),\n",
        "",
    ),
    Mutant(
        "what waits behind a record of its conversation is not read again",
        SUMMARIZER,
        WINDOW,
        "                self._missed[offset] = key\n",
        "                self._unfinished.pop(offset)\n                self._queues.pop(key)\n",
    ),
    Mutant(
        "fetching begins where the last fetch ended, not at the committed offset",
        SUMMARIZER,
        AT_LEAST_ONCE,
        "        window.advance(await readable(kafka, self._source, window.next, metrics, done.offset, done.beyond))\n",
        "        window.next = (await kafka.end_offsets([self._source]))[self._source]\n",
    ),
    Mutant(
        "what Faust skips counts as done",
        SUMMARIZER,
        AT_LEAST_ONCE,
        "        if self.tracked and not isinstance(sys.exc_info()[1], NOT_DONE):",
        "        if not isinstance(sys.exc_info()[1], NOT_DONE):",
    ),
    Mutant(
        "a record is acknowledged before its summary is announced",
        SUMMARIZER,
        "streams/summarizer/agent.py",
        "        record: KafkaRecord = event.value\n        position =",
        "        record: KafkaRecord = event.value\n        event.ack()\n        position =",
    ),
    Mutant(
        "what was stored before is not announced again",
        SUMMARIZER,
        RECONCILER,
        "            if made is stored or await self._put(made, stored)",
        "            if made is stored:\n                return None\n            if await self._put(made, stored)",
    ),
    Mutant(
        "a revision is announced by another record than the one that made it",
        SUMMARIZER,
        RECONCILER,
        "written) if made.cause == cause else None\n",
        "written)\n",
    ),
    Mutant(
        "a record whose change is in a revision already makes no next one",
        AMENDING_TESTS,
        RECONCILER,
        "    return Step.RENEW if concerns and stored.cause.is_before(cause) else Step.KEEP",
        "    return Step.KEEP",
    ),
    Mutant(
        "an episode is not made again of messages that were changed",
        SUMMARIZER,
        RECONCILER,
        "    if not is_gone and read.inputs != stored.inputs:\n",
        "    if False:\n",
    ),
    Mutant(
        "a summary is redone though another revision is stored than the request names",
        REDOING_TESTS,
        RECONCILER,
        "            is_current = stored.version == (redo.revision, redo.attempt)",
        "            is_current = True",
    ),
    Mutant(
        "an attempt that led to nothing lets a zombie end it with something",
        REDOING_TESTS,
        RECONCILER,
        "        attempt, unusable = stored.attempt + 1,",
        "        attempt, unusable = stored.attempt,",
    ),
    Mutant(
        "episodes keep their user when they are assigned to another",
        SUMMARIZER,
        RECONCILER,
        "            return Step.RENEW if any(present(user) != user for user in users) else Step.KEEP\n",
        "            return Step.KEEP\n",
    ),
    Mutant(
        "an answer that a later one replaces is summarized",
        SUMMARIZER,
        "schemas/episodes.py",
        " if replaced and core else self\n",
        " if False else self\n",
    ),
    Mutant(
        "an episode that closes after its conversation was assigned is the earlier user's",
        SUMMARIZER,
        RECONCILER,
        "record.of_users(present.of) if present.moves else record",
        "record",
    ),
    Mutant(
        "an assignment that is handled late undoes a later one",
        SUMMARIZER,
        "streams/stores/messages.py",
        "            if (offset is not None and known.offset >= offset) or",
        "            if (offset is not None and known.offset == offset) or",
    ),
    Mutant(
        "a message that is archived after an assignment stays the earlier user's",
        SUMMARIZER,
        "streams/stores/messages.py",
        "        for archived in await self.of_present_users(messages):\n            given[",
        "        for archived in messages:\n            given[",
    ),
    Mutant(
        "a change is not applied to the archive",
        SUMMARIZER,
        RECONCILER,
        "        await self._messages.change(change_of(amended))\n",
        "",
    ),
    Mutant(
        "the archive takes back an edit of before the episode closed",
        AMENDING_TESTS,
        RECONCILER,
        "    if known is not None and state.changed <= changed_at(known):\n",
        "    if False:\n",
    ),
    Mutant(
        "whether a row is complete is up to the settings of the worker that reads it",
        "tests/unit/summarizer/test_rolling.py",
        CONVERSATIONS,
        "        return None if self.row is None or self.row.is_complete else self.row\n",
        "        limit = self.rules.rolling_max_tokens\n"
        "        return self.row if self.row is not None and count_tokens(self.row.content) < limit else None\n",
    ),
    Mutant(
        "what an interrupted deletion left in the index waits for the LLM",
        AMENDING_TESTS,
        RECONCILER,
        "            if made is stored or await self._put(made, stored)",
        "            if made is stored and not asks:\n"
        "                return None\n"
        "            if made is stored or await self._put(made, stored)",
    ),
    Mutant(
        "rows keep the texts of before a change",
        SUMMARIZER,
        CONVERSATIONS,
        "            if wanted == row.inputs and not row.cause.is_before(cause):\n",
        "            if True:\n",
    ),
    Mutant(
        "the conversation is not counted again after a change",
        SUMMARIZER,
        CONVERSATIONS,
        "            if counted == known:\n                return known\n",
        "            if True:\n                return known\n",
    ),
    Mutant(
        "an episode that closes is not indexed",
        SUMMARIZER,
        RECONCILER,
        "        await self._index.put(episode, texts, vectors)\n",
        "",
    ),
    Mutant(
        "messages are not archived with their episode's id",
        SUMMARIZER,
        RECONCILER,
        "        await self._messages.assign(closed.episode_id, kept, keys)\n",
        "        await self._messages.assign(closed.episode_id, [])\n",
    ),
    Mutant(
        "a fallback is not tried again",
        SUMMARIZER,
        RECONCILER,
        "            due_at=next_attempt(self._retry, 0, 0, made_at) if is_due else None,\n",
        "            due_at=None,\n",
    ),
    Mutant(
        "a revision that another worker stored meanwhile is written over",
        STORE_TESTS,
        STORES,
        "        version = {name: kind.fields(before)[name] for name in kind.version} if before else None\n",
        "        version = {} if before else None\n",
    ),
    Mutant(
        "a message that is sent again undoes an edit",
        SUMMARIZER,
        "streams/stores/messages.py",
        "    if not is_edit or said.endswith(digest):\n",
        "    if not is_edit:\n",
    ),
    Mutant(
        "an edit without effect makes a revision",
        AMENDING_TESTS,
        "streams/stores/messages.py",
        "    if has_effect and state.changed <= offset:\n",
        "    if fields and state.changed <= offset:\n",
    ),
    Mutant(
        "a message that was deleted before its episode closed is in it",
        AMENDING_TESTS,
        RECONCILER,
        "    if isinstance(state, DeletedMessage):\n        return None\n",
        "    if isinstance(state, DeletedMessage):\n        return known\n",
    ),
)


def all_found(only: str = "") -> bool:
    """Try the mutants whose sentence contains `only`, and write a line for each."""
    verdicts = [found(mutant) for mutant in MUTANTS if only in mutant.sentence]
    return all(verdicts)


def found(mutant: Mutant) -> bool:
    began = time.perf_counter()
    with mutated(mutant) as tree:
        if mutant.machine.endswith(".py"):
            options = ["pytest", "-x", "-q", "--tb=no", mutant.machine]
        else:
            options = ["tests.model", mutant.machine, "--raw", "--histories", str(MOST_HISTORIES)]
        command = [sys.executable, "-m", *options]
        environment = os.environ | {"PYTHONPATH": str((tree / ENGINE).parent)}
        ended = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    why = reason(ended.stderr) or failed_test(ended.stdout)
    verdict = f"found in {seconds:.0f} s ({why})" if why else f"NOT FOUND in {seconds:.0f} s"
    if ended.returncode and not why:
        raise RuntimeError(ended.stderr)
    sys.stdout.write(f"{mutant.sentence}: {verdict}\n")
    sys.stdout.flush()
    return bool(why)


@contextmanager
def mutated(mutant: Mutant) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory)
        for name in COPIED:
            copy(ROOT / name, tree / name)
        file = tree / mutant.file
        text = file.read_text()
        if text.count(mutant.old) != 1:
            raise ValueError(f"{mutant.sentence}: {mutant.file} has changed, so must the mutant")
        file.write_text(text.replace(mutant.old, mutant.new))
        yield tree


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


def reason(errors: str) -> str:
    """Return the error that ended the failed history; empty if none failed."""
    if "Failing test case" not in errors:
        return ""
    return re.findall(r"^[\w.]*Error.*$", errors, re.MULTILINE)[-1].removeprefix("AssertionError: ")[:100]


def failed_test(output: str) -> str:
    """Return the name of the unit test that failed; empty if none did."""
    return next(iter(re.findall(r"^FAILED \S+::(\w+)", output, re.MULTILINE)), "")
