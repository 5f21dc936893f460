"""The only door to private data."""
