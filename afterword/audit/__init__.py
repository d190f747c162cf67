"""Audit of the delivery promise: every message in one episode, every episode stored once and announced."""

from afterword.audit.report import Finding, FindingKind, Report
from afterword.audit.run import run

__all__ = ["Finding", "FindingKind", "Report", "run"]
