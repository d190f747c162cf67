"""What each kind of key may read, and that it changes nothing of others: a request a row."""

from typing import Any

from tests.rows import with_rows
from tests.unit.afterword.serving.served import serving
from tests.unit.afterword.serving.test_reading import Holder, a_conversation


@with_rows
async def test_request_is_answered_as_its_key_allows(
    sentence: str, holder: dict[str, Any], method: str, path: str, body: Any, status: int, is_shown: bool
) -> None:
    async with serving(Holder(**holder | {"scopes": frozenset(holder.get("scopes", ["read"]))}), auth="keys") as served:
        await a_conversation(served)
        answer = await served.client.request(method, path, json=body)
        assert (answer.status_code, "Rome" in answer.text) == (status, is_shown)
        assert (served.broker.records, served.eraser.erasures.erasures) == ([], {})
