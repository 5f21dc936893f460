"""One run: plan, execute, verify, record."""
