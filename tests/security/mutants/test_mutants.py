"""Each mutant is caught, and by what it is said to be caught by; the same methods with nothing wrong pass all of it.

Four things catch them: the *session*, which refuses or leaves no way; the *ledger*, which refuses what the plan does
not have; the *contract* tests, which run on the plug-in's author's machine and ours; the *audit*, which attacks the
whole procedure and finds more ε than it claims.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

import dphpo_bench as bench
from dphpo_bench.audit.attacks import audit
from dphpo_bench.base.errors import DphpoBenchError
from dphpo_bench.contract.method import Method
from dphpo_bench.harness.plan import plan
from dphpo_bench.harness.run import RunResult
from dphpo_bench.harness.state import Run
from dphpo_bench.harness.training import execute
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.testing import Blobs, ContractError, MethodContract
from dphpo_bench.training.gradients import gradient_engine
from dphpo_bench.training.randomness import Streams
from tests.conftest import session_on
from tests.security.mutants import around, batches, clipping, data_access, noise, probes, selection, stopping
from tests.security.mutants.baseline import Search, Training

Defence = Literal["session", "ledger", "contract", "audit"]

BUDGET = bench.PrivacyBudget(3.0, 1e-4)
PITFALLS = Path(__file__).parents[3] / "docs" / "pitfalls.md"


@dataclass(frozen=True)
class Refused:
    """The harness does not let the mutant end well."""

    method: Method
    by: Defence
    says: str
    task: Blobs = field(default_factory=Blobs)


@dataclass(frozen=True)
class Neutralised:
    """The mutant ends well, and what it does wrong has no effect; `check` shows it."""

    method: Method
    check: Callable[[RunResult], None]
    by: Defence = "session"


@dataclass(frozen=True)
class FailsContract:
    """The harness sees nothing wrong; a contract test does."""

    method: Method
    test: Callable[[Method], None]
    says: str
    same_test_passes: Method
    by: Defence = "contract"


def without_noise(rule: Any, records: bench.Records) -> torch.Tensor:
    """The mean clipped gradient of all these records by a session, all but without noise, as one vector."""
    session = session_on(Blobs(), records, Ledger(), Streams(0))
    everybody = bench.events.poisson_sampled(1.0, bench.events.gaussian(1e-9))
    gradient = session.sample(everybody).gradient(session.build_model(), rule, 1e-9)
    return torch.cat([part.flatten() for part in gradient])


def raw_sum(rule: Any, records: bench.Records) -> torch.Tensor:
    """The same sum by an engine that believes the rule."""
    session = session_on(Blobs(), records, Ledger(), Streams(0))
    total = gradient_engine(session.build_model()).clipped_sum(records.inputs, records.targets, rule)
    return torch.cat([part.flatten() for part in total])


def records(draw: int = 1, outlier: bool = False) -> bench.Records:
    """Blobs, and one record far away."""
    split = Blobs(draw=draw).load_train(bench.DataSource.resolve())
    if not outlier:
        return split
    far = torch.full((1, 5), 1e4)
    return bench.Records(torch.cat([split.inputs, far]), torch.cat([split.targets, torch.tensor([1])]))


def influence(rule: Any) -> float:
    """How far one record far away moves the sum that a session divides: at most the sensitivity."""
    n = Blobs().facts.n_records
    return float((without_noise(rule, records(outlier=True)) - without_noise(rule, records())).norm() * n)


def raw_influence(rule: Any) -> float:
    """The same where the rule is believed."""
    return float((raw_sum(rule, records(outlier=True)) - raw_sum(rule, records())).norm())


def is_like(mutant: type[Method], correct: Method) -> None:
    """The run is the one of the method with nothing wrong, up to rounding. Random streams are named after a method."""
    renamed = type(mutant.__name__, (mutant,), {"name": correct.name})()
    one, other = (bench.run(method, Blobs(), BUDGET, seed=0).model for method in (renamed, correct))
    assert one is not None
    assert other is not None
    for mine, expected in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-3, atol=1e-4)


def draws_as_ever(result: RunResult) -> None:
    is_like(selection.SeedsEveryTrial, Search())


def clips_all_the_same(result: RunResult) -> None:
    is_like(clipping.LyingRule, Training())
    assert influence(clipping.Unclipped(1.0)) <= 1.0 + 1e-3
    assert raw_influence(clipping.Unclipped(1.0)) > 1e3


def learns_nothing(result: RunResult) -> None:
    is_like(selection.LearnsFromScores, Search())


def has_only(released: dict[str, Any]) -> Callable[[RunResult], None]:
    """Says that this is released, and the model that the winner alone leads to."""

    def check(result: RunResult) -> None:
        assert result.record.released == released

    return check


def saw_no_activations(result: RunResult) -> None:
    assert result.record.released == {"activations": []}


def uses_no_other_record(result: RunResult) -> None:
    assert influence(clipping.ByTheMean()) <= 1.0 + 1e-3
    assert raw_influence(clipping.ByTheMean()) > 100


def saw_no_norms(result: RunResult) -> None:
    checked = plan(clipping.RawNormStatistics(), Blobs(), BUDGET)
    again = execute(Run(checked=checked, task=Blobs(), train=records(draw=2), seed=1)).outcome
    assert again is not None
    assert result.record.released["medians"] == again.released["medians"]
    seen = [clipping.ByTheMedian(), clipping.ByTheMedian()]
    for draw, rule in enumerate(seen, 1):
        raw_sum(rule, records(draw))
    assert seen[0].seen != seen[1].seen  # what an engine that believes the rule would have shown it


def quotes_the_plan(result: RunResult) -> None:
    privacy = result.record.privacy
    assert privacy is not None
    assert privacy.recomputed is not None
    assert privacy.recomputed.epsilon < 0.5 * privacy.planned.epsilon
    assert privacy.epsilon == privacy.planned.epsilon


def has_nothing_left(result: RunResult) -> None:
    kept = data_access.KeepsRawRecords.kept
    assert result.record.released == {"records": 600}
    assert [split.inputs.numel() + split.targets.numel() for split in kept] == [0] * len(kept)
    assert result.record.privacy is not None
    assert result.record.privacy.epsilon == math.inf
    kept.clear()


NOT_IN_A_TRIAL = r"^A trial asked for a release that the base event of its selection does not cover"
NOT_PLANNED = r"^The plan does not cover the release "

THROUGH_THE_SESSION: dict[str, Refused | Neutralised | FailsContract] = {
    # Training.
    "no_noise": Refused(noise.NoNoise(), "ledger", NOT_PLANNED + r"Poisson\(q=0.1667; Gaussian σ=0\)"),
    "half_noise": Refused(noise.HalfNoise(), "ledger", NOT_PLANNED + r"Poisson\(q=0.1667; Gaussian σ=0.62"),
    "noise_not_scaled": Refused(noise.NoiseNotScaled(), "ledger", NOT_PLANNED + r"Poisson\(q=0.1667; Gaussian σ=0.02"),
    "claims_more_noise": Refused(
        noise.ClaimsMoreNoise(), "ledger", NOT_PLANNED + r".*σ=1.2.*; it still covers 18 × .*σ=4.9"
    ),
    "integer_noise": Refused(noise.IntegerNoise(), "ledger", r"^The plan of integer_noise costs epsilon=8\.6"),
    "no_clipping": Refused(
        clipping.NoClipping(), "session", r"^Expected 1e-30 <= sensitivity <= 1e\+30, got sensitivity=inf"
    ),
    "lying_rule": Neutralised(clipping.LyingRule(), clips_all_the_same),
    "clipping_after_averaging": Neutralised(clipping.ClippingAfterAveraging(), uses_no_other_record),
    "raw_norm_statistics": Neutralised(clipping.RawNormStatistics(), saw_no_norms),
    "batch_norm_left_in": Refused(clipping.BatchNormLeftIn(), "session", r"a model as the task builds it"),
    "centres_by_the_batch": Refused(clipping.CentresByTheBatch(), "session", r"a model as the task builds it"),
    "logs_activations": Neutralised(clipping.LogsActivations(), saw_no_activations),
    "fixed_batches": Refused(
        batches.FixedBatches(), "ledger", NOT_PLANNED + r"holdout of 0.5=validation: Gaussian σ=", Blobs(batch_size=300)
    ),
    "drawn_batch_size": Refused(batches.DrawnBatchSize(), "session", r"object of type 'Batch' has no len"),
    "rate_of_a_loader": Refused(
        batches.RateOfALoader(), "ledger", NOT_PLANNED + r"Poisson\(q=0.2;.*Poisson\(q=0.1833;", Blobs(batch_size=110)
    ),
    "correlated_as_dp_sgd": Refused(
        batches.CorrelatedAsDpSgd(), "ledger", NOT_PLANNED + r"cycle of 2=0: Poisson\(q=0.1667; Gaussian σ="
    ),
    "probes_long_gradients": Refused(
        probes.ProbesLongGradients(),
        "ledger",
        r"^The batch was not opened for the release 3 × Gaussian .* of that kind",
    ),
    "probes_apart": Refused(probes.ProbesApart(), "ledger", NOT_PLANNED + r"Poisson\(q=0.1667; 3 × Gaussian σ=.*, Gau"),
    "trains_until_it_is_good": Refused(
        stopping.TrainsUntilItIsGood(), "ledger", NOT_PLANNED + r".*it still covers nothing"
    ),
    "stops_early_and_quotes_less": Neutralised(stopping.StopsEarlyAndQuotesLess(), quotes_the_plan, by="ledger"),
    # Data.
    "tunes_on_test_data": Refused(
        data_access.TunesOnTestData(), "session", r"load_test of task blobs was called by the method"
    ),
    "plan_reads_data": Refused(
        data_access.PlanReadsData(), "session", r"load_train of task blobs was called by the method"
    ),
    "runs_within_a_run": Refused(
        data_access.RunsWithinARun(), "session", r"prepare of task blobs was called by the method"
    ),
    "uses_raw_records": Refused(data_access.UsesRawRecords(), "ledger", NOT_PLANNED + r"non-private access"),
    "keeps_raw_records": Neutralised(data_access.KeepsRawRecords(), has_nothing_left),
    # Selection.
    "unpaid_validation": Refused(selection.UnpaidValidation(), "ledger", NOT_IN_A_TRIAL),
    "retries_failures": Refused(selection.RetriesFailures(), "ledger", NOT_IN_A_TRIAL),
    "searches_until_it_is_good": Refused(
        selection.SearchesUntilItIsGood(), "ledger", NOT_PLANNED + r"BestOf\(.*covers nothing"
    ),
    "fixed_count": Refused(selection.FixedCount(), "session", r"a distribution of dphpo_bench.* got a AlwaysSix"),
    "swallows_refusals": Refused(selection.SwallowsRefusals(), "ledger", NOT_IN_A_TRIAL),
    "copies_its_session": Refused(selection.CopiesItsSession(), "session", r"one Session and no copy of it"),
    "seeds_every_trial": Neutralised(selection.SeedsEveryTrial(), draws_as_ever),
    "keeps_a_trials_session": Refused(
        selection.KeepsATrialsSession(), "session", r"outcome that pickle can write; what it returned stays hidden"
    ),
    "asks_the_outer_session": Refused(selection.AsksTheOuterSession(), "ledger", r"asked an account that is locked"),
    "releases_a_loser": Neutralised(selection.ReleasesALoser(), has_only({"losers": 0})),
    "releases_a_losers_weights": Neutralised(selection.ReleasesALosersWeights(), has_only({"losers": 0})),
    "publishes_scores": Neutralised(selection.PublishesScores(), has_only({"scores": []})),
    "publishes_rounded_scores": Neutralised(selection.PublishesRoundedScores(), has_only({"per_cent": ""})),
    "publishes_the_number_of_trials": Neutralised(selection.PublishesTheNumberOfTrials(), has_only({"trials": 0})),
    "watches_the_progress": Refused(selection.WatchesTheProgress(), "session", r"property 'progress' .* has no setter"),
    "logs_its_trials": FailsContract(
        selection.LogsItsTrials(),
        MethodContract().test_trials_that_lost_change_nothing,
        r"No trial alone leads .* released is \{'mean'",
        Search(),
    ),
    "learns_from_scores": Neutralised(selection.LearnsFromScores(), learns_nothing),
    "walks_a_grid": Neutralised(selection.WalksAGrid(), has_only({"learning_rate": 1.0})),
    "logs_raw_gradients": Refused(selection.LogsRawGradients(), "session", r"Expected optimizer to be (a text|str)"),
}
"""What a mutant does with the public API, by name."""


@dataclass(frozen=True)
class Leak:
    """A mutant around the session whose leak is large enough for a short audit."""

    method: Method
    correct: Method
    runs: int = 1


LEAKS = {
    "no_noise": Leak(around.NoNoise(), Training()),
    "noise_not_scaled": Leak(around.NoiseNotScaled(), Training(max_grad_norm=50.0), runs=10),
    "no_clipping": Leak(around.NoClipping(), Training(max_grad_norm=0.1)),
    "clipping_after_averaging": Leak(
        around.ClippingAfterAveraging(learning_rate=5.0), Training(max_grad_norm=0.1, learning_rate=5.0)
    ),
    "fooled_ledger": Leak(around.FooledLedger(), Training()),
}
"""Mutants around the session, by name. The session and the ledger see nothing wrong; the audit refutes them."""


def ends(method: Method, task: Blobs) -> tuple[str, str, RunResult | None]:
    """How a run ends: the record's status and reason; `refused` where the harness raises."""
    with torch.random.fork_rng(devices=[]):
        try:
            result = bench.run(
                method, task, BUDGET, seed=0, execution=bench.ExecutionOptions(device="cpu"), check=False
            )
        except DphpoBenchError as error:
            return "refused", str(error), None
    return result.record.status, result.record.error or "", result


@pytest.mark.parametrize("name", THROUGH_THE_SESSION)
def test_a_mutant_is_caught_by_what_it_is_said_to_be_caught_by(name: str) -> None:
    case = THROUGH_THE_SESSION[name]
    if isinstance(case, Refused):
        status, reason, _ = ends(case.method, case.task)
        assert status in ("refused", "over_budget", "failed")
        assert re.search(case.says, reason), reason
        assert (case.by == "ledger") == bool(
            re.search(r"^The plan |^A trial asked |^The batch was not|is locked", reason)
        ), reason
        return
    status, reason, result = ends(case.method, Blobs())
    assert status == "ok", reason
    assert result is not None
    if isinstance(case, Neutralised):
        case.check(result)
        return
    case.test(case.same_test_passes)
    with pytest.raises(ContractError, match=case.says):
        case.test(case.method)


@pytest.mark.parametrize("name", LEAKS)
def test_the_contract_finds_what_goes_around_the_session(name: str) -> None:
    """And only the contract: the run ends well, within its budget."""
    method = LEAKS[name].method
    status, reason, result = ends(method, Blobs())
    assert status == "ok", reason
    assert result is not None
    assert result.record.privacy is not None
    assert result.record.privacy.epsilon <= BUDGET.epsilon
    scan = MethodContract().test_source_keeps_out_of_the_private_parts_of_others
    with pytest.raises(ContractError, match=r"are not for methods: in a session they hold the private records"):
        scan(method)
    scan(LEAKS[name].correct)


@pytest.mark.parametrize("name", LEAKS)
def test_the_audit_refutes_what_the_ledger_believes(name: str) -> None:
    """A lower bound above the claim, at a confidence of 1 − 1e-7, in both directions: δ = 1e-12 leaves room for it.

    Seeds are fixed, so that the false alarm would be that of the choice of the seed, with probability below 1e-7 for
    each method that is right. That a mutant is refuted has a margin that the bound itself shows.
    """
    case = LEAKS[name]
    claim = bench.PrivacyBudget(0.5, 1e-12)
    task = Blobs(n_records=2000, batch_size=400)

    def attacked(method: Method, runs: int) -> Any:
        return audit(
            method,
            task,
            claim,
            attacks=("white_box",),
            canaries=1000,
            runs=runs,
            confidence=1 - 1e-7,
            seed=0,
            device="cpu",
        )

    found = attacked(case.method, case.runs)
    assert found.claimed <= claim.epsilon  # by the ledger: the run was not refused
    assert found.refutes
    assert found.bound.epsilon > 1.3 * claim.epsilon
    assert not attacked(case.correct, case.runs).refutes


def test_integer_multipliers_hide_a_release() -> None:
    """What `dp_accounting` says of the plan that is refused."""
    event = noise.IntegerNoise().event(1 / 6, 18, 1.0)
    hidden = RdpAccountant().compose(event).get_epsilon(BUDGET.delta)
    true = PLDAccountant(value_discretization_interval=1e-4).compose(bench.recipes.dp_sgd_event(1 / 6, 18, 2**-0.5))
    quoted = bench.events.epsilon(event, BUDGET.delta).epsilon
    assert quoted == pytest.approx(true.get_epsilon(BUDGET.delta), rel=2e-3)
    assert hidden < 0.7 * quoted


def caught_by(name: str) -> str:
    """As the table of pitfalls has it."""
    parts = [THROUGH_THE_SESSION[name].by] if name in THROUGH_THE_SESSION else []
    if name in LEAKS:
        parts.append("around it: contract, audit")
    return "; ".join(parts)


def test_the_table_of_pitfalls_lists_these_mutants() -> None:
    section = PITFALLS.read_text(encoding="utf-8").partition("\n## The mutants\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    listed = [(name.strip("`"), by) for by, names in rows[2:] for name in names.split(", ")]
    assert sorted(listed) == sorted((name, caught_by(name)) for name in {**THROUGH_THE_SESSION, **LEAKS})
