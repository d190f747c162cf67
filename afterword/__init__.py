"""The command line, and the embedded stack for laptops and tests."""
