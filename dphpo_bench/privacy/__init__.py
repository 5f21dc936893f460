"""Budgets, events, the ledger of releases, and the accountants that turn events into (ε, δ)."""
