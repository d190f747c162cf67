"""A conversation may have settings of its own, sent in a message's metadata."""

import orjson
import pytest
from structlog.testing import capture_logs

from afterword.streams.segmenter.processor import MAX_OVERRIDES_BYTES, OVERRIDABLE, Rulebook
from afterword.streams.settings import Episodes
from tests.unit.segmenter.chat import DEAD_LETTERS, Chat, closed, flush, limits, say, says


def override(message_id: str, given: object, **fields: object):
    return say(message_id, metadata={"afterword": given}, **fields)


CONDITIONS = {"trigger": {"all": [{"turns": 2}, {"text_bytes": 4}]}}


class TestTheyHold:
    @pytest.mark.parametrize(
        ("changed", "talk", "found"),
        [
            ({}, [*says("a", "b"), override("c", {"trigger": 3}), *says(*"def")], ["a b c", "d e f"]),
            ({}, [override("a", CONDITIONS), say("b"), say("c", "xx")], ["a b c"]),
            ({"trigger": 4}, [override("a", {"auto_summarize": False}), override("b", {"trigger": 2})], ["a b"]),
            (
                {"trigger": 2},
                [override("a", {"auto_summarize": False}), *says("b", "c"), override("d", {})],
                ["a b c d"],
            ),
        ],
    )
    def test_overrides_apply_until_others_replace_them(self, changed, talk, found):
        assert closed(Chat(limits(**changed)).hear(*talk)) == [(ids, "trigger") for ids in found]

    def test_overrides_apply_to_their_conversation_only(self):
        chat = Chat()
        assert closed(chat.hear(override("a", {"trigger": 1}))) == [("a", "trigger")]
        assert chat.hear(say("a", conversation_id="other")) == []

    def test_overrides_may_set_sizes_and_silence(self):
        chat = Chat()
        chat.hear(override("a", {"idle_seconds": 10, "max_episode_size": 2}))
        assert closed(chat.hear(say("b"), say("c", at=11))) == [("a b", "max_size")]
        assert closed(chat.wait(10)) == [("c", "idle")]

    def test_overrides_apply_to_all_agents_of_the_conversation(self):
        chat = Chat(limits(scope="agent"))
        chat.hear(override("a", {"trigger": 2}, agent_id="x"))
        found = chat.hear(say("b", agent_id="y"), say("c", agent_id="y"), say("d", agent_id="x"))
        assert [(e.agent_id, e.message_count) for e in found] == [("y", 2), ("x", 2)]

    def test_skipped_and_repeated_messages_set_no_overrides(self):
        chat = Chat()
        again = override("a", {"trigger": 1})
        assert chat.hear(say("a"), again, override("s", {"trigger": 1}, skip_summarization=True), say("b")) == []


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
