"""Names of the segmenter's tables; each has a changelog topic of its own."""

CONVERSATIONS = "conversations"
MESSAGES = "messages"
TABLES = (CONVERSATIONS, MESSAGES)
