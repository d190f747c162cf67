"""A small model of the whole path: what it costs at any load, and what comes first to its end.

`parameters` is what the model is told, `capacity` the formulas, `segmenting` and `summarizing` the queues,
`validation` the comparison with what was measured on one machine.
"""
