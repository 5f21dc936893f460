"""Records as strangers submit them: read, checked, and their ε recomputed.

A record can only be checked against itself: its types and sizes, its place, its ledger against its ε. Only
running it again can show whether the run took place.
"""

import hashlib
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeGuard

from dphpo_bench.base.errors import InvalidValueError, RecordError, RegistryError
from dphpo_bench.base.progress import NullProgress, Progress
from dphpo_bench.base.text import compact_json, escaped, one_line
from dphpo_bench.contract.metrics import SHIFTED
from dphpo_bench.leaderboard.recompute import Claim, Cost, recompute
from dphpo_bench.leaderboard.requirements import (
    MAX_METRIC,
    MAX_NUMBER,
    ROUNDING,
    SPENT,
    RejectedError,
    check_audit,
    check_claim,
    check_identity,
    check_risk,
    check_value,
    is_own,
    require,
)
from dphpo_bench.leaderboard.values import PathPoint, Refused
from dphpo_bench.privacy.risk import CERTAIN, Risk, worst
from dphpo_bench.recipes.dp_sgd import HYPERPARAMETERS
from dphpo_bench.recipes.synthetic import TEACHERS, SyntheticDraw
from dphpo_bench.records.measure import Measure, compared_value, shown_measure
from dphpo_bench.records.reading import path_text, record_files
from dphpo_bench.records.record import CostRecord, Identity, RunRecord
from dphpo_bench.records.risks import stated
from dphpo_bench.records.store import read_record

VECTORS = {
    **dict.fromkeys(("adult", "adult_few", "diabetes", "readmissions"), "tables"),
    **dict.fromkeys(("mnli", "qnli", "qqp", "sst2"), "texts"),
    **dict.fromkeys(
        ("cifar10", "cifar100", "digits", "digits_eight", "fashion_mnist", "food101", "gtsrb", "mnist", "svhn"),
        "pictures from features",
    ),
}
"""Sources of a record's numbers in this project's tasks; facts tell only how many there are."""

LINEAR_MODELS, NETWORKS = "linear models", "networks"

LINEAR = frozenset({"linear", "gaussian", "pretrained", "vit_head", "small_vit_head"})
"""Models that are linear in the numbers of a record. A number at the end, as in linear_300, is of records."""

FINE_TUNED = frozenset(
    {"block", "bitfit", "lora"}
    | {f"{base}{part}" for base in ("gpt2", "roberta", "small_vit", "vit") for part in ("", "_bitfit", "_lora")}
)
"""Models that start from a pretrained network and train some or all of it. All others are networks from scratch."""

DEVELOPMENT = frozenset({"adult", "adult_few", "diabetes", "digits", "digits_eight", "fashion_mnist"})
DEVELOPMENT_MODELS = frozenset({("cifar10", "pretrained")})
"""Tasks, and models of other tasks, on which this project settled constants of its methods; all others are tests."""

FIRST_TEST = 10_000
"""Made-up tasks from this number on are tests."""

TEST_RECORDS = {"cifar10": 10_000, "digits": 359, "fashion_mnist": 10_000, "mnist": 10_000, "sst2": 872}
"""Numbers of test records of tasks that are ranked by accuracy."""


def kinds_of(task: str, model: str, facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the kinds, of the records first; none if the facts are of another form."""
    if task == "synthetic":
        try:
            return "made-up records", NETWORKS if SyntheticDraw.of(model).hidden != () else LINEAR_MODELS
        except InvalidValueError:  # of a draw that this version does not know
            return ()
    match facts.get("inputs"):
        case {"shape": [_]} if task in VECTORS:
            records = VECTORS[task]
        case {"shape": [_], "dtype": "int"}:
            records = "texts"
        case {"shape": [_]}:
            records = "tables and fixed features"
        case {"shape": [_, _]} if task in VECTORS:
            records = VECTORS[task]  # such as the words of a text, each as a vector
        case {"shape": [_, _, *_]}:
            records = "pictures"
        case _:
            return ()
    return records, LINEAR_MODELS if base_name(model) in LINEAR else NETWORKS


def base_name(model: str) -> str:
    """Return a model's name without the number that says of how many records it is."""
    return re.sub(r"_\d+$", "", model)


logger = logging.getLogger(__name__)

MAX_PATH_POINTS = 60
_PLACE = ("<task>", "<method>", "<key>.json")


@dataclass(frozen=True, slots=True)
class TaskModel:
    task: str
    model: str
    delta: float
    data_fingerprint: str
    model_fingerprint: str
    facts: str
    measure: Measure = field(repr=False)
    seen: bool = False
    kinds: tuple[str, ...] = field(default=(), repr=False)  # of the facts
    n_records: int = field(default=0, repr=False)

    @property
    def stream(self) -> str:
        """The name of its random stream, which published ranks rest on."""
        names = ("task", "model", "delta", "data_fingerprint", "model_fingerprint", "facts", "seen")
        return f"Setting({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    @property
    def model_kind(self) -> str:
        """The kind of the model in advice: "linear", "network" or "fine-tuned"; empty if the facts do not say."""
        if not self.kinds:
            return ""
        if self.kinds[-1] == LINEAR_MODELS:
            return "linear"
        return "fine-tuned" if base_name(self.model) in FINE_TUNED else "network"

    @property
    def development(self) -> bool:
        """True if constants of this project's methods were settled on these records, so that it flatters them."""
        if self.task == "synthetic":
            return self.model not in TEACHERS and not (self.model.isdecimal() and int(self.model) >= FIRST_TEST)
        return self.task in DEVELOPMENT or (self.task, self.model) in DEVELOPMENT_MODELS

    @property
    def stage(self) -> str:
        return "development" if self.development else "test"

    @property
    def test_records(self) -> int | None:
        """The number of test records, where it is known and each is right or wrong."""
        return TEST_RECORDS.get(self.task) if self.measure.name == "accuracy" else None


@dataclass(frozen=True, slots=True)
class Run:
    """One run that passed, as far as the leaderboard needs it.

    Attributes:
        end_to_end_private: None for a run that failed before it could say.
        value: of the task–model pair's metric, on test data; None for a run that failed.
        epsilon: the claim, which the ledger confirms; ∞ for a run that is not private; None for one that failed before
            it could say.
        shifted: as `value`, on shifted records; None without such a test.
        shift: what these are like.
        values: what it released, or was given, of the hyperparameters of a run of DP-SGD; compact JSON.
        risk: to one record: what the ledger costs, or more if the record says so; None for a run that failed before it
            could say.
    """

    path: str
    task_model: TaskModel
    target: float
    method: str
    parameters: str
    method_version: int
    task_version: int
    seed: int
    end_to_end_private: bool | None
    value: float | None
    epsilon: float | None
    accountant: str
    audited: float | None
    tuning_share: float
    runs: int
    examples: float
    seconds: float | None
    released_path: tuple[PathPoint, ...]
    error: str
    key: str = ""
    values: str = "{}"
    cross_entropy: float | None = None
    shifted: float | None = None
    shift: str = ""
    refuted: bool = False
    risk: Risk | None = None


@dataclass(frozen=True)
class Submissions:
    runs: tuple[Run, ...]
    rejected: tuple[Refused, ...]

    @property
    def failed(self) -> tuple[Refused, ...]:
        return tuple(Refused(run.path, run.error) for run in self.runs if run.value is None)


def read_submissions(paths: Sequence[Path], cache: Path | None = None, progress: Progress | None = None) -> Submissions:
    """Read and check records; `cache` is a folder in which this machine keeps recomputed ε.

    Hidden files and folders are ignored; symbolic links are rejected, not followed.
    """
    progress = progress or NullProgress()
    rejected: list[Refused] = []
    files: dict[Path, str] = {}
    for file, shown in _files(paths, rejected.append):
        files.setdefault(file, shown)
    drafts: list[tuple[Run, Claim | None]] = []
    with progress.track("Reading records", len(files)) as advance:
        for file, shown in files.items():
            try:
                drafts.append(_draft(file, shown))
            except (RecordError, RejectedError) as error:
                reason = str(error).replace(escaped(str(file)), shown)
                reason = reason.removeprefix(f"{shown} is ")  # which is said beside it
                rejected.append(Refused(shown, one_line(reason)))
            except RegistryError:  # two plug-ins of one name: every record would be refused for it
                raise
            except Exception as error:  # no record of a stranger may stop the others
                logger.debug("The record %s cannot be read.", shown, exc_info=True)
                rejected.append(Refused(shown, f"it cannot be read ({type(error).__name__})"))
            advance()
    costs = recompute((claim for _, claim in drafts if claim), cache, progress)
    runs = []
    for run, claim in drafts:
        try:
            runs.append(run if claim is None else _verified(run, costs[claim]))
        except RejectedError as error:
            rejected.append(Refused(run.path, one_line(str(error))))
    order = sorted(rejected, key=lambda refused: (refused.path, refused.reason))
    return Submissions(tuple(sorted(runs, key=lambda run: run.path)), tuple(order))


def _files(paths: Sequence[Path], reject: Callable[[Refused], None]) -> Iterable[tuple[Path, str]]:
    for root in paths:
        if root.is_symlink():
            reject(Refused(one_line(path_text(root)), "a symbolic link; links are not followed"))
        elif root.is_dir():

            def skip(error: RecordError, prefix: str = f"{root}/") -> None:
                reject(Refused("", one_line(str(error).replace(escaped(prefix), ""))))

            for file in record_files(root, skip):
                below = file.relative_to(root)
                shown = one_line(path_text(below))
                if len(below.parts) > len(_PLACE):  # such as a copy of a record
                    reject(Refused(shown, f"it lies deeper than {'/'.join(_PLACE)}"))
                else:
                    yield file.absolute(), shown
        elif root.is_file():
            yield root.absolute(), one_line(path_text(root))
        else:
            raise InvalidValueError(f"Expected records or folders of them, got {root}: no such file or folder.")


def task_model_of(identity: Identity) -> TaskModel:
    return TaskModel(
        identity.task,
        identity.model,
        identity.delta,
        identity.data_fingerprint,
        identity.model_fingerprint,
        hashlib.sha256(compact_json(identity.facts).encode()).hexdigest(),
        shown_measure(identity.facts),
        _has_seen(identity.facts),
        kinds_of(identity.task, identity.model, identity.facts),
        _count(identity.facts.get("n_records")),
    )


def _count(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0


def _has_seen(facts: Mapping[str, Any]) -> bool:
    pretrained = facts.get("pretrained", [])
    if not isinstance(pretrained, list):
        return True
    return any(not isinstance(model, dict) or model.get("has_seen_records") is not False for model in pretrained)


def _shifted(record: RunRecord, measure: Measure) -> float | None:
    """Return the measure on shifted records; None of a record without it."""
    if SHIFTED not in record.further or measure.name not in record.further[SHIFTED].metrics:
        return None
    value = compared_value(measure, record.further[SHIFTED].metrics[measure.name], record.identity.facts)
    check_value(measure, value)
    return value


def _cross_entropy(metrics: Mapping[str, float]) -> float | None:
    value = metrics.get("cross_entropy", math.nan)
    return value if 0 <= value <= MAX_METRIC else None


def _draft(file: Path, shown: str) -> tuple[Run, Claim | None]:
    record = read_record(file)
    identity, privacy = record.identity, record.privacy
    require(record.accounting is None, "its accounting was declared by a caller; the board has runs of the harness")
    seed = check_identity(identity, file)
    require(record.status in ("ok", "failed"), f"status {record.status}: {record.error}")
    measure = shown_measure(identity.facts)
    measured = record.metrics.get(measure.name, math.nan)
    value = compared_value(measure, measured, identity.facts) if record.status == "ok" else None
    check_value(measure, value)
    cost = record.cost or CostRecord(runs=0, steps=0, examples=0.0)
    numbers = (cost.runs, cost.examples, *record.seconds.values())
    require(all(number <= MAX_NUMBER for number in numbers), f"a cost or a time is above {MAX_NUMBER:g}")
    shifted = _shifted(record, measure) if record.status == "ok" else None
    if record.audit:
        check_audit(record.audit, value)
    claimed = (privacy.recomputed or privacy.planned) if privacy else None
    run = Run(
        path=shown,
        task_model=task_model_of(identity),
        target=identity.epsilon,
        method=identity.method,
        parameters=compact_json(identity.parameters),
        method_version=identity.method_version,
        task_version=identity.task_version,
        seed=seed,
        end_to_end_private=privacy.end_to_end_private if privacy else None,
        value=value,
        epsilon=privacy.epsilon if privacy else None,
        accountant=claimed.accountant if claimed else "",
        audited=record.audit.lower_bound if record.audit else None,
        tuning_share=privacy.tuning_share if privacy else 0.0,
        runs=cost.runs,
        examples=cost.examples,
        seconds=math.fsum(record.seconds.values()) if "train" in record.seconds else None,
        released_path=_released_path(record.released.get("path")),
        error=one_line(record.error or "") if value is None else "",
        key=identity.key,
        values=_values(identity.parameters, record.released),
        cross_entropy=_cross_entropy(record.metrics) if value is not None else None,
        shifted=shifted,
        shift="" if shifted is None else record.further[SHIFTED].about,
        refuted=bool(record.audit and record.audit.refuted),
        risk=stated(privacy, identity.delta) if privacy else None,
    )
    if privacy is None or claimed is None:
        return run, None
    require(privacy.ledger["refused"] is None, "it asked for more than its plan covers")
    if not privacy.end_to_end_private:
        return replace(run, epsilon=math.inf, accountant="", risk=CERTAIN), None
    check_claim(identity, privacy)
    return run, Claim(compact_json(privacy.ledger), identity.delta, claimed.accountant)


def _values(parameters: Mapping[str, Any], released: Mapping[str, Any]) -> str:
    known = {name: value for name, value in {**parameters, **released}.items() if name in HYPERPARAMETERS}
    return compact_json({name: value for name, value in known.items() if isinstance(value, str | int | float)})


def _verified(run: Run, cost: Cost | str) -> Run:
    """Return the run, or reject it if its ledger does not confirm its claim.

    What is shown is the claim and the most by which two machines may differ, up to the target: the same everywhere, and
    on none of them less than what the ledger costs, but for that much of a claim at the target.
    """
    if isinstance(cost, str):
        raise RejectedError(cost)
    assert run.epsilon is not None
    recomputed = cost.epsilon
    require(
        recomputed <= run.epsilon * (1 + ROUNDING),
        f"its ledger costs ε = {recomputed:.6g} ({run.accountant}), more than the {run.epsilon:.6g} it claims",
    )
    require(recomputed > 0 or run.value is None, "its ledger costs nothing, as if no private data were used")
    require(
        recomputed >= SPENT * run.epsilon
        or run.value is None
        or not is_own(run.method, run.method_version, run.target),
        f"its ledger costs ε = {recomputed:.6g} ({run.accountant}), and {run.method} releases all of the "
        f"{run.epsilon:.6g} that it plans",
    )
    if run.risk:
        check_risk(run.risk, cost.risk)
    return replace(
        run,
        epsilon=min(run.epsilon * (1 + ROUNDING), max(run.epsilon, run.target)),
        risk=worst([cost.risk, run.risk]) if run.risk else cost.risk,
    )


def _released_path(value: Any) -> tuple[PathPoint, ...]:
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


RISKS = "risks.csv"
"""Risks as the board has shown them before, since processors compute them with differences up to a millionth.

Records of version 2 state no risk, so each build computes it from their ledgers. Where a computed risk equals one of
the file but for such a difference, the file's is shown, lest a board be stale on another machine.
"""
_RISKS_HEADER = ",".join(field.name for field in fields(Risk))


def settled(submissions: Submissions, folder: Path) -> tuple[Submissions, str]:
    """Return the submissions with the risks of the board's file, and that file's new content."""
    shown = _read_risks(folder / RISKS)
    chosen: dict[Risk, Risk] = {}
    for risk in sorted({run.risk for run in submissions.runs if run.risk}, key=astuple):
        # Ledgers that differ in rounding share a line as well, in the first build as in later ones.
        chosen[risk] = next((known for known in (*shown, *chosen.values()) if _equal(known, risk)), risk)
    runs = tuple(replace(run, risk=chosen[run.risk]) if run.risk else run for run in submissions.runs)
    lines = (",".join(map(repr, values)) for values in sorted({*map(astuple, chosen.values())}))
    return replace(submissions, runs=runs), "\n".join([_RISKS_HEADER, *lines, ""])


def _equal(first: Risk, second: Risk) -> bool:
    pairs = zip(astuple(first), astuple(second), strict=True)
    return all(math.isclose(*pair, rel_tol=ROUNDING, abs_tol=ROUNDING) for pair in pairs)


def _read_risks(path: Path) -> list[Risk]:
    if not path.is_file():
        return []
    try:
        header, *lines = path.read_text(encoding="utf-8").splitlines()
        if header != _RISKS_HEADER:
            raise ValueError
        return [Risk(*map(float, line.split(","))) for line in lines]
    except (OSError, ValueError, TypeError):
        raise InvalidValueError(
            f"Expected risks as a build writes them in {path}. Remove it and build again."
        ) from None
