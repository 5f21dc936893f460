"""dphpo-bench: hyperparameter tuning under differential privacy, measured end to end.

    >>> from dphpo_bench import PrivacyBudget, run
    >>> result = run("hyfreedp", "digits", PrivacyBudget(epsilon=3, delta=1e-4), seed=0)  # doctest: +SKIP

Names are loaded on first use, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dphpo_bench.base.errors import BudgetTooSmallError as BudgetTooSmallError
    from dphpo_bench.base.errors import DphpoBenchError as DphpoBenchError
    from dphpo_bench.base.errors import InvalidValueError as InvalidValueError
    from dphpo_bench.base.errors import OverBudgetError as OverBudgetError
    from dphpo_bench.base.errors import RunFailedError as RunFailedError
    from dphpo_bench.contract.method import Cost as Cost
    from dphpo_bench.contract.method import Method as Method
    from dphpo_bench.contract.method import Outcome as Outcome
    from dphpo_bench.contract.method import Plan as Plan
    from dphpo_bench.contract.method import Release as Release
    from dphpo_bench.contract.registry import make_method as make_method
    from dphpo_bench.contract.registry import make_task as make_task
    from dphpo_bench.contract.search_space import Candidate as Candidate
    from dphpo_bench.contract.search_space import Proposals as Proposals
    from dphpo_bench.data.records import Records as Records
    from dphpo_bench.contract.metrics import Metric as Metric
    from dphpo_bench.contract.task import Input as Input
    from dphpo_bench.contract.task import Task as Task
    from dphpo_bench.contract.task import TaskFacts as TaskFacts
    from dphpo_bench.data.source import DataSource as DataSource
    from dphpo_bench.harness.plan import plan as plan
    from dphpo_bench.harness.run import run as run
    from dphpo_bench.privacy.accountants.report import EpsilonReport as EpsilonReport
    from dphpo_bench.privacy.accountants.report import epsilon as epsilon
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
    from dphpo_bench.privacy.holdout import held_out as held_out
    from dphpo_bench.privacy.run_counts import CappedGeometric as CappedGeometric
    from dphpo_bench.privacy.run_counts import Poisson as Poisson
    from dphpo_bench.privacy.run_counts import RunCount as RunCount
    from dphpo_bench.privacy.run_counts import TruncatedNegativeBinomial as TruncatedNegativeBinomial
    from dphpo_bench.privacy.run_counts import UniformCount as UniformCount
    from dphpo_bench.privacy.run_counts import geometric as geometric
    from dphpo_bench.recipes.array_task import ArrayTask as ArrayTask
    from dphpo_bench.recipes.dp_sgd import DpSgd as DpSgd
    from dphpo_bench.recipes.dp_sgd import dp_sgd_event as dp_sgd_event
    from dphpo_bench.recipes.dp_sgd import noisy_gradients as noisy_gradients
    from dphpo_bench.recipes.dp_sgd import trainable as trainable
    from dphpo_bench.recipes.image_task import ImageTask as ImageTask
    from dphpo_bench.recipes.search_method import SearchMethod as SearchMethod
    from dphpo_bench.recipes.trial import TOGETHER as TOGETHER
    from dphpo_bench.recipes.trial import Trained as Trained
    from dphpo_bench.recipes.trial import Trial as Trial
    from dphpo_bench.recipes.trial import released as released
    from dphpo_bench.recipes.trial import search_then_train as search_then_train
    from dphpo_bench.records.record import RunRecord as RunRecord
    from dphpo_bench.records.store import read_record as read_record
    from dphpo_bench.session.selection import Scored as Scored
    from dphpo_bench.session.session import Session as Session
    from dphpo_bench.training.averaging import WeightAverage as WeightAverage
    from dphpo_bench.training.clipping import Abadi as Abadi
    from dphpo_bench.training.clipping import AutoS as AutoS
    from dphpo_bench.training.clipping import AutoV as AutoV
    from dphpo_bench.training.clipping import Clipping as Clipping
    from dphpo_bench.training.clipping import parse_clipping as parse_clipping
    from dphpo_bench.training.optimizers import UpdateRule as UpdateRule

_HOMES = {
    "Abadi": "training.clipping",
    "ArrayTask": "recipes.array_task",
    "AutoS": "training.clipping",
    "AutoV": "training.clipping",
    "BudgetTooSmallError": "base.errors",
    "Candidate": "contract.search_space",
    "CappedGeometric": "privacy.run_counts",
    "Clipping": "training.clipping",
    "Cost": "contract.method",
    "DataSource": "data.source",
    "DpSgd": "recipes.dp_sgd",
    "DphpoBenchError": "base.errors",
    "EpsilonReport": "privacy.accountants.report",
    "ImageTask": "recipes.image_task",
    "Input": "contract.task",
    "InvalidValueError": "base.errors",
    "Method": "contract.method",
    "Metric": "contract.metrics",
    "Outcome": "contract.method",
    "OverBudgetError": "base.errors",
    "Plan": "contract.method",
    "Poisson": "privacy.run_counts",
    "PrivacyBudget": "privacy.budget",
    "Proposals": "contract.search_space",
    "Release": "contract.method",
    "RunCount": "privacy.run_counts",
    "RunFailedError": "base.errors",
    "RunRecord": "records.record",
    "Scored": "session.selection",
    "SearchMethod": "recipes.search_method",
    "Session": "session.session",
    "Records": "data.records",
    "TOGETHER": "recipes.trial",
    "Task": "contract.task",
    "TaskFacts": "contract.task",
    "Trained": "recipes.trial",
    "Trial": "recipes.trial",
    "TruncatedNegativeBinomial": "privacy.run_counts",
    "UniformCount": "privacy.run_counts",
    "UpdateRule": "training.optimizers",
    "WeightAverage": "training.averaging",
    "best_of": "privacy.events",
    "calibrate": "privacy.calibration",
    "calibrate_roughly": "privacy.calibration",
    "compose": "privacy.events",
    "dp_sgd_event": "recipes.dp_sgd",
    "epsilon": "privacy.accountants.report",
    "first_above": "privacy.events",
    "gaussian": "privacy.events",
    "geometric": "privacy.run_counts",
    "held_out": "privacy.holdout",
    "make_method": "contract.registry",
    "make_task": "contract.registry",
    "noisy_gradients": "recipes.dp_sgd",
    "non_private": "privacy.events",
    "on_part": "privacy.events",
    "parse_clipping": "training.clipping",
    "plan": "harness.plan",
    "poisson_sampled": "privacy.events",
    "pure": "privacy.events",
    "read_record": "records.store",
    "released": "recipes.trial",
    "repeat": "privacy.events",
    "run": "harness.run",
    "search_then_train": "recipes.trial",
    "trainable": "recipes.dp_sgd",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dphpo_bench' has no attribute {name!r}")
    return getattr(import_module(f"dphpo_bench.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
