"""Webhooks: `summary.created` and `summary.deleted` → HTTP endpoints, as Standard Webhooks."""
