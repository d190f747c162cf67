"""Findings about the brokers' limits and about sources."""

from pathlib import Path

import pytest

from afterword.operating.checks import CheckFailed, check_sources, metadata_limits
from afterword.streams.errors import ConfigurationError
from afterword.streams.settings import Settings
from tests.unit.streams.ingest.records import FIELDS

NOT_PERMITTED = 31
NEEDED = 4096


def a_broker(name: str, limit: int) -> tuple[object, ...]:
    return 0, None, 4, name, [("offset.metadata.max.bytes", str(limit), False, 5, False, [])]


def test_the_smallest_limit_is_told() -> None:
    assert metadata_limits([a_broker("1", 8192), a_broker("2", NEEDED)], NEEDED) == "offset.metadata.max.bytes is 4096"


def test_a_broker_with_too_little_room_is_named_with_what_it_has() -> None:
    with pytest.raises(CheckFailed) as failed:
        metadata_limits([a_broker("1", NEEDED), a_broker("2", NEEDED - 1)], NEEDED)
    assert str(failed.value) == "offset.metadata.max.bytes of broker 2 is 4095; summarizers commit up to 4096"


def test_a_limit_that_may_not_be_read_is_said_to_be_needed_and_hides_no_other_that_is_too_small() -> None:
    unread = (NOT_PERMITTED, "", 4, "1", [])
    told = metadata_limits([unread, a_broker("2", NEEDED)], NEEDED)
    assert "must be at least 4096, but cannot be read from broker 1" in told
    with pytest.raises(CheckFailed, match="of broker 2 is 1"):
        metadata_limits([unread, a_broker("2", 1)], NEEDED)


@pytest.mark.parametrize("form", ["avro", "protobuf"])
async def test_a_source_that_needs_a_registry_is_found_before_the_worker_refuses_it(form: str, tmp_path: Path) -> None:
    file = tmp_path / "afterword.toml"
    file.write_text(f'[[sources]]\ntopics = ["chat"]\nformat = "{form}"\n[sources.map]\n{FIELDS}')
    with pytest.raises(ConfigurationError, match=f"AFTERWORD_REGISTRY__URL: a source with the format {form} needs it"):
        await check_sources(Settings(ingest={"file": file}))
