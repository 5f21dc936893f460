"""The contract of a method: a plan from public facts alone, and a run that keeps to it.

Some methods also tune on a task's public sibling, at no ε: records that anybody may have.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cached_property
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, get_args, get_origin

from annotated_types import Interval
from typing_extensions import TypeVar

from dphpo_bench.base.checks import check_fields
from dphpo_bench.base.displays import Display, Displayed, flat
from dphpo_bench.base.errors import DataError, InvalidValueError
from dphpo_bench.base.tensors import Records, leaves
from dphpo_bench.base.text import count
from dphpo_bench.contract.task import Task, TaskFacts
from dphpo_bench.privacy.budget import PrivacyBudget

if TYPE_CHECKING:
    import torch
    from dp_accounting.dp_event import DpEvent

    from dphpo_bench import Session


P = TypeVar("P", default=Any)
"""A frozen dataclass: what a method's plan hands to its run. None if there is nothing."""


@dataclass(frozen=True)
class Release:
    """One kind of noisy value that a run releases.

    Attributes:
        name: what it is, such as "clipped gradient sum".
        count: how often.
        noise_multiplier: noise standard deviation / L2 sensitivity of one release.
        sample_rate: rate of the Poisson batch it is computed on.
    """

    name: str
    count: int
    noise_multiplier: float
    sample_rate: float


@dataclass(frozen=True)
class Cost:
    """Expected cost of a procedure.

    Attributes:
        runs: training runs, the tuning included.
        steps: optimiser steps over all runs.
        examples: per-example passes over all runs: 1 for a gradient, and 1 for each loss.
    """

    runs: Annotated[int, Interval(ge=0)]
    steps: Annotated[int, Interval(ge=0)]
    examples: Annotated[float, Interval(ge=0)]

    def __post_init__(self) -> None:
        check_fields(self)  # before a run is counted: its record at the end holds nothing else


@dataclass(frozen=True, repr=False)
class Plan(Displayed, Generic[P]):
    """All that is fixed before private data is read.

    Attributes:
        budget: the (ε, δ) of the whole procedure.
        event: the worst-case privacy event of the whole procedure.
        training_event: `event` without the releases that serve tuning only. The harness computes from both the
            share of the budget that tuning takes.
        parameters: input of `run`, such as a calibrated noise multiplier: a frozen dataclass, or None. Has it an
            attribute `needs_scores` that is true, a task without scores is refused. If it has a function `check` of a
            session, the harness calls that before `run`, to find mistakes before anything is released.
        releases: all planned releases.
        cost: expected cost; the number of runs of a private selection is random, and secret.
        accountant: name of the accountant whose ε counts, as in `accountants.ACCOUNTANTS`; None: the tightest.

    Raises:
        InvalidValueError: if `parameters` is neither a frozen dataclass nor None.
    """

    budget: PrivacyBudget
    event: "DpEvent"
    training_event: "DpEvent"
    parameters: P
    releases: tuple[Release, ...]
    cost: Cost
    accountant: str | None = None

    def __post_init__(self) -> None:
        from dphpo_bench.privacy.event_trees import frozen

        for name in ("event", "training_event"):  # nobody can add to them once their ε is known
            object.__setattr__(self, name, frozen(getattr(self, name)))
        object.__setattr__(self, "budget", PrivacyBudget(self.budget.epsilon, self.budget.delta))
        kind: Any = type(self.parameters)
        if kind is not NoneType and not (is_dataclass(kind) and vars(kind)["__dataclass_params__"].frozen):
            raise InvalidValueError(f"Expected a plan's parameters to be a frozen dataclass, got {kind.__name__}.")

    def display(self) -> Display:
        """Return the budget, the releases and the cost in short."""
        from dphpo_bench.privacy.event_trees import describe

        rows = [
            ("release", f"{item.count:,} × {item.name}, σ = {item.noise_multiplier:.5g}, rate {item.sample_rate:.5g}")
            for item in self.releases
        ]
        cost = f"{count(self.cost.runs, 'run')}, {self.cost.steps:,} steps, {self.cost.examples:,.0f} example passes"
        rows += [*flat(self.to_json()["parameters"] or {}), ("cost", cost), ("event", describe(self.event))]
        return f"Plan for ε = {self.budget.epsilon:g}, δ = {self.budget.delta:.3g}", rows

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        from dphpo_bench.privacy import event_trees

        parameters: Any = self.parameters
        return {
            "budget": asdict(self.budget),
            "event": event_trees.to_json(self.event),
            "training_event": event_trees.to_json(self.training_event),
            "parameters": None if parameters is None else asdict(parameters),
            "releases": [asdict(release) for release in self.releases],
            "cost": asdict(self.cost),
            "accountant": self.accountant,
        }

    @classmethod
    def from_json(cls, obj: Any, parameters: Any) -> "Plan[Any]":
        """Read the plan that `to_json` wrote.

        Args:
            obj: JSON values.
            parameters: the type P, as in `Method.plan_parameters`.

        Raises:
            KeyError, TypeError, ValueError: if it is something else.
        """
        from pydantic import TypeAdapter

        from dphpo_bench.privacy import event_trees

        kinds = {"parameters": parameters, "releases": tuple[Release, ...], "cost": Cost, "accountant": str | None}
        values = {  # from a text, because only there a strict reader takes a list for a tuple
            name: TypeAdapter(kind).validate_json(json.dumps(obj[name]), strict=True) for name, kind in kinds.items()
        }
        events = {name: event_trees.from_json(obj[name]) for name in ("event", "training_event")}
        return cls(budget=PrivacyBudget(**obj["budget"]), **events, **values)


@dataclass
class Outcome:
    """Result of a run; everything in it is released or derived from releases.

    Attributes:
        model: the trained model.
        released: JSON values for the record: chosen hyperparameters, paths of learning rates, private losses.
    """

    model: "torch.nn.Module"
    released: dict[str, Any] = field(default_factory=dict)


class Method(ABC, Generic[P]):
    """A way to tune and train under one privacy budget.

    A plug-in author subclasses this as a frozen dataclass whose fields are the method's parameters with the
    defaults of its paper, and registers the class under the entry point group `dphpo_bench.methods`. Types and
    ranges are declared on the fields, as `check_fields` reads them. `Method[P]` names what the method's plans
    hand to its runs.

    Importing the module must be cheap: it is imported to list what exists, so import torch inside `run`.

    Attributes:
        name: as on the command line.
        version: an integer from 1, part of a run's identity: raise it when the method's results change.
        summary: one line.
        reference: paper and section.
        tuning: the hyperparameters it tunes.
        end_to_end_private: whether (ε, δ) covers tuning as well as training. If not, ε is infinite whatever is planned.
        needs_scores: whether it compares runs by the task's scores; it is then refused on a task without them, before
            anything is released.
        linear_only: whether it trains linear classifiers alone; it is then refused with any other model, before data
            are read.
        needs_sibling: whether it tunes on the task's public sibling, `Session.sibling`; it is then refused on a task
            that declares none.
        needs_units: whether it trains on units of several records, such as clients; it is then refused on a task whose
            unit is the record.
        plan_parameters: P, by which a plan is read from a file; set by `Method[P]`.

    Raises:
        InvalidValueError: if a parameter breaks the rule of its field.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    summary: ClassVar[str]
    reference: ClassVar[str]
    tuning: ClassVar[tuple[str, ...]]
    end_to_end_private: ClassVar[bool]
    needs_scores: ClassVar[bool] = False
    linear_only: ClassVar[bool] = False
    needs_sibling: ClassVar[bool] = False
    needs_units: ClassVar[bool] = False
    plan_parameters: ClassVar[Any] = Any

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        for base in vars(cls).get("__orig_bases__", ()):
            if issubclass(get_origin(base) or object, Method):
                cls.plan_parameters = get_args(base)[0]

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def parameters(self) -> dict[str, Any]:
        """The method's parameters by name, as JSON values: part of a run's identity; see `LATER`.

        Raises:
            TypeError: if the method is no dataclass.
            InvalidValueError: if the method has attributes that are no fields: two methods that differ in them would
                have the same identity.
        """
        cls: Any = type(self)
        attributes = vars(self).keys() - {field.name for field in fields(cls)}
        others = sorted(name for name in attributes if not isinstance(getattr(cls, name, None), cached_property))
        if others:
            raise InvalidValueError(
                f"Expected the parameters of {cls.__name__} to be fields, got {', '.join(others)} beside them. "
                f"Decorate it with @dataclass(frozen=True) and declare {others[0]} with its type and default."
            )
        declared = {field.name: field for field in fields(cls) if field.init}
        values = {name: _json(name, getattr(self, name)) for name in declared}
        return {
            name: value
            for name, value in values.items()
            if not (declared[name].metadata.get("later") and value == declared[name].default)
        }

    @abstractmethod
    def plan(self, facts: TaskFacts, budget: PrivacyBudget) -> Plan[P]:
        """Fix noise, number of steps and the event of the whole procedure, from public facts alone.

        Raises:
            BudgetTooSmallError: if no noise within reach meets the budget.
        """

    @abstractmethod
    def run(self, plan: Plan[P], session: "Session") -> Outcome:
        """Tune and train; the session is the only way to the private data."""


def _json(name: str, value: Any) -> Any:
    """Return a parameter as JSON holds it; two that differ stay different."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, list | tuple):
        return [_json(name, item) for item in value]
    if isinstance(value, Mapping) and all(type(key) is str for key in value):
        return {key: _json(name, item) for key, item in value.items()}
    raise InvalidValueError(
        f"Expected parameters that JSON holds (numbers, texts, lists, None), got {name} of type {type(value).__name__}."
    )


def sibling_of(method: Method, task: Task) -> Task | None:
    """Return the sibling that a method tunes on; None if the method needs none. Reads no data."""
    if not method.needs_sibling:
        return None
    sibling = task.sibling
    if sibling is None:
        raise InvalidValueError(
            f"Method {method.name} tunes on public records, and task {task.name} declares none. Let `sibling` of the "
            "task return a task on similar public records, or pass sibling= in the TrainingOptions of an ArrayTask."
        )
    pair = f"a sibling of task {task.name}"
    if not sibling.public:
        raise InvalidValueError(
            f"Expected {pair} with public records, got {sibling.name}, whose records are private: what is tuned on "
            "them is a release that no budget pays for. Declare public=True only if anybody may have them."
        )
    if sibling.facts.kind != task.facts.kind:
        raise InvalidValueError(
            f"Expected {pair} of kind {task.facts.kind!r}, got {sibling.name} of kind {sibling.facts.kind!r}."
        )
    names = {dataset.name for dataset in task.datasets}
    seen = [dataset.name for dataset in sibling.datasets if dataset.name in names]
    seen += [
        f"{model.name}, trained on them" for model in sibling.pretrained_models if model.has_seen_any(task.datasets)
    ]
    if seen or sibling is task:
        raise InvalidValueError(
            f"Expected {pair} that has seen none of its records, got {sibling.name} with "
            f"{seen[0] if seen else 'the same records'}: what is tuned on them is a release that no budget pays for. "
            "Declare a sibling on other records."
        )
    sibling.check_scores()
    return sibling


def refuse_shared(task: Task, train: Records, sibling: Task, public: Records) -> None:
    """Refuse a sibling whose inputs are those of the private records: a slice, a copy, or a table with more rows.

    It finds a mistake of whoever declares the sibling, and no record that was changed. Tables of a few coarse columns
    have equal rows by chance, so rows count only where most of them differ from each other.
    """
    few, many = sorted((train, public), key=len)
    shapes = [[(tensor.shape[1:], tensor.dtype) for tensor in leaves(records.inputs)] for records in (few, many)]
    if shapes[0] != shapes[1]:
        return
    rows = _hashes(few)
    if len(rows) >= len(few) / 2 and len(rows & _hashes(many)) >= len(rows) / 2:
        raise DataError(
            f"Expected a sibling of task {task.name} on other records, got {sibling.name}, which shares records with "
            "it: what is tuned on them is a release that no budget pays for. Declare a sibling on other records."
        )


def _hashes(records: Records) -> set[int]:
    """Return hashes of the rows of all inputs."""
    import torch

    tensors = [
        tensor.detach().cpu().contiguous().reshape(len(tensor), -1).view(torch.uint8)  # NumPy lacks bfloat16
        for tensor in leaves(records.inputs)
    ]
    return {hash(b"".join(tensor[row].numpy().tobytes() for tensor in tensors)) for row in range(len(records))}
