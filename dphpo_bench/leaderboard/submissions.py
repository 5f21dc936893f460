"""Records as strangers submit them: read, checked, and their ε recomputed.

A record can only be checked against itself: its types and sizes, its place, its ledger against its ε. Only
running it again can show whether the run took place.
"""

import hashlib
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dphpo_bench.base.errors import InvalidValueError, RecordError, RegistryError
from dphpo_bench.base.progress import NullProgress, Progress
from dphpo_bench.base.text import compact_json, escaped, one_line, shown
from dphpo_bench.contract import registry
from dphpo_bench.contract.metrics import SHIFTED
from dphpo_bench.contract.task import MAX_DELTA
from dphpo_bench.leaderboard.recompute import Claim, Cost, recompute
from dphpo_bench.privacy.holdout import is_part
from dphpo_bench.privacy.risk import CERTAIN, Risk, worst
from dphpo_bench.recipes.dp_sgd import HYPERPARAMETERS
from dphpo_bench.records.measure import Measure, compared_value, shown_measure
from dphpo_bench.records.reading import path_text, record_files
from dphpo_bench.records.record import Audit, CostRecord, Identity, Privacy
from dphpo_bench.records.statement import stated
from dphpo_bench.records.store import read_record
from dphpo_bench.sweep.extra_runs import REPLAY

MAX_EPSILON = 1e4
MAX_NUMBER = 1e15
MAX_METRIC = 1e9
MAX_SEED = 2**53 - 1
MAX_PARAMETERS = 4000
MAX_VERSION = 10_000
MIN_CONFIDENCE = 0.95
EPSILON_DIGITS = 4
"""The most significant digits of a target, so that different targets look different."""

SPENT = 0.99
"""The least share of the target that a method of this project plans for, and of its plan that it releases.

What they plan is calibrated, and they release all of it. Who claims less has changed the record.
"""

CALIBRATED = 20.0
"""Up to this target. Far above, least noises are reached, or bounds are too loose to spend all."""

ROUNDING = 1e-6
"""The largest relative difference between values of one ε on two machines."""

NOT_PRIVATE = frozenset({"grid_oracle", "grid_oracle_schedule", "noiseless", "nonprivate", REPLAY})
"""Methods of this project that are not private, whatever their records say."""

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_PLAIN_HASH = re.compile(r"[A-Za-z0-9_.+:-]{1,100}")


class RejectedError(Exception):
    """A record does not pass, for the reason in the message."""


def require(condition: object, otherwise: str) -> None:
    if not condition:
        raise RejectedError(otherwise)


def check_value(measure: Measure, value: float | None) -> None:
    require(_PLAIN_NAME.fullmatch(measure.name), f"the metric {measure.name!r} is not a plain name")
    low, high = max(-MAX_METRIC, measure.range[0]), min(measure.range[1], MAX_METRIC)
    require(value is None or low <= value <= high, f"it has no {measure.title} between {low:g} and {high:g}")


def check_audit(audit: Audit, value: float | None) -> None:
    """Reject a bound that its canaries cannot show: that of Steinke et al. 2023 if all guesses are right and δ = 0."""
    good = audit.confidence >= MIN_CONFIDENCE and audit.canaries and value is not None
    require(good, f"its audit is of a failed run, without canaries, or of a confidence below {MIN_CONFIDENCE:g}")
    right = math.log1p(-audit.confidence) / audit.canaries  # of e^ε / (1 + e^ε), the logarithm
    most = min(MAX_EPSILON, right - math.log(-math.expm1(right)))
    require(audit.lower_bound <= most, f"its audit claims ε above {most:.3g}, which {audit.canaries} canaries can show")


def check_claim(identity: Identity, privacy: Privacy) -> None:
    """Reject an ε that the method cannot have planned, or a ledger that no session can have kept."""
    name, claim, target = identity.method, privacy.epsilon, identity.epsilon
    require(name not in NOT_PRIVATE, f"{name} is not private from end to end")
    require(claim <= target * (1 + ROUNDING), f"it claims ε = {claim:.6g}, above its target {target:g}")
    require(
        claim >= SPENT * target or not is_own(name, identity.method_version, target),
        f"it claims ε = {claim:.6g}, and {name} plans for its target {target:g}",
    )
    for partition, part in _parts(privacy.ledger["entries"]):
        require(is_part(partition, part), f"no session divides records into parts {partition!r}, {part!r}")


def check_risk(claimed: Risk, ledger: Risk) -> None:
    """Reject a risk below what the ledger costs. A worse plan may fit its Gaussian better, so its fit is its own."""
    names = ["advantage", "tpr_at_1pct", "tpr_at_01pct", "mu"]
    if claimed.mu <= ledger.mu * (1 + ROUNDING):
        names.append("mu_fit")
    for name in names:
        least, claim = getattr(ledger, name), getattr(claimed, name)
        slack = ROUNDING if name == "mu_fit" else ROUNDING * claim
        too_small = f"its ledger has a risk of {name} = {least:.6g}, more than the {claim:.6g} it claims"
        require(least <= claim + slack, too_small)


def is_own(method: str, method_version: int, target: float) -> bool:
    """Return True for a method of this project, in its present version, at an ε for which it is calibrated closely."""
    cls = built_in("method").get(method)
    return cls is not None and cls.version == method_version and target <= CALIBRATED


def _parts(event: Any) -> Iterator[tuple[str, str]]:
    for inner in event.values() if isinstance(event, dict) else event if isinstance(event, list) else ():
        yield from _parts(inner)
    if isinstance(event, dict) and "partition" in event:
        yield event["partition"], event["part"]


@cache
def built_in(kind: str) -> dict[str, Any]:
    """Return this project's methods or tasks by name. A record of a newer version would hide all others."""
    origin = f"dphpo-bench {version('dphpo-bench')}"
    plugins: registry.Plugins[Any] = registry.methods() if kind == "method" else registry.tasks()
    return {name: plug_in.cls for name, plug_in in plugins.loaded().items() if plug_in.origin == origin}


@cache
def defaults_of(method: str) -> Mapping[str, Any] | None:
    """Return the default parameters of a method of this project; None for a stranger's, whatever is installed here."""
    cls = built_in("method").get(method)
    return None if cls is None else cls().parameters


def check_identity(identity: Identity, file: Path) -> int:
    for kind in ("method", "task", "model"):
        name = getattr(identity, kind)
        require(_PLAIN_NAME.fullmatch(name), f"the {kind} {name!r} is not a plain name")
    for kind in ("model", "data"):
        text = getattr(identity, f"{kind}_fingerprint")
        require(_PLAIN_HASH.fullmatch(text), f"the {kind} fingerprint {text!r} is not plain")
    for kind in ("method", "task"):
        name, stated = getattr(identity, kind), getattr(identity, f"{kind}_version")
        similar = next((known for known in built_in(kind) if known.casefold() == name.casefold()), name)
        require(similar == name, f"the {kind} {name!r} looks like {similar!r}, which is another")
        newest = built_in(kind)[name].version if name in built_in(kind) else MAX_VERSION
        require(stated <= newest, f"its {kind} {name} is of version {stated}, above {newest}, the newest")
    place = (identity.task, identity.method, f"{identity.key}.json")
    require(file.parts[-3:] == place, f"it does not lie in {'/'.join(place)}, the place of its identity")
    target, delta = identity.epsilon, identity.delta
    require(target <= MAX_EPSILON, f"its target ε of {target:g} is above {MAX_EPSILON:g}")
    shortened = float(f"{target:.{EPSILON_DIGITS}g}")
    require(shortened == target, f"its target ε of {target!r} has more than {EPSILON_DIGITS} digits")
    require(delta <= MAX_DELTA, f"its δ of {delta:g} is above {MAX_DELTA:g}; run it with a smaller one")
    stated_records: Any = identity.facts.get("n_records")
    records = stated_records if type(stated_records) is int else 0
    require(records >= 1, "its facts tell no number of records")
    too_large = f"its δ of {delta:g} is not below 1/N, for N = {shown(records)}; run it with a smaller one"
    require(delta < 1 / records, too_large)
    for what, values in (("parameters", identity.parameters), ("facts", identity.facts)):
        size = len(compact_json(values))
        require(size <= MAX_PARAMETERS, f"its {what} take more than {MAX_PARAMETERS} characters")
    if identity.seed is None:
        raise RejectedError("it has no seed, so that it can neither be repeated nor paired")
    require(identity.seed <= MAX_SEED, f"its seed is above {MAX_SEED}")
    return identity.seed


VECTORS = {
    task: source
    for source, tasks in {
        "tables": "adult adult_few affairs diabetes diamonds housing marriages readmissions readmissions_by_hospital "
        "stays visits",
        "texts": "mnli qnli qqp sst2",
        "pictures from features": "cifar10 cifar100 digits digits_by_writer digits_eight fashion_mnist food101 gtsrb "
        "mnist patches svhn",
        "made-up records": "friedman heavy_tails rare_class reviews shells topics wide wrong_labels",
    }.items()
    for task in tasks.split()
}
"""Sources of a record's numbers in this project's tasks; facts tell only how many there are."""

LINEAR_MODELS, NETWORKS = "linear models", "networks"

LINEAR = frozenset({"Linear", "linear", "linear_both", "gaussian", "pretrained", "vit_head", "small_vit_head"})
"""Models that are linear in the numbers of a record; `Linear` is torch's, in an `ArrayTask`. A number at the end, as in
linear_300, is of records."""

FINE_TUNED = frozenset(
    {"block", "bitfit", "lora"}
    | {f"{base}{part}" for base in ("gpt2", "roberta", "small_vit", "vit") for part in ("", "_bitfit", "_lora")}
)
"""Models that start from a pretrained network and train some or all of it. All others are networks from scratch."""

DEVELOPMENT = frozenset({"adult", "adult_few", "cifar10", "diabetes", "digits", "digits_eight", "fashion_mnist"})
"""Tasks on which this project settled constants of its methods; all others are tests."""

UNTOUCHED = frozenset(
    {"affairs", "friedman", "heavy_tails", "housing", "marriages", "patches"}
    | {"rare_class", "shells", "topics", "visits", "wide", "wrong_labels"}
)
"""Tasks that came after the constants, with a protocol before the first run (research/untouched.md)."""

MADE_UP = {"rule": LINEAR_MODELS, "teacher": NETWORKS}
"""Base names of the models of `synthetic`, all of them tests; methods were developed on other draws."""

TEST_RECORDS = {"cifar10": 10_000, "digits": 359, "fashion_mnist": 10_000, "mnist": 10_000, "sst2": 872}
"""Numbers of test records of tasks that are ranked by accuracy."""


def kinds_of(task: str, model: str, facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the kinds, of the records first; none if the facts are of another form."""
    if task == "synthetic":
        kind = MADE_UP.get(base_name(model))
        return ("made-up records", kind) if kind else ()
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
            return base_name(self.model) not in MADE_UP
        return self.task in DEVELOPMENT

    @property
    def stage(self) -> str:
        return "untouched" if self.task in UNTOUCHED else "development" if self.development else "test"

    @property
    def test_records(self) -> int | None:
        """The number of test records, where it is known and each is right or wrong."""
        return TEST_RECORDS.get(self.task) if self.measure.name == "accuracy" else None


@dataclass(frozen=True)
class PathPoint:
    """A release of a method that adapts while it trains, at one step, counted from 0."""

    step: int
    learning_rate: float


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
class Refused:
    """A record that is not on the board: its path below the folder of records, and the reason in one line."""

    path: str
    reason: str


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
    for file, name in _files(paths, rejected.append):
        files.setdefault(file, name)
    drafts: list[tuple[Run, Claim | None]] = []
    with progress.track("Reading records", len(files)) as advance:
        for file, name in files.items():
            try:
                drafts.append(_draft(file, name))
            except (RecordError, RejectedError) as error:
                reason = str(error).replace(escaped(str(file)), name)
                reason = reason.removeprefix(f"{name} is ")  # which is said beside it
                rejected.append(Refused(name, one_line(reason)))
            except RegistryError:  # two plug-ins of one name: every record would be refused for it
                raise
            except Exception as error:  # no record of a stranger may stop the others
                logger.debug("The record %s cannot be read.", name, exc_info=True)
                rejected.append(Refused(name, f"it cannot be read ({type(error).__name__})"))
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
                name = one_line(path_text(below))
                if len(below.parts) > len(_PLACE):  # such as a copy of a record
                    reject(Refused(name, f"it lies deeper than {'/'.join(_PLACE)}"))
                else:
                    yield file.absolute(), name
        elif root.is_file():
            yield root.absolute(), one_line(path_text(root))
        else:
            raise InvalidValueError(f"Expected records or folders of them, got {root}: no such file or folder.")


def task_model_of(identity: Identity) -> TaskModel:
    pretrained, records = identity.facts.get("pretrained", []), identity.facts.get("n_records")
    has_seen = not isinstance(pretrained, list) or any(
        not isinstance(model, dict) or model.get("has_seen_records") is not False for model in pretrained
    )
    return TaskModel(
        identity.task,
        identity.model,
        identity.delta,
        identity.data_fingerprint,
        identity.model_fingerprint,
        hashlib.sha256(compact_json(identity.facts).encode()).hexdigest(),
        shown_measure(identity.facts),
        has_seen,
        kinds_of(identity.task, identity.model, identity.facts),
        records if type(records) is int and records > 0 else 0,
    )


def _draft(file: Path, name: str) -> tuple[Run, Claim | None]:
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
    shifted = None
    further = record.further.get(SHIFTED)
    if record.status == "ok" and further and measure.name in further.metrics:
        shifted = compared_value(measure, further.metrics[measure.name], identity.facts)
        check_value(measure, shifted)
    if record.audit:
        check_audit(record.audit, value)
    claimed = (privacy.recomputed or privacy.planned) if privacy else None
    cross_entropy = record.metrics.get("cross_entropy", math.nan)
    run = Run(
        path=name,
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
        cross_entropy=cross_entropy if value is not None and 0 <= cross_entropy <= MAX_METRIC else None,
        shifted=shifted,
        shift=further.about if further and shifted is not None else "",
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
    """Return some points of a path of learning rates; none if a stranger wrote something else."""
    points = []
    thin = value[:: max(1, math.ceil(len(value) / MAX_PATH_POINTS))] if isinstance(value, list) else ()
    for item in thin:
        match item:
            case {"step": int(step), "learning_rate": int() | float() as rate} if (
                0 <= step <= MAX_NUMBER and 1e-300 < rate < 1e300
            ):
                points.append(PathPoint(step, float(rate)))
            case _:
                return ()
    return tuple(points)


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
    pairs = ((getattr(first, field.name), getattr(second, field.name)) for field in fields(Risk))
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
