"""Faults, injected into whole deployments: `python -m tests.e2e.faults --help`."""
