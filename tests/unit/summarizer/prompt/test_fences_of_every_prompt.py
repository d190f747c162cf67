"""Fences of every prompt: in any template and format, messages stay between the fences, and are data there."""

import re
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afterword.schemas import EpisodeClosed
from afterword.streams.prompt_template import PLACEHOLDERS
from afterword.streams.summarizer.prompt import (
    PLAIN,
    TEMPLATES,
    Template,
    json_prompt,
    long_prompt,
    rolling_prompt,
    short_prompt,
    title_prompt,
)
from afterword.streams.summarizer.summary import SummaryRequest
from afterword_text.fences import UNKNOWN_LANGUAGE, Messages
from afterword_text.language import NAMES
from tests.nasty_texts import TOKENS
from tests.unit.summarizer.conversations import an_episode_of
from tests.unit.summarizer.test_injection import HOSTILE

CUSTOM = (
    "{conversation_text}",
    "{previous_summary}{overlap}{conversation_text}{language}{max_sentences}",
    'Tell {{"this"}} in {language}:\n{conversation_text}\nThat was it. {overlap}',
)
JSON_TEMPLATES = (
    TEMPLATES["episodic"],
    TEMPLATES["focus_points"],
    *(Template("episodic", t, custom=True) for t in CUSTOM),
)
PLAIN_TEMPLATES = (TEMPLATES[PLAIN], *(Template(PLAIN, text, custom=True) for text in CUSTOM))

Prompt = Callable[[EpisodeClosed, str], Messages]
"""Function of an episode and another text that an LLM may have written: the previous summary, or the episode's."""
PROMPTS: dict[str, Prompt] = {
    "short": lambda episode, text: short_prompt(episode, text, None),
    "title": lambda episode, text: title_prompt(episode, text, None),
    "rolling": lambda episode, text: rolling_prompt(episode, text, 300, None),
}


def in_json(template: Template, episode: EpisodeClosed, previous: str) -> Messages:
    return json_prompt(SummaryRequest(episode, previous, 800), template=template)


for number, each in enumerate(JSON_TEMPLATES):
    PROMPTS[f"JSON, {number}"] = partial(in_json, each)
for number, each in enumerate(PLAIN_TEMPLATES):
    PROMPTS[f"plain, {number}"] = partial(long_prompt, each, problem=None)
every_prompt = pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS.keys())
LANGUAGES = re.compile("|".join([UNKNOWN_LANGUAGE, *(name.capitalize() for name in set(NAMES.values()))]))
FEW = settings(max_examples=25, deadline=None)
"""Number of examples of each prompt."""
contents = st.one_of(
    st.text(),
    st.sampled_from([*HOSTILE, *TOKENS, *PLACEHOLDERS, "{conversation_text}", "{fence} {problem} {0} %s"]),
    st.lists(st.sampled_from([*TOKENS, "\n", "----- END TRANSCRIPT ", "0a1b", " -----", "{", "}"])).map("".join),
)


def outside(prompt: Messages) -> str:
    """Text that is not between fences, without their code; a language is only ever one of those that we name."""
    system, user = (message["content"] for message in prompt)
    code = re.search(r"carry the code ([0-9a-f]+)\.", system)
    assert code is not None
    assert system.count(code[1]) == 1
    fenced = re.compile(rf"(----- BEGIN (\w+) {code[1]} -----\n).*?(\n----- END \2 {code[1]} -----)", re.DOTALL)
    skeleton = fenced.sub(r"\1\3", user)
    assert skeleton.count(code[1]) == 2 * len(fenced.findall(user)) > 0
    return LANGUAGES.sub("LANGUAGE", f"{system}\n{skeleton}".replace(code[1], "CODE"))


def an_episode(said: list[str], overlap: list[str]) -> EpisodeClosed:
    episode = an_episode_of(*[("user", text) for text in said])
    return episode.model_copy(update={"overlap": an_episode_of(*[("tool", text) for text in overlap]).messages})


@every_prompt
@FEW
@given(st.lists(contents, min_size=1, max_size=3), st.lists(contents, min_size=1, max_size=2), contents)
def test_messages_change_a_prompt_only_inside_its_fences(
    prompt: Prompt, said: list[str], overlap: list[str], text: str
) -> None:
    told = prompt(an_episode(said, overlap), text)
    assert [message["role"] for message in told] == ["system", "user"]
    assert outside(told) == outside(prompt(an_episode(["Hello."], ["Hi."]), ""))


@every_prompt
@FEW
@given(st.lists(contents, min_size=1, max_size=3), contents)
def test_prompt_has_no_control_token(prompt: Prompt, said: list[str], text: str) -> None:
    contents = [message["content"] for message in prompt(an_episode(said, said), text)]
    assert not any(token in content for token in TOKENS for content in contents)


@pytest.mark.parametrize("text", HOSTILE)
def test_earlier_problem_is_one_line_without_control_tokens(text: str) -> None:
    episode, problem = an_episode(["Hello."], ["Hi."]), f"it names {text}"
    for told in (
        json_prompt(SummaryRequest(episode, "", 800), problem),
        long_prompt(TEMPLATES[PLAIN], episode, "", problem),
        title_prompt(episode, "", problem),
    ):
        (line,) = [line for line in told[1]["content"].splitlines() if "Your previous answer" in line]
        assert "it names" in line
        assert not any(token in line for token in TOKENS)
