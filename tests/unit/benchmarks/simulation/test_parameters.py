"""What the model is told."""

import re
from pathlib import Path

import pytest

from afterword.streams.settings import Settings, locations, variable
from benchmarks.simulation.__main__ import main
from benchmarks.simulation.parameters import ASSUMED, DEFAULT, EXAMPLE, Parameters, changed, listed

ROOT = Path(__file__).parents[4]
FILE = re.compile(r"^([\w/.-]+\.(?:md|py|yaml))")


def test_every_parameter_says_where_it_is_from() -> None:
    for one in listed(Parameters()):
        known = FILE.match(one.source)
        assert one.source.startswith((ASSUMED, EXAMPLE, DEFAULT, "python -m", "Kafka's", "the row")) or known, one
        assert known is None or (ROOT / known.group(1)).exists(), one


def test_defaults_are_those_of_the_settings() -> None:
    known = {variable(location): field.default for location, field in locations(Settings)}
    for one in listed(Parameters()):
        named = re.search(r"AFTERWORD_\w+", one.source)
        if named and one.name != "linger_seconds":
            assert known[named.group()] == one.value, one
    assert known["AFTERWORD_ENGINE__LINGER_MS"] == Parameters().linger_seconds * 1000


def test_a_name_that_is_none_is_refused() -> None:
    assert changed(Parameters(), {"trigger": 5}).trigger == 5
    with pytest.raises(ValueError, match="no parameter of the model: nonsense"):
        changed(Parameters(), {"nonsense": 1})


def test_the_command_prints_them(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--parameters", "--set", "trigger=7"])
    assert "trigger = 7 messages" in capsys.readouterr().out


def test_the_command_refuses_an_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--parameters", "--set", "nonsense=7"])
    assert "nonsense" in capsys.readouterr().err
