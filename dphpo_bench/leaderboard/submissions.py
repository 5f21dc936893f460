"""Records as they come in, by pull request, from strangers: read, checked, and their ε recomputed.

What is checked is what a record says against itself: its types and sizes, its place, its ledger against its ε.
That the run took place at all only running it again can show.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeGuard

from dphpo_bench.display import one_line
from dphpo_bench.errors import InvalidValueError, RecordError
from dphpo_bench.leaderboard.board import PathPoint, Refused
from dphpo_bench.leaderboard.recompute import Claim, recompute
from dphpo_bench.progress import Progress, SilentProgress
from dphpo_bench.records import read_record
from dphpo_bench.results import compact_json, path_text, record_files

MAX_DELTA = 1e-3
MAX_NUMBER = 1e15
MAX_SEED = 2**53 - 1
MAX_PARAMETERS = 4000
MAX_PATH_POINTS = 60

ROUNDING = 1e-6
"""Relative difference of one ε computed on two machines: more than there is, less than is shown."""

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class Setting:
    """What runs must share to be compared."""

    task: str
    model: str
    delta: float
    data_fingerprint: str


@dataclass(frozen=True, slots=True)
class Run:
    """One run that passed, as far as the leaderboard needs it.

    Attributes:
        path: of its record.
        target: the ε that was asked for.
        parameters: compact JSON.
        accuracy: in [0, 1]; None for a run that failed, for which what follows is 0 or empty.
        epsilon: the larger of what is recomputed and what is claimed.
        error: why it failed, else empty.
    """

    path: str
    setting: Setting
    target: float
    method: str
    parameters: str
    code_version: str
    seed: int
    created: datetime
    end_to_end_private: bool
    accuracy: float | None
    epsilon: float
    accountant: str
    audited: float | None
    tuning_share: float
    runs: int
    examples: float
    seconds: float | None
    released_path: tuple[PathPoint, ...]
    error: str


@dataclass(frozen=True)
class Submissions:
    """What a folder of records holds.

    Attributes:
        runs: those that passed, in the order of their paths; failed runs are among them.
        rejected: the others.
    """

    runs: tuple[Run, ...]
    rejected: tuple[Refused, ...]

    @property
    def failed(self) -> tuple[Refused, ...]:
        """The runs that failed, with their errors."""
        return tuple(Refused(run.path, run.error) for run in self.runs if run.accuracy is None)


class _RejectedError(Exception):
    """A record does not pass; the message is the reason."""


def read_submissions(paths: Sequence[Path], cache: Path | None = None, progress: Progress | None = None) -> Submissions:
    """Read and check records.

    Hidden files and folders are ignored; symbolic links are rejected, not followed.

    Args:
        paths: folders, with all records in them, or single records.
        cache: a folder where recomputed ε are kept, by this machine for itself; None for none.
        progress: told while it works.

    Raises:
        InvalidValueError: if a path does not exist.
    """
    progress = progress or SilentProgress()
    rejected: list[Refused] = []
    files = list(dict.fromkeys(_files(paths, rejected.append)))
    drafts: list[tuple[Run, Claim | None]] = []
    seen: dict[tuple[str, ...], str] = {}
    with progress.track("Reading records", len(files)) as advance:
        for file, shown in files:
            try:
                draft = _draft(file, shown)
                place = file.parts[-3:]
                if place in seen:
                    raise _RejectedError(f"the same run as {seen[place]}")
                seen[place] = shown
                drafts.append(draft)
            except (RecordError, _RejectedError) as error:
                rejected.append(Refused(shown, one_line(str(error).replace(str(file), shown))))
            advance()
    found = recompute((claim for _, claim in drafts if claim), cache, progress)
    runs = []
    for run, claim in drafts:
        try:
            runs.append(run if claim is None else _verified(run, found[claim]))
        except _RejectedError as error:
            rejected.append(Refused(run.path, one_line(str(error))))
    order = sorted(rejected, key=lambda refused: (refused.path, refused.reason))
    return Submissions(tuple(sorted(runs, key=lambda run: run.path)), tuple(order))


def _files(paths: Sequence[Path], reject: Callable[[Refused], None]) -> Iterable[tuple[Path, str]]:
    """Each file with its path as shown: below the folder that was named, or as it was named."""
    for root in paths:
        if root.is_dir() and not root.is_symlink():
            for file in record_files(root, lambda error: reject(Refused("", one_line(str(error))))):
                yield file.absolute(), one_line(path_text(file.relative_to(root)))
        elif root.is_file() and not root.is_symlink():
            yield root.absolute(), one_line(path_text(root))
        elif root.is_symlink():
            reject(Refused(one_line(path_text(root)), "a symbolic link; links are not followed"))
        else:
            raise InvalidValueError(f"Expected records or folders of them, got {root}: no such file or folder.")


def _draft(file: Path, shown: str) -> tuple[Run, Claim | None]:
    """A run whose ε is its claim still, and what is to be recomputed; None for failed runs.

    Raises:
        RecordError: if the file is not a record.
        _RejectedError: if it is none for the leaderboard.
    """
    record = read_record(file)
    identity, privacy, cost = record.identity, record.privacy, record.cost
    for kind, name in (("method", identity.method), ("task", identity.task), ("model", identity.model)):
        _require(_PLAIN_NAME.fullmatch(name), f"the {kind} {name!r} is not a plain name")
    place = (identity.task, identity.method, f"{identity.key}.json")
    _require(file.parts[-3:] == place, f"it does not lie in {'/'.join(place)}, the place of its identity")
    _require(identity.seed is not None, "it has no seed, so that it can neither be repeated nor paired")
    assert identity.seed is not None
    _require(identity.seed <= MAX_SEED, f"its seed is above {MAX_SEED}")
    _require(identity.delta <= MAX_DELTA, f"its δ of {identity.delta:g} is above {MAX_DELTA:g}")
    parameters = compact_json(identity.parameters)
    _require(len(parameters) <= MAX_PARAMETERS, f"its parameters take more than {MAX_PARAMETERS} characters")
    _require(record.status in ("ok", "failed"), f"status {record.status}: {record.error}")
    draft = Run(
        path=shown,
        setting=Setting(identity.task, identity.model, identity.delta, one_line(identity.data_fingerprint, 80)),
        target=identity.epsilon,
        method=identity.method,
        parameters=parameters,
        code_version=one_line(identity.code_version, 80),
        seed=identity.seed,
        created=record.created,
        end_to_end_private=privacy is None or privacy.end_to_end_private,
        accuracy=None,
        epsilon=0.0,
        accountant="",
        audited=None,
        tuning_share=0.0,
        runs=0,
        examples=0.0,
        seconds=None,
        released_path=(),
        error=one_line(record.error or ""),
    )
    if record.status == "failed":
        return draft, None
    assert privacy is not None
    assert privacy.recomputed is not None
    assert cost is not None
    accuracy = record.metrics.get("accuracy", math.nan)
    _require(0 <= accuracy <= 1, "it has no accuracy between 0 and 1")
    seconds = math.fsum(record.seconds.values()) if "train" in record.seconds else None
    numbers = (cost.runs, cost.examples, seconds or 0.0)
    _require(all(number <= MAX_NUMBER for number in numbers), f"a cost is above {MAX_NUMBER:g}")
    _require(privacy.ledger["refused"] is None, "it asked for more than its plan covers")
    _require(
        privacy.epsilon <= identity.epsilon * (1 + ROUNDING) or not privacy.end_to_end_private,
        f"it claims ε = {privacy.epsilon:.6g}, above its target {identity.epsilon:g}",
    )
    run = replace(
        draft,
        accuracy=accuracy,
        epsilon=privacy.epsilon,
        accountant=privacy.recomputed.accountant,
        audited=record.audit.lower_bound if record.audit else None,
        tuning_share=privacy.tuning_share,
        runs=cost.runs,
        examples=cost.examples,
        seconds=seconds,
        released_path=_released_path(record.released.get("path")),
    )
    return run, Claim(compact_json(privacy.ledger), identity.delta, privacy.recomputed.accountant)


def _verified(run: Run, recomputed: float | str) -> Run:
    """The run with the larger of its claim and what was recomputed.

    Raises:
        _RejectedError: if the claim does not hold.
    """
    if isinstance(recomputed, str):
        raise _RejectedError(recomputed)
    _require(recomputed > 0 or not run.examples, "its ledger costs nothing, although it processed private data")
    _require(
        recomputed <= run.epsilon * (1 + ROUNDING),
        f"its ledger costs ε = {recomputed:.6g} ({run.accountant}), more than the {run.epsilon:.6g} it claims",
    )
    _require(
        recomputed <= run.target * (1 + ROUNDING) or not run.end_to_end_private,
        f"its ledger costs ε = {recomputed:.6g} ({run.accountant}), above its target {run.target:g}",
    )
    return replace(run, epsilon=max(recomputed, run.epsilon))


def _released_path(value: Any) -> tuple[PathPoint, ...]:
    """What a method released on its way, thinned out; nothing if it is of another form."""
    if not isinstance(value, list):
        return ()
    thin = value[:: max(1, math.ceil(len(value) / MAX_PATH_POINTS))]
    points = [_path_point(item) for item in thin]
    return tuple(point for point in points if point) if all(points) else ()


def _path_point(item: Any) -> PathPoint | None:
    if not isinstance(item, dict):
        return None
    step, rate, bound = item.get("step"), item.get("learning_rate"), item.get("loss_bound")
    if not (type(step) is int and 0 <= step <= MAX_NUMBER and _positive(rate)):
        return None
    return PathPoint(step, float(rate), float(bound) if _positive(bound) else None)


def _positive(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 1e-300 < value < 1e300


def _require(condition: object, otherwise: str) -> None:
    if not condition:
        raise _RejectedError(otherwise)
