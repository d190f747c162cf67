"""How the rankings of a search become one: weighted reciprocal rank fusion, as Qdrant computes it.

Score of a document, the sum over the rankings of 1 / ((rank + 1) / weight + K − 1), ranks from 0: Cormack, Clarke and
Büttcher, "Reciprocal Rank Fusion outperforms Condorcet and individual Rank Learning Methods" (2009), with weights as in
Qdrant's documentation of hybrid queries.

The weights are the best of 21 on one half of the questions that `make quality` asks; it prints both halves. K was
chosen on all of them. The dense vector must not hurt, and the summary is for words that are in no message, which only
an LLM writes.
"""

SUMMARY = "summary"
TEXT = "text"
DENSE = "dense"

K = 1
WEIGHTS = {TEXT: 6.0, SUMMARY: 1.0, DENSE: 0.3}
DEPTH = 50
"""How far down each ranking is looked."""
