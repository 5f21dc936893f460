"""The extra runs of `explain` on the board: checked against the runs they are about, and what follows from them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dphpo_bench.base.progress import Progress
from dphpo_bench.leaderboard.entries import Member
from dphpo_bench.leaderboard.submissions import Run, Submissions, read_submissions
from dphpo_bench.leaderboard.values import Refused
from dphpo_bench.sweep.extra_runs import REPLAY, Split, counterpart

Role = tuple[str, str]
"""The key of the record that an extra run is about, and of the one that its values are from."""


@dataclass(frozen=True)
class Replays:
    by_role: Mapping[Role, Run]
    refused: tuple[Refused, ...]

    @classmethod
    def of(cls, runs: Sequence[Run]) -> "Replays":
        """Return the extra runs among these runs. What names a record that is not here is left alone."""
        by_key = {run.key: run for run in runs}
        by_role: dict[Role, Run] = {}
        refused = []
        for run in runs:
            if run.method != REPLAY:
                continue
            parameters = json.loads(run.parameters)
            role = str(parameters.get("explains")), str(parameters.get("values_from"))
            about, source = map(by_key.get, role)
            if about is None or source is None:
                continue
            reason = _misfit(run, parameters, about, source)
            if not reason and role in by_role:
                reason = f"it is the same extra run as {by_role[role].path}"
            if reason:
                refused.append(Refused(run.path, reason))
            else:
                by_role[role] = run
        return cls(by_role, tuple(refused))

    def explain(self, keys: Iterable[str]) -> bool:
        return not {about for about, _ in self.by_role}.isdisjoint(keys)

    def splits(self, member: Member, oracle: Member | None) -> list[Split]:
        """Return the split of each finished run that has one; a run that paid nothing for tuning needs no extra run."""
        if oracle is None or member is oracle or not member.entry.end_to_end_private:
            return []
        columns = ["seed", "key", "tuning_share", "score"]
        by_seed = {run.seed: run for run in oracle.finished[columns].itertuples()}
        splits = (self._split(run, counterpart(by_seed, run.seed)) for run in member.finished[columns].itertuples())
        return [split for split in splits if split]

    def _split(self, run: Any, oracle: Any) -> Split | None:
        if oracle is None:
            return None
        if run.tuning_share == 0:
            return Split.of_free_tuning(run.score, oracle.score)
        at_left = _score(self.by_role.get((run.key, oracle.key)))
        at_full = _score(self.by_role.get((run.key, run.key)))
        return None if at_left is None else Split(run.score, oracle.score, at_full, at_left)


def read_checked(paths: Sequence[Path], cache: Path | None = None, progress: Progress | None = None) -> Submissions:
    """Return `read_submissions`, with the extra runs that do not fit the records they name among the rejected ones."""
    read = read_submissions(paths, cache, progress)
    misfits = {refused.path: refused for refused in Replays.of(read.runs).refused}
    rejected = sorted((*read.rejected, *misfits.values()), key=lambda refused: (refused.path, refused.reason))
    return Submissions(tuple(run for run in read.runs if run.path not in misfits), tuple(rejected))


def _score(run: Run | None) -> float | None:
    return None if run is None or run.value is None else run.task_model.measure.score(run.value)


def _misfit(run: Run, parameters: Mapping[str, Any], about: Run, source: Run) -> str:
    if (run.task_model, run.target, run.seed) != (about.task_model, about.target, about.seed):
        return f"it is about {about.path}, whose task, ε or seed is another"
    same_run = about is source
    if parameters.get("share") != (1.0 if same_run else 1 - about.tuning_share):
        return f"its training has another share of ε than that of {about.path} leaves it"
    if same_run and parameters.get("again") is not None:
        same = parameters["again"] == source.method and parameters.get("settings") == source.parameters
        return "" if same else f"it runs another method again than that of {source.path}"
    chosen = json.loads(source.values)
    if parameters.get("again") is not None or any(parameters.get(name) != value for name, value in chosen.items()):
        return f"it trains with other values than {source.path} chose"
    return ""
