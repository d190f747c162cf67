"""Findings about sources."""

from pathlib import Path

import pytest

from afterword.operating.checks import check_sources
from afterword.streams.errors import ConfigurationError
from afterword.streams.settings import Settings
from tests.unit.streams.ingest.records import FIELDS


@pytest.mark.parametrize("form", ["avro", "protobuf"])
async def test_check_finds_a_source_that_needs_a_registry(form: str, tmp_path: Path) -> None:
    file = tmp_path / "afterword.toml"
    file.write_text(f'[[sources]]\ntopics = ["chat"]\nformat = "{form}"\n[sources.map]\n{FIELDS}')
    with pytest.raises(ConfigurationError, match=f"AFTERWORD_REGISTRY__URL: a source with the format {form} needs it"):
        await check_sources(Settings(ingest={"file": file}))
