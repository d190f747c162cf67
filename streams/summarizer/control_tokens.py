"""Control tokens, which structure a chat for a model: inside a text they could open a turn of their own."""

import re

from afterword.streams.visible import without_hidden

_CONTROL_TOKEN = re.compile(
    r"<[|｜][^<>|｜\s]{1,64}[|｜]>"  # ChatML, Llama 3 and 4, Phi, Command R, DeepSeek: <|im_start|>, <|eot_id|> …
    r"|</?s>|<</?SYS>>|\[/?INST\]"  # Llama 2, Mistral
    r"|\[/?(?:SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|THINK|ARGS|CALL_ID)\]"  # Mistral
    r"|<(?:start_of_turn|end_of_turn|start_of_image|end_of_image|bos|eos|pad|unk|mask)>"  # Gemma
    r"|\[[|｜][A-Za-z_]{1,32}[|｜]\]"  # EXAONE: [|system|], [|endofturn|]
    r"|</?(?:think|tools?|tool_calls?|tool_response|function_calls?)>"  # DeepSeek, Qwen, Hermes
    r"|\[gMASK\]|<[se]op>|</?arg_(?:key|value)>"  # GLM
    r"|\]~!?b[\[\]]|\[e~\[|</?minimax:tool_call>"  # MiniMax
    r"|</?seed:[a-z_]{1,32}>"  # Seed
)


def strip_control_tokens(text: str) -> str:
    """Replace each control token by a space, and remove what nobody sees: it could hide words, or split a token.

    No control token contains a space, so the text around a removed one cannot join into another.
    """
    return _CONTROL_TOKEN.sub(" ", without_hidden(text))
