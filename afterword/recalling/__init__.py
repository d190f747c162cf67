"""The second stage of recall: the index's best episodes, ranked again by the messages that answer the query."""
