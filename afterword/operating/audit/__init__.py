"""Audits the delivery promise: every message is in one episode, and every episode is stored once and announced."""

from afterword.operating.audit.judge import Finding, Report, run

__all__ = ["Finding", "Report", "run"]
