"""Webhooks: posts `summary.created` and `summary.deleted` to HTTP endpoints, as Standard Webhooks."""
