"""A model of the OpenAI Agents SDK that asks its tool once, and answers with what the tool said."""

from typing import Any, NoReturn

import orjson
from agents import Model, ModelResponse, TResponseInputItem, Usage
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputItem,
    ResponseOutputMessage,
    ResponseOutputText,
)


class RepeatingModel(Model):
    """Answers with the last tool's output; without tools with the number of items that it was given."""

    def __init__(self) -> None:
        self.given: list[list[TResponseInputItem]] = []

    async def get_response(self, *given: Any, **named: Any) -> ModelResponse:
        _, items, _, tools, *_ = given or (None, named["input"], None, named["tools"])
        self.given.append(items)
        return ModelResponse(output=[self._output(items, tools)], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError

    def _output(self, items: list[Any], tools: list[Any]) -> ResponseOutputItem:
        last = items[-1]
        if tools and last.get("type") != "function_call_output":
            return ResponseFunctionToolCall(
                type="function_call",
                call_id=f"call_{len(self.given)}",
                name=tools[0].name,
                arguments=orjson.dumps({"query": last["content"]}).decode(),
            )
        text = last["output"] if tools else f"I was given {len(items)} items."
        return ResponseOutputMessage(
            id="__fake_id__",  # as the SDK's own models for other servers
            type="message",
            role="assistant",
            status="completed",
            content=[ResponseOutputText(type="output_text", text=text, annotations=[])],
        )
