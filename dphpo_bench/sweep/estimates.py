"""Estimate how long the cells of a sweep take, from finished runs."""

import itertools
import json
import statistics
from collections import defaultdict
from collections.abc import Mapping

from dphpo_bench.records.record import Identity, RunRecord

Kind = tuple[str, str, str, str]


class Estimates:
    """Running times by kind of run: method with its parameters, task, model."""

    def __init__(self) -> None:
        self._seconds: defaultdict[Kind, list[float]] = defaultdict(list)
        self._per_example: defaultdict[tuple[str, str], list[float]] = defaultdict(list)

    def add(self, record: RunRecord) -> None:
        """Learn from a finished run; a failed one is ignored."""
        if record.status != "ok":
            return
        identity, seconds = record.identity, sum(record.seconds.values())
        self._seconds[kind_of(identity)].append(seconds)
        if record.cost and record.cost.examples:
            self._per_example[identity.task, identity.model].append(seconds / record.cost.examples)

    def seconds(self, identity: Identity, examples: float | None = None) -> float | None:
        """Return the seconds of a run: the median of its kind, else by its example passes; None if unknown."""
        if kind_of(identity) in self._seconds:
            return statistics.median(self._seconds[kind_of(identity)])
        rates = self._per_example.get((identity.task, identity.model))
        if rates and examples is not None:
            return examples * statistics.median(rates)
        return None

    def total(self, kinds: Mapping[Kind, int]) -> float | None:
        """Return the seconds of so many runs of each kind in sequence; runs of unknown kinds count as average."""
        if not self._seconds:
            return None
        average = statistics.fmean(itertools.chain(*self._seconds.values()))
        return sum(
            count * (statistics.median(self._seconds[kind]) if kind in self._seconds else average)
            for kind, count in kinds.items()
        )


def kind_of(identity: Identity) -> Kind:
    """Return the values that runs of about the same time share."""
    return identity.method, json.dumps(identity.parameters, sort_keys=True), identity.task, identity.model
