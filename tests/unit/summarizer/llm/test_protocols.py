"""The table of chat protocols."""

from typing import get_args

from afterword.streams.settings import Llm
from afterword.streams.summarizer.llm.client import PROTOCOLS


def test_every_provider_that_the_settings_allow_is_in_the_table_under_its_own_name() -> None:
    allowed = set(get_args(Llm.model_fields["provider"].annotation)) - {"extractive"}
    assert set(PROTOCOLS) == allowed
    assert {name: protocol.name for name, protocol in PROTOCOLS.items()} == {name: name for name in allowed}
