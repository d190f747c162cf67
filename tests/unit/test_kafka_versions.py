"""The brokers that tests can run on: AFTERWORD_TEST_KAFKA chooses one."""

from collections import Counter

import pytest

from afterword.embedded.java import locked_jars
from tests.stack import KAFKA_LOCKS, KAFKA_VARIABLE, chosen_jars
from tools.lock_jars import KAFKA, TESTED_KAFKAS

BROKER = "kafka_2.13"


def test_there_is_a_lock_for_each_version() -> None:
    assert {file.stem for file in KAFKA_LOCKS.glob("*.lock")} == set(TESTED_KAFKAS)


def test_by_default_the_broker_is_the_one_that_is_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KAFKA_VARIABLE, raising=False)
    assert chosen_jars() == locked_jars()
    monkeypatch.setenv(KAFKA_VARIABLE, KAFKA)
    assert chosen_jars() == locked_jars()


@pytest.mark.parametrize("version", TESTED_KAFKAS)
def test_another_version_replaces_the_broker_and_nothing_else(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setenv(KAFKA_VARIABLE, version)
    jars = chosen_jars()
    assert [jar.version for jar in jars if jar.artifact == BROKER] == [version]
    brokers = Counter((jar.group, jar.artifact) for jar in jars if "kafka" in jar.used_by.split(","))
    assert set(brokers.values()) == {1}, "one version of each on the classpath"
    shipped = {jar.file_name for jar in locked_jars() if "mongo" in jar.used_by}
    assert {jar.file_name for jar in jars if "mongo" in jar.used_by} == shipped


def test_an_unknown_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KAFKA_VARIABLE, "1.0.0")
    with pytest.raises(FileNotFoundError, match=r"1\.0\.0\.lock"):
        chosen_jars()
