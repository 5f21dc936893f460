"""A tuning method and a task that are no part of dphpo-bench."""
