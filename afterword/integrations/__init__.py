"""Adapters: Afterword as a part of other frameworks. Each file is one framework's, and needs the extra of its name."""
