"""A secret in every setting that takes one, failing servers, logs at DEBUG: none of them is ever printed."""

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aiohttp import web

from afterword.streams.settings import FILE_SUFFIX, Settings, is_secret, locations, variable
from tests.certificates import Authority
from tests.e2e.deployment import Deployment, deployed
from tests.endpoints import serving

CANARY = "canary-bird-number-7"
AWAY = "127.0.0.1:9"
SECONDS = 200
MESSAGE = '{"id":"1","conversation_id":"d","user_id":"u","role":"user","content":"a"}\n'
"""A busy machine takes a minute to start a process."""
COMMANDS = [
    ["check"],
    ["topics", "create"],
    ["produce", "{messages}"],
    ["watch"],
    ["context", "c"],
    ["audit"],
    ["worker", "segmenter"],
    ["worker", "summarizer"],
    ["worker", "archiver"],
    ["config", "show"],
    ["--help"],
]
WRONG = [
    {"AFTERWORD_KAFKA__PARTITIONS": "many"},
    {"AFTERWORD_KAFKA": f'{{"password": "{CANARY}"'},
    {"AFTERWORD_LLM": f'{{"attempts": "{CANARY}"}}'},
    {"AFTERWORD_KAFKA__SECURITY_PROTOCOL": "PLAINTEXT"},
    {"AFTERWORD_KAFKA__OAUTH_TOKEN_ENDPOINT": f"https://u:{CANARY}@h/"},
    {"AFTERWORD_MONGO__URI": f"mongodb://u:{CANARY}"},
    {"AFTERWORD_MONGO__URI": f"mongodb://u:p@h/?readPreference={CANARY}"},
    {"AFTERWORD_MONGO__URI": f"mongodb://u:p@h/?tlsCAFile=/{CANARY}"},
]


def with_password(authority: Authority) -> dict[str, str]:
    """Return settings that are valid until a server is contacted."""
    signed = authority.sign("client", password=CANARY)
    return {
        "AFTERWORD_LOGS__LEVEL": "DEBUG",
        "AFTERWORD_KAFKA__BOOTSTRAP_SERVERS": AWAY,
        "AFTERWORD_KAFKA__SECURITY_PROTOCOL": "SASL_SSL",
        "AFTERWORD_KAFKA__SASL_MECHANISM": "SCRAM-SHA-256",
        "AFTERWORD_KAFKA__USERNAME": "u",
        "AFTERWORD_KAFKA__PASSWORD": CANARY,
        "AFTERWORD_KAFKA__SSL_CERT_FILE": str(signed.both),
        "AFTERWORD_KAFKA__SSL_KEY_PASSWORD": CANARY,
        "AFTERWORD_MONGO__URI": f"mongodb://u:{CANARY}@{AWAY}/?authSource=admin&tls=true"
        f"&tlsCertificateKeyFile={signed.both}&tlsCertificateKeyFilePassword={CANARY}",
        "AFTERWORD_QDRANT__URL": f"https://{AWAY}",
        "AFTERWORD_QDRANT__API_KEY": CANARY,
        "AFTERWORD_LLM__PROVIDER": "openai",
        "AFTERWORD_LLM__MODEL": "m",
        "AFTERWORD_LLM__BASE_URL": f"https://u:{CANARY}@{AWAY}/v1",
        "AFTERWORD_LLM__API_KEY": CANARY,
        "AFTERWORD_EMBEDDER__PROVIDER": "ollama",
        "AFTERWORD_EMBEDDER__MODEL": "m",
        "AFTERWORD_EMBEDDER__BASE_URL": f"https://u:{CANARY}@{AWAY}/v1",
        "AFTERWORD_EMBEDDER__API_KEY": CANARY,
        "AFTERWORD_RERANKER__BASE_URL": f"https://u:{CANARY}@{AWAY}/v1",
        "AFTERWORD_RERANKER__API_KEY": CANARY,
        "AFTERWORD_SERVE__COOKIE_SECRET": CANARY,
        "AFTERWORD_REGISTRY__USERNAME": "u",
        "AFTERWORD_REGISTRY__PASSWORD": CANARY,
    }


def with_token(environment: dict[str, str]) -> dict[str, str]:
    others = {
        name: value for name, value in environment.items() if not name.endswith(("KAFKA__USERNAME", "KAFKA__PASSWORD"))
    }
    return others | {
        "AFTERWORD_KAFKA__SASL_MECHANISM": "OAUTHBEARER",
        "AFTERWORD_KAFKA__OAUTH_TOKEN_ENDPOINT": f"https://{AWAY}/token",
        "AFTERWORD_KAFKA__OAUTH_CLIENT_ID": "id",
        "AFTERWORD_KAFKA__OAUTH_CLIENT_SECRET": CANARY,
    }


def in_files(environment: dict[str, str], directory: Path) -> dict[str, str]:
    """Return the same settings with every secret in a file."""
    directory.mkdir()
    moved = dict(environment)
    for name in secret_variables():
        if name in moved:
            (directory / name).write_text(moved.pop(name) + "\n")
            moved[name + FILE_SUFFIX] = str(directory / name)
    return moved


def secret_variables() -> Iterator[str]:
    return (variable(location) for location, field in locations(Settings) if is_secret(field))


@pytest.fixture
def environments(tmp_path: Path) -> list[dict[str, str]]:
    password = with_password(Authority(tmp_path))
    token = with_token(password)
    return [password, token, in_files(password, tmp_path / "files")]


async def output_of(arguments: list[str], environment: dict[str, str], directory: Path) -> tuple[int, str]:
    """Return the exit code and everything printed."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("AFTERWORD_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "afterword", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=ours | environment | {"AFTERWORD_STATE_DIR": str(directory / "state")},
    )
    async with asyncio.timeout(SECONDS):
        out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode()


def test_every_secret_setting_holds_a_canary(environments: list[dict[str, str]]) -> None:
    held = {name for environment in environments for name, value in environment.items() if CANARY in value}
    assert set(secret_variables()) <= held


@pytest.mark.nightly
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
async def test_no_command_prints_a_secret(
    command: list[str], environments: list[dict[str, str]], tmp_path: Path
) -> None:
    (tmp_path / "messages.jsonl").write_text(MESSAGE)
    arguments = [part.format(messages=tmp_path / "messages.jsonl") for part in command]
    runs = [output_of(arguments, environment, tmp_path) for environment in environments]
    for code, printed in await asyncio.gather(*runs):
        assert CANARY not in printed
        assert "Traceback" not in printed, printed
        assert code in (0, 1), printed


@pytest.mark.nightly
@pytest.mark.parametrize("wrong", WRONG, ids=str)
async def test_wrong_setting_is_named_without_a_secret(
    wrong: dict[str, str], environments: list[dict[str, str]], tmp_path: Path
) -> None:
    code, printed = await output_of(["context", "c"], environments[0] | wrong, tmp_path)
    assert code == 2, printed
    assert printed.splitlines()[-1].startswith("afterword: AFTERWORD_")
    assert CANARY not in printed


@pytest.mark.nightly
async def test_worker_hides_the_api_key_quoted_by_its_llm(
    make_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    async def refuse(request: web.Request) -> web.Response:
        quoted = request.headers["authorization"]
        return web.json_response({"error": {"message": f"bad key {quoted}", "code": quoted}}, status=400)

    async with serving(refuse, "POST", "/chat/completions") as url:
        llm = {"provider": "openai", "model": "m", "base_url": url, "api_key": CANARY, "attempts": 1}
        settings = make_settings(kafka={"partitions": 1}, llm=llm, logs={"level": "DEBUG"})
        async with deployed(settings, tmp_path) as deployment:
            await _summarised(deployment)
            logs = deployment.logs("summarizer") + deployment.logs("segmenter") + deployment.logs("archiver")
    assert CANARY not in logs


async def _summarised(deployment: Deployment) -> None:
    for role in ("segmenter", "summarizer", "archiver"):
        deployment.start(role)
    await deployment.produce([b'{"id":"d","dialogue":"user: Hello.[NEWLINE]assistant: Hello."}'])
    report = await deployment.audit()
    assert report.summaries["announced"] == 1, list(report.lines())
