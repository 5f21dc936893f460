"""What is kept of runs: writing, reading, tables."""
