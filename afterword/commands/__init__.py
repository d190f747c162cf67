"""The commands of the command line, grouped by subject."""
