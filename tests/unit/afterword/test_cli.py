import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from afterword.cli import main
from afterword.commands.common import ANSWER_SECONDS, next_step, start_command
from afterword.streams.errors import BrokerRefuses, BrokerUnavailable, StoreUnavailable
from afterword.streams.stores import mongo
from afterword.streams.stores.messages import ArchivedMessage
from afterword.streams.stores.sqlite import SqliteFile, SqliteMessages
from tests.samples import a_message

HEAVY = ("pydantic", "aiokafka", "faust", "motor", "pymongo", "qdrant_client", "pydantic_settings", "rich.progress")
AWAY = {"AFTERWORD_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:9"}
MESSAGE = '{"id":"1","conversation_id":"d","user_id":"u","role":"user","content":"a"}\n'
ALL_AWAY = AWAY | {
    "AFTERWORD_MONGO__URI": "mongodb://127.0.0.1:9",
    "AFTERWORD_QDRANT__URL": "http://127.0.0.1:9",
}


def run(*arguments: str, directory: Path | None = None, **environment: str) -> tuple[int, str, str]:
    """Return exit code, standard output and standard error of the command line in a process of its own, because it sets
    up logging. In a directory of its own it looks for settings there, which conftest.py otherwise forbids.
    """
    command = [sys.executable, "-m", "afterword.cli", *arguments]
    inherited = {name: value for name, value in os.environ.items() if directory is None or name != "AFTERWORD_CONFIG"}
    own = inherited | environment
    done = subprocess.run(command, capture_output=True, text=True, env=own, check=False, cwd=directory)
    return done.returncode, done.stdout, done.stderr


def test_help_imports_nothing_heavy():
    code = "import sys, afterword.cli; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not set(HEAVY) & set(done.stdout.split())


def test_wrong_setting_ends_in_one_line_that_names_it():
    code, out, err = run("check", AFTERWORD_EPISODES__TRIGGER="many")
    assert (code, out) == (2, "")
    assert err.startswith("afterword: AFTERWORD_EPISODES__TRIGGER: ")
    assert err.count("\n") == 1


def test_misspelt_setting_is_reported():
    code, _, err = run("worker", "archiver", AFTERWORD_KAFKA__BOOTSTRAP="localhost:9092")
    assert code == 2
    assert "AFTERWORD_KAFKA__BOOTSTRAP" in err


def test_absent_broker_ends_in_one_line(tmp_path):
    (tmp_path / "m.jsonl").write_text(MESSAGE)
    code, _, err = run("produce", str(tmp_path / "m.jsonl"), **AWAY)
    assert code == 1
    assert err.startswith("afterword: Kafka at 127.0.0.1:9 cannot be reached")
    assert err.count("\n") == 1


def test_check_exits_1_on_any_failure(tmp_path):
    environment = AWAY | {
        "AFTERWORD_SQLITE__PATH": str(tmp_path / "afterword.sqlite"),
    }
    code, out, _ = run("check", **environment)
    assert code == 1
    words = [line.split()[:2] for line in out.splitlines()]
    assert words == [
        ["FAIL", "kafka"],
        ["FAIL", "topics"],
        ["FAIL", "commits"],
        ["OK", "llm"],
        ["OK", "reranker"],
        ["OK", "webhooks"],
        ["OK", "sources"],
        ["OK", "keys"],
        ["OK", "sqlite"],
    ]
    assert "secret" not in out
    code, out, _ = run("check", "--json", **environment)
    assert code == 1
    assert [found["result"] for found in json.loads(out)] == [*["FAIL"] * 3, *["OK"] * 6]


def test_invalid_lines_are_named_before_anything_is_sent(tmp_path: Path):
    (tmp_path / "m.jsonl").write_text(MESSAGE + "not json\n{}\n")
    code, out, err = run("produce", str(tmp_path / "m.jsonl"))
    assert (code, out) == (1, "")
    assert err.startswith("afterword: nothing was sent, because lines are invalid (2): line 2: invalid_json")
    assert "; line 3: " in err


def test_init_overwrites_no_file(tmp_path: Path) -> None:
    (tmp_path / "afterword.toml").write_text("mine")
    code, _, err = run("init", "--topic", "chat", directory=tmp_path)
    assert (code, err) == (2, "afterword: AFTERWORD_INGEST__FILE: afterword.toml exists; remove it or name another\n")
    assert (tmp_path / "afterword.toml").read_text() == "mine"


def test_dry_run_of_an_import_needs_no_server(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text(MESSAGE * 2)
    code, out, err = run("import", "jsonl", str(tmp_path / "m.jsonl"), "--dry-run", **ALL_AWAY)
    assert (code, err) == (0, "afterword: the archive does not answer, so what it has already was not compared\n")
    assert out.startswith("1 conversation would be flushed\n2 messages read in ")
    assert out.endswith(" s: 1 would be sent, 1 duplicate, 0 rejected\n")


def test_import_without_a_conversation_fails(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").touch()
    with ZipFile(tmp_path / "export.zip", "w") as archive:
        archive.writestr("user.json", "{}")
        archive.writestr("conversations.json", "[]")
    for given in (["jsonl", str(tmp_path / "m.jsonl")], ["chatgpt", str(tmp_path / "export.zip"), "--user", "ann"]):
        code, _, err = run("import", *given, "--dry-run", **ALL_AWAY)
        assert (code, err) == (1, "afterword: nothing to import was found; did the command before the pipe fail?\n")


def test_directory_that_cannot_be_created_ends_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    code, _, err = run("dev", "--data-dir", str(tmp_path / "taken" / "data"))
    assert (code, err) == (1, f"afterword: {tmp_path}/taken/data: Not a directory\n")


WRITE_AND_LEAVE = "import sys; from afterword.__main__ import leave; sys.stdout.write('x'); leave(SystemExit(0))"


@pytest.mark.parametrize("arguments", [("-m", "afterword", "config", "show"), ("-c", WRITE_AND_LEAVE)])
def test_full_disk_ends_in_one_line(arguments: tuple[str, ...]) -> None:
    env = os.environ | {"PYTHONUNBUFFERED": ""}  # so that the disk is found full when the command ends
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, env=env)
    assert (done.returncode, done.stderr) == (1, "afterword: No space left on device\n")


@pytest.mark.parametrize("command", [("recall", "pin"), ("context", "c1"), ("episodes", "c1")])
def test_empty_user_is_a_usage_error(command: tuple[str, ...], capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--user", ""])
    assert ended.value.code == 2
    assert "it is empty" in capsys.readouterr().err


@pytest.mark.parametrize("time", ["99999999999d", "999999d", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_impossible_time_is_a_usage_error(time: str, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["dlq", "list", "--since", time])
    assert ended.value.code == 2
    assert "is not within" in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_command_warns_of_a_key_sent_unencrypted() -> None:
    address = "http://user:canary@qdrant.example:6333/canary-4711"
    code, out, err = run("config", "show", AFTERWORD_QDRANT__URL=address, AFTERWORD_QDRANT__API_KEY="canary")
    assert code == 0
    assert json.loads(err)["event"] == "api_key_sent_in_clear"
    assert "canary" not in out + err


def settings_of_dev(directory: Path) -> None:
    """Write what `afterword dev` writes, with servers that do not answer."""
    (directory / ".afterword").mkdir()
    (directory / ".afterword" / "afterword.toml").write_text(
        '[kafka]\nbootstrap_servers = "127.0.0.1:9"\n[mongo]\nuri = "mongodb://me:secret@127.0.0.1:9"\n'
    )


def test_commands_find_and_name_the_settings_of_dev(tmp_path: Path) -> None:
    settings_of_dev(tmp_path)
    code, out, err = run("config", "show", "--json", directory=tmp_path)
    assert (code, err) == (0, "afterword: using the settings in .afterword/afterword.toml\n")
    assert json.loads(out)["kafka"]["bootstrap_servers"] == "127.0.0.1:9"


@pytest.mark.parametrize(
    "variable", ["AFTERWORD_CONFIG", "AFTERWORD_KAFKA__BOOTSTRAP_SERVERS", "AFTERWORD_QDRANT__URL"]
)
def test_named_settings_are_not_mixed_with_those_of_dev(tmp_path: Path, variable: str) -> None:
    settings_of_dev(tmp_path)
    (tmp_path / "own.toml").touch()
    code, out, err = run("config", "show", "--json", directory=tmp_path, **{variable: "own.toml"})
    assert (code, err) == (0, "")
    assert json.loads(out)["mongo"]["uri"] == "mongodb://127.0.0.1:27017"


def test_absent_database_is_named_with_address_and_remedy(tmp_path: Path) -> None:
    settings_of_dev(tmp_path)
    code, _, err = run("context", "c1", directory=tmp_path)
    assert code == 1
    assert err.splitlines()[-1] == (
        "afterword: mongodb cannot be reached: no server answered in time (ServerSelectionTimeoutError); "
        "its address mongodb://127.0.0.1:9 is from .afterword/afterword.toml, is `afterword dev` running?"
    )


def test_default_address_of_an_absent_server_is_explained() -> None:
    """`next_step` tells by the environment where an address is from."""
    away = BrokerUnavailable(servers="127.0.0.1:9092", problem="no")
    assert next_step(away).endswith("run `afterword dev` in this directory, or set AFTERWORD_KAFKA__BOOTSTRAP_SERVERS")
    assert next_step(BrokerRefuses(servers="127.0.0.1:9092", problem="no")) == ""
    assert next_step(StoreUnavailable(store="qdrant at http://q:6333", problem="no")).endswith("AFTERWORD_QDRANT__URL")
    assert next_step(StoreUnavailable(store="embedder", problem="no")) == ""


def test_command_gives_every_server_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFTERWORD_CONFIG", "")
    found = start_command()
    assert found.qdrant.answer_seconds == found.kafka.answer_seconds == ANSWER_SECONDS
    assert mongo.connect(found.mongo).client.options.server_selection_timeout == ANSWER_SECONDS


def test_recall_in_a_file_imports_no_kafka_client(tmp_path: Path) -> None:
    code = "import atexit, sys; atexit.register(lambda: print('imported:', 'aiokafka' in sys.modules)); "
    code += "from afterword.cli import main; main(['recall', 'bees', '--user', 'ada'])"
    where = os.environ | {"AFTERWORD_SQLITE__PATH": str(tmp_path / "memory.sqlite")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=where, check=True)
    assert done.stdout.endswith("imported: False\n")


@pytest.mark.parametrize("command", ["audit", "topics create"])
def test_absent_servers_do_not_import_the_engine(command: str, tmp_path: Path) -> None:
    code = "import atexit, sys; atexit.register(lambda: print('faust' in sys.modules)); "
    code += f"from afterword.cli import main; main({command.split()})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | ALL_AWAY,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "False"


def test_command_that_ended_waits_for_nothing() -> None:
    """The database driver, for example, waits for its sleeping threads."""
    code = "import atexit, time; atexit.register(time.sleep, 600); from afterword.__main__ import main; main()"
    for arguments, expected in (["config", "--version"], 2), (["--version"], 0):
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, timeout=300, check=False)
        assert done.returncode == expected
        assert done.stdout or done.stderr


def test_bash_completion_lists_matching_commands() -> None:
    code, out, _ = run(_AFTERWORD_COMPLETE="source_bash")  # what --show-completion prints once it knows the shell
    assert code == 0
    assert out.strip().endswith("-F _afterword_completion afterword")
    code, out, _ = run(_AFTERWORD_COMPLETE="complete_bash", COMP_WORDS="afterword dl", COMP_CWORD="1")
    assert (code, out.split()) == (0, ["dlq"])


def test_port_in_use_is_named_with_a_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, _, said = run("serve", "--port", port, **ALL_AWAY)
    assert code == 1
    remedy = "choose another with --port or AFTERWORD_SERVE__PORT"
    assert said.endswith(f"127.0.0.1:{port}: Address already in use; {remedy}\n")


def test_closed_output_pipe_ends_without_an_error() -> None:
    command = [sys.executable, "-u", "-m", "afterword.cli", "config", "show"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (0, "")


def test_ctrl_c_during_loading_ends_silently(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt")
    command = [sys.executable, "-m", "afterword", "config", "show"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


async def test_context_from_sqlite_imports_only_its_needs(tmp_path: Path) -> None:
    file = SqliteFile(tmp_path / "afterword.sqlite")
    await SqliteMessages(file).put_many([ArchivedMessage(a_message(content="Two seats for Tuesday."), 0, 0)])
    await file.close()
    command = [sys.executable, "-X", "importtime", "-m", "afterword", "context", "c1"]
    environment = os.environ | {"AFTERWORD_SQLITE__PATH": str(file.path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, cwd=tmp_path)  # noqa: ASYNC221 – nothing else runs
    assert "Two seats for Tuesday." in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "afterword.reading.context" in imported
    assert imported.isdisjoint(
        {*HEAVY, "rich.console", "numpy", "httpx", "dateparser"} - {"pydantic", "pydantic_settings"}
    )
