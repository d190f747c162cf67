"""`python -m afterword`: the command line."""

from afterword.cli import main

main()
