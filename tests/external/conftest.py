"""Loops that repeat their draws, which no two loops outside of tests do."""

import pytest

from dphpo_bench.harness.journal import NONCE, Journal


@pytest.fixture
def one_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give all runs the same number, so that loops at one seed have the same draws."""
    monkeypatch.setattr(Journal, "nonce", lambda journal: journal.once(NONCE, lambda: 12))  # searches of several trials
