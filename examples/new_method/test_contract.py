"""The contract of every method, run on this one. Tests of your own go below."""

import pytest
from coarse_then_fine import CoarseThenFine

from dphpo_bench.testing import MethodContract


class TestContract(MethodContract):
    """Tests that dphpo-bench check runs."""

    @pytest.fixture
    def method(self) -> CoarseThenFine:
        return CoarseThenFine()
