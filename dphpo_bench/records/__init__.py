"""Records of runs: writing, reading, tables."""
