"""Serves the memory over HTTP. `server.py` puts it together, and each subject has its routes in a file of its own."""
