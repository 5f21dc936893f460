"""What a board asks of the records it ranks."""

from dataclasses import dataclass, replace
from pathlib import Path

from dphpo_bench.base.text import compact_json
from dphpo_bench.contract.registry import make_method
from dphpo_bench.leaderboard.submissions import Setting
from dphpo_bench.sweep.suite import load_suite

Who = tuple[str, str]
"""A method's name and its parameters as compact JSON."""

REFERENCES = frozenset({"grid_composed"})
"""Methods that stand apart although they are private from end to end. The others say that they are not."""


@dataclass(frozen=True)
class Standard:
    """What a board measures by. It comes with the code, so that no record can change what others are measured by.

    Attributes:
        untuned: what tunes nothing, with its default parameters.
        oracle: what tunes without privacy.
        methods: names of the methods that make a table count if at least half of them are ranked in it; None for all
            that are ranked anywhere.
        tasks: task and model of the tables that may count; None for all.
        epsilons: target ε of these; None for all.
    """

    untuned: Who
    oracle: Who
    methods: frozenset[str] | None = None
    tasks: frozenset[tuple[str, str]] | None = None
    epsilons: frozenset[float] | None = None

    @classmethod
    def builtin(cls) -> "Standard":
        """By the built-in methods; every table may count."""
        return cls(untuned=_default("auto_clipping"), oracle=_default("grid_oracle"))

    @classmethod
    def of_suite(cls, path: Path) -> "Standard":
        """By the built-in methods; tables of this suite may count.

        Raises:
            InvalidValueError: if it is not a valid suite.
        """
        suite = load_suite(path)
        methods = {method.name for method, _ in suite.made_methods() if method.end_to_end_private}
        return replace(
            cls.builtin(),
            methods=frozenset(methods - REFERENCES),
            tasks=frozenset((task.facts.task, task.facts.model) for task, _ in suite.made_tasks()),
            epsilons=frozenset(suite.epsilons),
        )

    def may_count(self, setting: Setting, target: float) -> bool:
        """Whether a table is one of those that may count."""
        return (self.tasks is None or (setting.task, setting.model) in self.tasks) and (
            self.epsilons is None or target in self.epsilons
        )


def _default(name: str) -> Who:
    return name, compact_json(make_method(name).parameters)
