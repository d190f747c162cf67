"""Serves the memory over HTTP. `app.py` puts it together, and each subject has its routes in a file of its own."""
