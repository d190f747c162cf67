"""Redaction: replaces personal data and secrets in texts with placeholders. Pure, and linear in the text's size."""
