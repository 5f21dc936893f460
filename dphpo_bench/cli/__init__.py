"""The command line: everything that prints."""
