"""An exactly-once, micro-batching engine under faust-streaming, built on Faust's own plug-in points: see README.md.

This package imports none of its modules, so that commands which only read rows or lag do not load Faust, which is slow.
"""
