"""Second stage of recall: the best episodes of the index, ranked anew by the messages that answer."""
