"""The web page of `afterword serve`. Each screen has its routes in a file."""
