"""Loops that repeat their draws, which no two loops outside of tests do."""

import pytest


@pytest.fixture
def one_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the secrets of all runs from one number, so that two loops have the same draws, of several trials."""
    monkeypatch.setattr("dphpo_bench.external.declared.secrets.randbits", lambda _: 2)
