import errno
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dp_accounting as dpa
import pytest
import torch
from dp_accounting import pld
from opacus import PrivacyEngine
from opacus.accountants import PRVAccountant
from opacus.data_loader import DPDataLoader
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from dphpo_bench.base.errors import (
    AccountError,
    BudgetTooSmallError,
    InvalidValueError,
    OverBudgetError,
    RecordError,
)
from dphpo_bench.external import opacus_parts, reserved_steps
from dphpo_bench.external.budget_stop import StepBudget
from dphpo_bench.harness.account import Account
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.recipes.dp_sgd import dp_sgd_event
from dphpo_bench.records.store import read_record
from tests.external.trainings import BUDGET, RATE, Parts, private_parts, step

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook", "ignore:No account counts this")


class SortedBatches(BatchSampler):
    """Batches of a fixed size, as of records of similar length."""


def budget_of(
    folder: Path | None = None, name: str = "t", budget: tuple[float, float] = BUDGET, **how: Any
) -> StepBudget:
    return StepBudget(PrivacyBudget(*budget), name=name, results_dir=folder, **how)


def begin(stop: StepBudget, parts: Parts, most: int = -1, done: int = 0) -> None:
    stop.begin(parts.model, parts.optimizer, parts.loader, most, done)


def train(stop: StepBudget, parts: Parts, most: int = -1, between: Callable[[int], None] = lambda _: None) -> int:
    """Train as a trainer does, and return the number of steps."""
    begin(stop, parts, most)
    taken = 0
    while taken != most:
        stop.before_step()
        step(parts)
        taken += 1
        ends = stop.after_step()
        between(taken)
        if ends:
            break
    stop.end()
    return taken


def test_the_training_stops_with_the_last_step_that_fits(tmp_path: Path) -> None:
    parts, stop = private_parts(), budget_of(tmp_path, n_records=64)
    taken = train(stop, parts)
    exact = [
        pld.PLDAccountant(value_discretization_interval=1e-4)
        .compose(dp_sgd_event(RATE, steps, 2.0))
        .get_epsilon(BUDGET[1])
        for steps in (taken, taken + 1)
    ]
    assert exact[0] <= BUDGET[0] < exact[1]
    assert parts.engine.accountant.history == [(2.0, RATE, taken)]
    opacus = PRVAccountant()
    opacus.history = parts.engine.accountant.history
    assert stop.record.privacy is not None
    assert stop.record.privacy.epsilon == pytest.approx(exact[0], abs=2e-3)
    assert stop.record.privacy.epsilon == pytest.approx(opacus.get_epsilon(BUDGET[1]), abs=0.02)
    assert read_record(stop.path or "") == stop.record
    assert stop.record.accounting == "declared by the caller"
    assert stop.record.released == {"steps": taken}
    assert f"{taken} × Poisson(q=0.25; Gaussian σ=2)" in stop.statement()
    assert "The account main counts this run" in stop.statement()


def test_a_trainer_that_wants_fewer_steps_is_charged_for_those() -> None:
    stop = budget_of()
    assert train(stop, private_parts(), most=5) == 5
    assert stop.planned is not None
    assert stop.planned.steps == 5
    assert stop.record.privacy is not None
    assert stop.record.privacy.planned.epsilon < BUDGET[0] / 1.5


def test_a_training_that_ends_early_costs_what_was_planned() -> None:
    stop, parts = budget_of(), private_parts()
    begin(stop, parts, most=10)
    for _ in range(3):
        stop.before_step()
        step(parts)
        assert not stop.after_step()
    stop.end()
    privacy = stop.record.privacy
    assert privacy is not None
    assert privacy.recomputed is not None
    assert privacy.recomputed.epsilon < privacy.planned.epsilon == privacy.epsilon
    assert stop.record.released == {"steps": 3}


def test_the_account_counts_before_the_first_step(tmp_path: Path) -> None:
    stop, parts = budget_of(tmp_path), private_parts()
    begin(stop, parts, most=4)
    (entry,) = Account(tmp_path).read()[1]
    assert (entry.what, entry.method, entry.task, entry.status) == ("training", "dp_sgd", "t", "open")
    assert entry.dp_event == dp_sgd_event(RATE, 4, 2.0)


def test_a_training_without_a_step_is_taken_back(tmp_path: Path) -> None:
    stop, parts = budget_of(tmp_path), private_parts()
    begin(stop, parts, most=4)
    stop.end()
    assert Account(tmp_path).read()[1] == ()
    with pytest.raises(InvalidValueError, match="no record of this training"):
        stop.statement()
    assert train(stop, parts, most=4) == 4


def test_a_cap_that_does_not_cover_it_stops_it_before_the_first_step(tmp_path: Path) -> None:
    Account(tmp_path).open_with_cap(3.0, 1e-5)
    train(budget_of(tmp_path, "first", (2.9, 1e-5)), private_parts())
    parts = private_parts()
    with pytest.raises(AccountError, match="does not cover this release"):
        begin(budget_of(tmp_path, "second", (1.5, 1e-5)), parts)
    assert parts.engine.accountant.history == []


def test_a_budget_that_no_step_fits_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BudgetTooSmallError, match=r"No step fits epsilon=0\.1 at delta=1e-05"):
        begin(budget_of(tmp_path, budget=(0.1, 1e-5)), private_parts())
    assert not Account(tmp_path).path.exists()


def test_steps_in_the_history_count(tmp_path: Path) -> None:
    parts = private_parts()
    fresh = train(budget_of(tmp_path, "fresh"), private_parts())
    for _ in range(7):
        step(parts)
    stop = budget_of(tmp_path)
    assert train(stop, parts) == fresh - 7
    (_, entry) = Account(tmp_path).read()[1]
    assert entry.dp_event == dp_sgd_event(RATE, fresh, 2.0)
    assert f"{fresh} × Poisson(q=0.25; Gaussian σ=2)" in stop.statement()


def test_two_trainings_at_once_and_a_second_one_are_refused() -> None:
    stop, parts = budget_of(), private_parts()
    begin(stop, parts, most=3)
    with pytest.raises(InvalidValueError, match="of another model under way"):
        begin(stop, private_parts(), most=3)
    for _ in range(3):
        stop.before_step()
        step(parts)
        stop.after_step()
    stop.end()
    with pytest.raises(InvalidValueError, match="has ended, and its record is written"):
        begin(stop, parts)


def test_a_training_under_way_elsewhere_is_refused(tmp_path: Path) -> None:
    stop = budget_of(tmp_path)
    begin(stop, private_parts(), most=3)
    with pytest.raises(RecordError, match="is under way in another process"):
        begin(budget_of(tmp_path), private_parts(), most=3)


def test_an_interrupted_training_goes_on_in_its_process() -> None:
    stop, parts = budget_of(), private_parts()
    begin(stop, parts, most=5)
    for _ in range(2):
        stop.before_step()
        step(parts)  # and an interrupt before the callback hears of the second
    stop.begin(parts.model, parts.optimizer, parts.loader, 5, 1)
    assert stop.taken == 2
    for ends in (False, False, True):
        stop.before_step()
        step(parts)
        assert stop.after_step() == ends


def killed(folder: Path, steps: int, most: int = 20) -> list[Any]:
    """Take steps of a training in a process that dies; return its accountant's history."""
    stop, parts = budget_of(folder), private_parts()
    begin(stop, parts, most)
    for _ in range(steps):
        stop.before_step()
        step(parts)
        stop.after_step()
    assert stop._run is not None
    stop._run.release()  # as the end of a process does
    return list(parts.engine.accountant.history)


def test_a_killed_training_gets_no_free_steps(tmp_path: Path) -> None:
    killed(tmp_path, 8)
    stop, parts = budget_of(tmp_path), private_parts()
    begin(stop, parts, most=20, done=6)  # of the last checkpoint
    assert stop.taken == 8
    for left in range(11, -1, -1):
        stop.before_step()
        step(parts)
        assert stop.after_step() == (left == 0)
    stop.end()
    assert [entry.dp_event for entry in Account(tmp_path).read()[1]] == [dp_sgd_event(RATE, 20, 2.0)]
    assert "20 × Poisson(q=0.25; Gaussian σ=2)" in stop.statement()
    assert not (tmp_path / ".unfinished" / "declared-t.state").exists()


def test_a_restored_accountant_is_not_counted_twice(tmp_path: Path) -> None:
    history = killed(tmp_path, 8)
    stop, parts = budget_of(tmp_path), private_parts()
    parts.engine.accountant.history = history
    begin(stop, parts, most=20, done=8)
    assert stop.taken == 8
    stop.before_step()
    step(parts)
    stop.after_step()
    assert stop.taken == 9
    assert stop._counted == {(RATE, 2.0): 9}


def test_a_training_killed_after_its_last_step_is_recorded(tmp_path: Path) -> None:
    killed(tmp_path, 20)
    stop = budget_of(tmp_path)
    with pytest.raises(OverBudgetError, match="Earlier processes took all 20 steps of t; its record is written"):
        begin(stop, private_parts(), most=20)
    assert stop.record.status == "ok"


def test_a_checkpoint_that_nobody_counted_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"after step 6 of a checkpoint, of which the accountant knows 0"):
        begin(budget_of(tmp_path), private_parts(), most=20, done=6)
    assert Account(tmp_path).read()[1] == ()


@pytest.mark.parametrize("text", [None, "many", "-1", '"3"'])
def test_a_kill_after_which_nobody_knows_the_steps_is_refused(tmp_path: Path, text: str | None) -> None:
    killed(tmp_path, 3)
    state = tmp_path / ".unfinished" / "declared-t.state"
    state.unlink() if text is None else state.write_text(text)
    with pytest.raises(RecordError, match=r"is missing or damaged\. It stays counted whole"):
        begin(budget_of(tmp_path), private_parts(), most=20)
    assert len(Account(tmp_path).read()[1]) == 1


def test_steps_are_on_disk_before_they_are_taken(tmp_path: Path) -> None:
    stop, parts = budget_of(tmp_path), private_parts()
    begin(stop, parts, most=5)
    state = tmp_path / ".unfinished" / "declared-t.state"
    for number in range(1, 6):
        stop.before_step()
        assert json.loads(state.read_text()) == number
        step(parts)
        stop.after_step()
    assert state.stat().st_mode & 0o077 == 0


def test_a_full_disk_stops_the_next_step_and_costs_nothing_before_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as here:
        here.setattr(reserved_steps, "write_whole", full)
        with pytest.raises(RecordError, match="No space left"):
            begin(budget_of(tmp_path), private_parts())
    assert not Account(tmp_path).read()[1]
    stop, parts = budget_of(tmp_path), private_parts()
    begin(stop, parts, most=5)
    monkeypatch.setattr(reserved_steps, "write_whole", full)
    with pytest.raises(RecordError, match="No step was taken without it"):
        stop.before_step()
    (entry,) = Account(tmp_path).read()[1]
    assert entry.status == "open"


def test_a_step_after_the_last_is_stopped_before_it_is_taken(tmp_path: Path) -> None:
    stop, parts = budget_of(tmp_path), private_parts()
    begin(stop, parts, most=2)
    for _ in range(2):
        stop.before_step()
        step(parts)
        stop.after_step()
    with pytest.raises(OverBudgetError, match="The trainer goes on after 2 steps, and no more were planned"):
        stop.before_step()
    assert stop.record.status == "failed"
    assert parts.engine.accountant.history == [(2.0, RATE, 2)]


def test_noise_that_falls_below_what_is_declared_stops_it_before_the_step(tmp_path: Path) -> None:
    stop, parts = budget_of(tmp_path), private_parts()

    def fall(steps: int) -> None:
        if steps == 3:
            parts.optimizer.noise_multiplier = 1.0

    with pytest.raises(OverBudgetError, match="The noise of step 4 fell to 1, and at least 2 is declared"):
        train(stop, parts, most=9, between=fall)
    assert parts.engine.accountant.history == [(2.0, RATE, 3)]
    assert stop.record.error is not None


def test_a_declared_schedule_is_composed_exactly() -> None:
    parts = private_parts(noise=3.0)
    stop = budget_of(noise_multiplier=lambda step: 3.0 if step < 4 else 2.0)

    def fall(steps: int) -> None:
        if steps == 4:
            parts.optimizer.noise_multiplier = 2.0

    taken = train(stop, parts, most=1000, between=fall)
    exact = [
        pld.PLDAccountant(value_discretization_interval=1e-4)
        .compose(dpa.ComposedDpEvent([dp_sgd_event(RATE, 4, 3.0), dp_sgd_event(RATE, steps - 4, 2.0)]))
        .get_epsilon(BUDGET[1])
        for steps in (taken, taken + 1)
    ]
    assert exact[0] <= BUDGET[0] < exact[1]
    assert stop.record.status == "ok"
    assert stop.record.privacy is not None
    assert stop.record.privacy.epsilon == pytest.approx(exact[0], abs=2e-3)


def test_a_scheduler_may_round_otherwise_than_its_formula() -> None:
    from opacus.schedulers import ExponentialNoise

    parts, stop = private_parts(noise=3.0), budget_of(noise_multiplier=lambda step: 3.0 * 0.99**step)
    scheduler = ExponentialNoise(parts.optimizer, gamma=0.99)
    assert train(stop, parts, most=25, between=lambda _: scheduler.step()) == 25
    assert stop.record.status == "ok"


def test_a_rate_that_is_rounded_otherwise_is_the_larger_one() -> None:
    stop, parts = budget_of(sample_rate=RATE * (1 - 1e-12)), private_parts()
    assert train(stop, parts, most=3) == 3
    assert stop.record.identity.parameters["sample_rate"] == RATE


def test_the_statement_is_that_of_the_command(tmp_path: Path) -> None:
    stop = budget_of(tmp_path)
    train(stop, private_parts(), most=3)
    command = [sys.executable, "-m", "dphpo_bench", "statement", str(stop.path)]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    assert process.stdout.rstrip() == stop.statement().rstrip()


def test_more_noise_than_declared_is_covered() -> None:
    parts, stop = private_parts(noise=3.0), budget_of(noise_multiplier=2.0)

    def grow(_: int) -> None:
        parts.optimizer.noise_multiplier *= 1.05

    train(stop, parts, most=70, between=grow)
    assert stop.record.status == "ok"
    privacy = stop.record.privacy
    assert privacy is not None
    assert privacy.recomputed is not None
    assert privacy.recomputed.epsilon < privacy.planned.epsilon
    assert stop.record.identity.parameters["noise_multiplier"] == 2.0


def test_a_step_that_no_accountant_saw_ends_it() -> None:
    parts, stop = private_parts(), budget_of(sample_rate=RATE, accountant=PRVAccountant())
    parts.optimizer.attach_step_hook(lambda _: None)
    with pytest.raises(OverBudgetError, match="recorded no step although the optimizer took one"):
        train(stop, parts, most=4)
    assert stop.record.released == {"steps": 1}


def test_a_step_that_nothing_covers_is_counted_beside_the_plan(tmp_path: Path) -> None:
    parts, stop = private_parts(), budget_of(tmp_path)
    begin(stop, parts, most=20)
    stop.before_step()
    parts.optimizer.noise_multiplier = 1.5  # by a hook of the user, after the callback looked
    step(parts)
    with pytest.raises(
        OverBudgetError, match=r"noise multiplier 1\.5 was recorded, which the declared 0\.25 and 2 do not"
    ):
        stop.after_step()
    (entry,) = Account(tmp_path).read()[1]
    assert entry.dp_event == dpa.ComposedDpEvent((dp_sgd_event(RATE, 1, 1.5), dp_sgd_event(RATE, 20, 2.0)))
    assert stop.record.status == "over_budget"


def test_a_batch_of_several_pieces_is_one_step() -> None:
    from opacus.utils.batch_memory_manager import wrap_data_loader

    parts, stop = private_parts(), budget_of()
    parts.loader = wrap_data_loader(data_loader=parts.loader, max_batch_size=6, optimizer=parts.optimizer)
    begin(stop, parts, most=50)
    for batch in parts.loader:
        stop.before_step()
        step(parts, batch)
        stop.after_step()
    stop.end()
    assert stop.taken == sum(times for *_, times in parts.engine.accountant.history) == 4


def test_several_batches_are_no_step(tmp_path: Path) -> None:
    """Opacus refuses them where its engine drew the batches; with Poisson batches of the caller's it does not."""
    parts, stop = private_parts(poisson_sampling=False), budget_of(tmp_path)
    parts.loader = DPDataLoader.from_data_loader(DataLoader(parts.loader.dataset, batch_size=16))
    begin(stop, parts, most=5)
    for inputs, labels in list(parts.loader)[:2]:
        torch.nn.functional.cross_entropy(parts.model(inputs), labels).backward()
    with pytest.raises(OverBudgetError, match="got several backward passes: a record may be in several"):
        stop.before_step()
    assert not Account(tmp_path).read()[1]


def test_declared_steps_are_counted_before_they_are_taken() -> None:
    optimizer = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
    stop = budget_of(sample_rate=RATE, noise_multiplier=2.0)
    stop.begin("model", optimizer, None, 3, 0)
    for ends in (False, False, True):
        stop.before_step()
        assert stop.after_step() == ends
    stop.end()
    assert "3 × Poisson(q=0.25; Gaussian σ=2)" in stop.statement()


def test_a_training_that_is_not_private_is_refused(tmp_path: Path) -> None:
    optimizer = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
    for how in ({}, {"sample_rate": RATE}, {"accountant": PRVAccountant(), "sample_rate": RATE}):
        with pytest.raises(InvalidValueError, match=r"This trainer is not private: its optimizer \(SGD\)"):
            budget_of(tmp_path, **how).begin("model", optimizer, None, 3, 0)
    parts = private_parts()
    parts.optimizer.step_hook = None
    with pytest.raises(InvalidValueError, match="No accountant sees the steps"):
        begin(budget_of(tmp_path), parts)
    assert not Account(tmp_path).path.exists()


def test_batches_of_a_fixed_size_are_refused() -> None:
    parts = private_parts()
    parts.loader = torch.utils.data.DataLoader(parts.loader.dataset, batch_size=16, shuffle=True)
    with pytest.raises(InvalidValueError, match="got batches of a fixed size from a DataLoader"):
        begin(budget_of(), parts)
    with pytest.raises(InvalidValueError, match="got batches of a fixed size"):
        begin(budget_of(), private_parts(poisson_sampling=False))


@pytest.mark.parametrize("sampler", [SortedBatches(RandomSampler(range(64)), 16, False), [[0, 1], [2, 3]]])
def test_batches_of_a_sampler_that_says_nothing_are_refused(sampler: Any) -> None:
    parts = private_parts()
    parts.loader = DataLoader(parts.loader.dataset, batch_sampler=sampler)
    with pytest.raises(InvalidValueError, match="says so by an attribute sample_rate"):
        begin(budget_of(), parts)


def test_larger_batches_than_declared_are_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"sample_rate=0\.1, and the accountant records 0\.25"):
        begin(budget_of(sample_rate=0.1), private_parts())
    parts = private_parts()
    parts.loader.batch_sampler.sample_rate = 0.5
    with pytest.raises(InvalidValueError, match=r"sample_rate=0\.25, and the loader draws with 0\.5"):
        begin(budget_of(), parts)


def test_another_accountant_than_the_optimizers_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="Another accountant"):
        begin(budget_of(accountant=PRVAccountant()), private_parts())
    parts = private_parts()
    begin(budget_of(accountant=parts.engine), parts, most=3)


def seeded_steps(*, counted: bool, generator: torch.Generator | None = None) -> tuple[list[Any], torch.Tensor]:
    """Take two steps after a seed that everybody knows; return the batches and the weights."""
    parts = private_parts(noise_generator=generator)
    if counted:
        begin(budget_of(), parts, most=2)
    torch.manual_seed(42)
    batches = [next(iter(parts.loader)) for _ in range(2)]
    for batch in batches:
        step(parts, batch)
    return [inputs.tolist() for inputs, _ in batches], next(parts.model.parameters()).detach()


def test_a_public_seed_tells_nothing_of_noise_and_batches() -> None:
    (public, weights), (same, same_weights) = seeded_steps(counted=False), seeded_steps(counted=False)
    assert public == same
    assert torch.equal(weights, same_weights)  # which is what the callback mends
    (first, weights), (second, other_weights) = seeded_steps(counted=True), seeded_steps(counted=True)
    assert public != first != second
    assert not torch.equal(weights, other_weights)


def test_a_generator_of_the_caller_stays() -> None:
    generator = torch.Generator().manual_seed(3)
    parts = private_parts(noise_generator=generator)
    begin(budget_of(), parts, most=2)
    assert parts.optimizer.generator is generator


def test_an_optimizer_of_one_process_is_refused_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opacus_parts, "place_in_group", lambda: (0, 2))
    with pytest.raises(InvalidValueError, match="distributed optimizer in 2 processes, got a DPOptimizer"):
        begin(budget_of(), private_parts())


def test_adaptive_clipping_that_records_too_little_is_refused() -> None:
    adaptive = {
        "clipping": "adaptive",
        "target_unclipped_quantile": 0.5,
        "clipbound_learning_rate": 0.2,
        "max_clipbound": 10.0,
        "min_clipbound": 0.1,
        "unclipped_num_std": 5.0,
    }
    with pytest.raises(InvalidValueError, match="releases more than its accountant records"):
        begin(budget_of(), private_parts(**adaptive))


def test_ghost_clipping_that_a_trainer_leaves_out_is_refused() -> None:
    """With a plain backward, as trainers have it, Opacus sums up gradients of any norm."""
    engine, model, data = PrivacyEngine(), torch.nn.Linear(4, 2), TensorDataset(torch.ones(8, 4), torch.ones(8).long())
    _, optimizer, _, loader = engine.make_private(
        module=model.train(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        criterion=torch.nn.CrossEntropyLoss(),
        data_loader=DataLoader(data, batch_size=2),
        noise_multiplier=2.0,
        max_grad_norm=1.0,
        grad_sample_mode="ghost",
    )
    with pytest.raises(InvalidValueError, match="not clipped at all"):
        budget_of().begin(model, optimizer, loader, -1, 0)


def test_a_history_that_shrinks_is_refused() -> None:
    stop, parts = budget_of(), private_parts()
    begin(stop, parts, most=9)
    stop.before_step()
    step(parts)
    stop.after_step()
    parts.engine.accountant.history = []
    with pytest.raises(InvalidValueError, match="lost steps"):
        stop.before_step()


@pytest.mark.parametrize(
    ("how", "rule"),
    [
        ({"sample_rate": 0.0}, "0 < sample_rate <= 1"),
        ({"sample_rate": 1.5}, "0 < sample_rate <= 1, got sample_rate=1.5"),
        ({"noise_multiplier": 0}, "noise_multiplier > 0, got noise_multiplier=0"),
        ({"noise_multiplier": "much"}, "Expected noise_multiplier to be"),
        ({"accountant": 3}, "Expected an accountant or a PrivacyEngine of Opacus, got a int"),
        ({"name": "../x"}, "Expected a name of at most 64 letters"),
        ({"n_records": 0}, "n_records"),
        ({"public_evaluation": "no"}, "public_evaluation"),
        ({"results_dir": 3}, "Expected results_dir to be a path or a text or None"),
        ({"account": 3}, "Expected account to be a text or None"),
        ({"unit": ""}, "unit"),
        ({"budget": (3, 1e-5)}, "Expected budget to be a PrivacyBudget"),
    ],
)
def test_bad_values_are_refused_in_a_line(how: dict[str, Any], rule: str) -> None:
    with pytest.raises(InvalidValueError, match=rule.replace("(", r"\(")) as refusal:
        StepBudget(**{"budget": PrivacyBudget(*BUDGET), "name": "t", **how})
    assert "\n" not in str(refusal.value)


def test_a_noise_of_zero_is_refused_before_the_first_step() -> None:
    with pytest.raises(InvalidValueError, match="noise_multiplier > 0, got noise_multiplier=0"):
        begin(budget_of(), private_parts(noise=0.0))


def test_a_hundred_thousand_steps_are_cheap() -> None:
    parts, stop = private_parts(noise=4.0, records=4), budget_of(budget=(1e4, 1e-5), sample_rate=RATE)
    begin(stop, parts, most=100_000)
    for _ in range(100_000):
        stop.before_step()
        parts.engine.accountant.step(noise_multiplier=4.0, sample_rate=RATE)
        ends = stop.after_step()
    assert ends
    assert stop.taken == 100_000


def test_a_part_that_opacus_cannot_clip_costs_nothing(tmp_path: Path) -> None:
    class Shared(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift, self.layer = torch.nn.Embedding(4, 1), torch.nn.Linear(4, 2)

        def forward(self, inputs: torch.Tensor) -> Any:
            return self.layer(inputs + self.shift(torch.arange(4)[None])[..., 0])

    parts, stop = private_parts(model=Shared()), budget_of(tmp_path)
    begin(stop, parts)
    torch.nn.functional.cross_entropy(parts.model(torch.randn(8, 4)), torch.zeros(8, dtype=torch.int64)).backward()
    with pytest.raises(OverBudgetError, match=r"got 1 and 8 rows: .* nothing was counted"):
        stop.before_step()
    assert not Account(tmp_path).read()[1]
