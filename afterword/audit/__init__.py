"""Audits the delivery promise: every message is in one episode, and every episode is stored once and announced."""

from afterword.audit.report import Finding, Report
from afterword.audit.run import run

__all__ = ["Finding", "Report", "run"]
