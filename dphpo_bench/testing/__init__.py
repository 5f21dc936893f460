"""The contracts of methods and tasks, as tests to inherit: one fixture, and all of them run on a plug-in.

    class TestMine(MethodContract):
        @pytest.fixture
        def method(self):
            return Mine()

The tests are plain functions that take the plug-in; pytest runs them, and so does `dphpo-bench check` without it.
"""

from dphpo_bench.testing.method_contract import MethodContract
from dphpo_bench.testing.runs import ContractError
from dphpo_bench.testing.small_tasks import Blobs, Excerpt
from dphpo_bench.testing.task_contract import TaskContract

__all__ = ["Blobs", "ContractError", "Excerpt", "MethodContract", "TaskContract"]
