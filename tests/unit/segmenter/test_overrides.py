"""A conversation may have settings of its own, sent in a message's metadata."""

from typing import Any

import orjson
import pytest
from structlog.testing import capture_logs

from afterword.streams.segmenter.processor import MAX_OVERRIDES_BYTES, OVERRIDABLE, Rulebook
from afterword.streams.settings import Episodes
from tests.rows import with_rows
from tests.unit.segmenter.chat import DEAD_LETTERS, Chat, check_steps, flush, limits, say


def override(message_id: str, given: object, **fields: object):
    return say(message_id, metadata={"afterword": given}, **fields)


@with_rows
def test_overrides_close_the_episodes_of_their_example(rule: str, changed: dict[str, Any], steps: list[Any]) -> None:
    check_steps(rule, changed, steps)


class TestTheyAreValidated:
    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ("often", "metadata.afterword: must be an object"),
            ([1], "metadata.afterword: must be an object"),
            (1, "metadata.afterword: must be an object"),
            *((empty, "metadata.afterword: must be an object") for empty in ([], "", 0, False)),
            ({"canary": 1}, f"metadata.afterword: may have {', '.join(OVERRIDABLE)}, and nothing else"),
            ({"overlap": 1}, f"metadata.afterword: may have {', '.join(OVERRIDABLE)}, and nothing else"),
            ({"trigger": {"any": [{"canary": 1}]}}, "metadata.afterword.trigger: any[0]: unknown condition"),
            ({"trigger": 0}, "metadata.afterword.trigger: messages: must be a whole number of at least 1"),
            ({"auto_summarize": "canary"}, "metadata.afterword.auto_summarize: Input should be a valid boolean"),
            ({"idle_seconds": 0}, "metadata.afterword.idle_seconds: Input should be greater than 0"),
            ({"min_episode_size": 7, "max_episode_size": 2},
             "metadata.afterword: min_episode_size (7) is larger than max_episode_size (2)"),
            ({"trigger": [{"turns": 1}] * 200},
             f"metadata.afterword: 2413 bytes of JSON, at most {MAX_OVERRIDES_BYTES}"),
        ],
    )  # fmt: skip
    def test_wrong_overrides_are_dead_lettered_with_a_reason(self, given, said):
        chat = Chat()
        with capture_logs() as logs:
            outcome = chat.process([say("a"), override("b", given), say("c"), flush()])
        assert outcome.dead_letters == {"invalid_override": 1}
        assert outcome.messages == 2
        letter = next(o for o in outcome.outgoing if o.topic == DEAD_LETTERS)
        assert dict(letter.headers)["__afterword.errors.message"].decode().startswith(said)
        assert orjson.loads(letter.value)["id"] == "b"
        assert "canary" not in str(logs) + str(letter.headers)

    def test_refused_message_sets_no_overrides(self):
        chat = Chat()
        refused = [
            override("b", {"trigger": 1, "overlap": 1}),
            override("c", {"trigger": 1}, flows=["f" * 600_000]),
            override("d", {"trigger": 1}, tenant_id="evil"),
        ]
        assert chat.process([say("a"), *refused, say("e")]).episodes == {}

    def test_every_override_is_a_setting(self):
        assert set(OVERRIDABLE) < set(Episodes.model_fields)

    def test_overrides_unfit_for_a_later_deployment_are_ignored(self):
        taken = Rulebook(limits(min_episode_size=1)).read({"afterword": {"max_episode_size": 2}}, "")
        later = Rulebook(limits(min_episode_size=5))
        with capture_logs() as logs:
            assert later.rules(taken) == later.rules("")
        assert [(entry["error_type"], entry["stage"]) for entry in logs] == [("invalid_override", "segmenter")]
