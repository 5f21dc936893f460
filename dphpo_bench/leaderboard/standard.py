"""What a board measures by."""

from dataclasses import dataclass, replace
from pathlib import Path

from dphpo_bench.base.text import compact_json
from dphpo_bench.contract.registry import make_method
from dphpo_bench.leaderboard.submissions import Setting
from dphpo_bench.sweep.suite import load_suite

Who = tuple[str, str]
"""A method's name and its parameters as compact JSON."""

REFERENCES = frozenset({"grid_composed"})
"""Methods that are references although they are private from end to end. All methods that are not private are, too."""


@dataclass(frozen=True)
class Standard:
    """What a board measures by. It comes with the code, so that no record can change it.

    Attributes:
        untuned: the method that tunes nothing, with its default parameters.
        oracle: the method that tunes without privacy.
        methods: a table counts if at least half of these are ranked in it; None for all that are ranked anywhere.
        tasks: task and model of the tables that may count; None for all.
        epsilons: target ε of the tables that may count; None for all.
        excused: method, task and model of what the suite leaves out, as taking too long. Who leaves out something else
            is not compared on the rest, or everybody could choose what to be judged by.
    """

    untuned: Who
    oracle: Who
    methods: frozenset[str] | None = None
    tasks: frozenset[tuple[str, str]] | None = None
    epsilons: frozenset[float] | None = None
    excused: frozenset[tuple[str, str, str]] = frozenset()

    @classmethod
    def builtin(cls) -> "Standard":
        """The built-in methods as anchors; every table may count."""
        return cls(untuned=_default("auto_clipping"), oracle=_default("grid_oracle"))

    @classmethod
    def of_suite(cls, path: Path) -> "Standard":
        """The built-in methods as anchors; only tables of this suite may count.

        Raises:
            InvalidValueError: if the suite is not valid.
        """
        suite = load_suite(path)
        methods = {method.name for method, _ in suite.made_methods() if method.end_to_end_private}
        tasks = [task for task, _ in suite.made_tasks()]
        return replace(
            cls.builtin(),
            methods=frozenset(methods - REFERENCES),
            tasks=frozenset((task.facts.task, task.facts.model) for task in tasks),
            epsilons=frozenset(suite.epsilons),
            excused=frozenset(
                (name, task.facts.task, task.facts.model)
                for task in tasks
                for name in methods
                if not suite.runs_on(name, task)
            ),
        )

    def may_count(self, setting: Setting, target: float) -> bool:
        """Whether a table is one of those that may count."""
        return (self.tasks is None or (setting.task, setting.model) in self.tasks) and (
            self.epsilons is None or target in self.epsilons
        )


def _default(name: str) -> Who:
    return name, compact_json(make_method(name).parameters)
