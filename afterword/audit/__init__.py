"""Audit of the delivery promise: every message in one episode, every episode stored once and announced."""

from afterword.audit.report import Finding, Report
from afterword.audit.run import run

__all__ = ["Finding", "Report", "run"]
