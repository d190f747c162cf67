"""A conversation as one ChatML text, for servers that have no chat template of the model."""

from afterword.streams.summarizer.prompt import Messages

STOP = ["<|im_end|>", "<|im_start|>", "<|endoftext|>"]
"""Where the answer ends, also for a model that goes on with the next turn."""


def chatml(messages: Messages) -> str:
    """Ends where the assistant is to begin. What was said holds no control token any more: prompts are made so."""
    turns = "".join(f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in messages)
    return f"{turns}<|im_start|>assistant\n"
