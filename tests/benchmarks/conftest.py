"""Benchmarks run when asked for."""

import pytest


@pytest.fixture(autouse=True)
def only_when_enabled(request):
    if not request.config.getoption("benchmark_enable", False):
        pytest.skip("times mean something with --benchmark-enable only")
