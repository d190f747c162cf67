"""Redaction: personal data and secrets in texts, replaced by placeholders. Pure, linear in the text's size."""
