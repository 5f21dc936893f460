"""dphpo-bench: hyperparameter tuning under differential privacy, measured end to end.

    >>> from dphpo_bench import PrivacyBudget, run
    >>> result = run("hyfreedp", "digits", PrivacyBudget(epsilon=3, delta=1e-4), seed=0)  # doctest: +SKIP

Names are loaded on first use, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dphpo_bench.data.arrays import ArrayTask as ArrayTask
    from dphpo_bench.data.image_task import ImageTask as ImageTask
    from dphpo_bench.data.source import DataSource as DataSource
    from dphpo_bench.dp_sgd import DpSgd as DpSgd
    from dphpo_bench.dp_sgd import dp_sgd_event as dp_sgd_event
    from dphpo_bench.dp_sgd import noisy_gradients as noisy_gradients
    from dphpo_bench.dp_sgd import trainable as trainable
    from dphpo_bench.errors import BudgetTooSmallError as BudgetTooSmallError
    from dphpo_bench.errors import DphpoBenchError as DphpoBenchError
    from dphpo_bench.errors import InvalidValueError as InvalidValueError
    from dphpo_bench.errors import OverBudgetError as OverBudgetError
    from dphpo_bench.errors import RunFailedError as RunFailedError
    from dphpo_bench.harness import plan as plan
    from dphpo_bench.harness import run as run
    from dphpo_bench.method import Cost as Cost
    from dphpo_bench.method import Method as Method
    from dphpo_bench.method import Outcome as Outcome
    from dphpo_bench.method import Plan as Plan
    from dphpo_bench.method import Release as Release
    from dphpo_bench.method import SearchMethod as SearchMethod
    from dphpo_bench.parts import held_out as held_out
    from dphpo_bench.privacy.accountants import EpsilonReport as EpsilonReport
    from dphpo_bench.privacy.accountants import epsilon as epsilon
    from dphpo_bench.privacy.budget import PrivacyBudget as PrivacyBudget
    from dphpo_bench.privacy.calibration import calibrate as calibrate
    from dphpo_bench.privacy.calibration import calibrate_roughly as calibrate_roughly
    from dphpo_bench.privacy.events import best_of as best_of
    from dphpo_bench.privacy.events import compose as compose
    from dphpo_bench.privacy.events import first_above as first_above
    from dphpo_bench.privacy.events import gaussian as gaussian
    from dphpo_bench.privacy.events import non_private as non_private
    from dphpo_bench.privacy.events import on_part as on_part
    from dphpo_bench.privacy.events import poisson_sampled as poisson_sampled
    from dphpo_bench.privacy.events import pure as pure
    from dphpo_bench.privacy.events import repeat as repeat
    from dphpo_bench.privacy.run_counts import CappedGeometric as CappedGeometric
    from dphpo_bench.privacy.run_counts import Poisson as Poisson
    from dphpo_bench.privacy.run_counts import RunCount as RunCount
    from dphpo_bench.privacy.run_counts import TruncatedNegativeBinomial as TruncatedNegativeBinomial
    from dphpo_bench.privacy.run_counts import UniformCount as UniformCount
    from dphpo_bench.privacy.run_counts import geometric as geometric
    from dphpo_bench.records import RunRecord as RunRecord
    from dphpo_bench.records import read_record as read_record
    from dphpo_bench.registry import make_method as make_method
    from dphpo_bench.registry import make_task as make_task
    from dphpo_bench.search import Candidate as Candidate
    from dphpo_bench.search import Proposals as Proposals
    from dphpo_bench.session import Scored as Scored
    from dphpo_bench.session import Session as Session
    from dphpo_bench.task import Split as Split
    from dphpo_bench.task import Task as Task
    from dphpo_bench.task import TaskFacts as TaskFacts
    from dphpo_bench.training.averaging import WeightAverage as WeightAverage
    from dphpo_bench.training.clipping import Abadi as Abadi
    from dphpo_bench.training.clipping import AutoS as AutoS
    from dphpo_bench.training.clipping import AutoV as AutoV
    from dphpo_bench.training.clipping import Clipping as Clipping
    from dphpo_bench.training.clipping import parse_clipping as parse_clipping
    from dphpo_bench.training.optimizers import UpdateRule as UpdateRule
    from dphpo_bench.trial import TOGETHER as TOGETHER
    from dphpo_bench.trial import Trained as Trained
    from dphpo_bench.trial import Trial as Trial
    from dphpo_bench.trial import released as released
    from dphpo_bench.trial import search_then_train as search_then_train

_HOMES = {
    "Abadi": "training.clipping",
    "ArrayTask": "data.arrays",
    "AutoS": "training.clipping",
    "AutoV": "training.clipping",
    "BudgetTooSmallError": "errors",
    "Candidate": "search",
    "CappedGeometric": "privacy.run_counts",
    "Clipping": "training.clipping",
    "Cost": "method",
    "DataSource": "data.source",
    "DpSgd": "dp_sgd",
    "DphpoBenchError": "errors",
    "EpsilonReport": "privacy.accountants",
    "ImageTask": "data.image_task",
    "InvalidValueError": "errors",
    "Method": "method",
    "Outcome": "method",
    "OverBudgetError": "errors",
    "Plan": "method",
    "Poisson": "privacy.run_counts",
    "PrivacyBudget": "privacy.budget",
    "Proposals": "search",
    "Release": "method",
    "RunCount": "privacy.run_counts",
    "RunFailedError": "errors",
    "RunRecord": "records",
    "Scored": "session",
    "SearchMethod": "method",
    "Session": "session",
    "Split": "task",
    "TOGETHER": "trial",
    "Task": "task",
    "TaskFacts": "task",
    "Trained": "trial",
    "Trial": "trial",
    "TruncatedNegativeBinomial": "privacy.run_counts",
    "UniformCount": "privacy.run_counts",
    "UpdateRule": "training.optimizers",
    "WeightAverage": "training.averaging",
    "best_of": "privacy.events",
    "calibrate": "privacy.calibration",
    "calibrate_roughly": "privacy.calibration",
    "compose": "privacy.events",
    "dp_sgd_event": "dp_sgd",
    "epsilon": "privacy.accountants",
    "first_above": "privacy.events",
    "gaussian": "privacy.events",
    "geometric": "privacy.run_counts",
    "held_out": "parts",
    "make_method": "registry",
    "make_task": "registry",
    "noisy_gradients": "dp_sgd",
    "non_private": "privacy.events",
    "on_part": "privacy.events",
    "parse_clipping": "training.clipping",
    "plan": "harness",
    "poisson_sampled": "privacy.events",
    "pure": "privacy.events",
    "read_record": "records",
    "released": "trial",
    "repeat": "privacy.events",
    "run": "harness",
    "search_then_train": "trial",
    "trainable": "dp_sgd",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dphpo_bench' has no attribute {name!r}")
    return getattr(import_module(f"dphpo_bench.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
