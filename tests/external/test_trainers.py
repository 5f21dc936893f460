"""The steps that a budget covers: counted before the first, stopped after the last, refused where ε would not hold."""

from pathlib import Path
from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from opacus.schedulers import ExponentialNoise
from opacus.utils.batch_memory_manager import wrap_data_loader
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from dphpo_bench.base.errors import AccountError, BudgetTooSmallError, InvalidValueError, OverBudgetError, RecordError
from dphpo_bench.external.declared import steps_within
from dphpo_bench.external.trainers import StepBudget
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


def begin(stop: StepBudget, parts: Parts, most: float = -1, done: int = 0) -> None:
    stop.begin(parts.model, parts.optimizer, parts.loader, most, done)


def train(stop: StepBudget, parts: Parts, most: float = -1) -> int:
    """Train to the last planned step, and return the number of steps."""
    begin(stop, parts, most)
    while stop.has_next:
        step(parts)
    stop.end()
    return stop.taken


def test_the_training_stops_with_the_last_step_that_fits(tmp_path: Path) -> None:
    parts, stop = private_parts(), budget_of(tmp_path, n_records=64)
    begin(stop, parts)
    (entry,) = Account(tmp_path).read()[1]  # before the first step
    assert (entry.what, entry.method, entry.task, entry.status) == ("training", "dp_sgd", "t", "open")
    while stop.has_next:
        step(parts)
    stop.end()
    assert stop.taken == stop.steps == steps_within(PrivacyBudget(*BUDGET), RATE, 2.0)
    assert entry.dp_event == dp_sgd_event(RATE, stop.taken, 2.0)
    assert parts.engine.accountant.history == [(2.0, RATE, stop.taken)]
    finished = stop.finished
    assert finished is not None
    assert read_record(finished.path or "") == finished.record
    assert finished.record.accounting == "declared by the caller"
    assert finished.record.released == {"steps": stop.taken}
    assert f"{stop.taken} × Poisson(q=0.25; Gaussian σ=2)" in finished.statement()
    assert "The account main counts this run" in finished.statement()


@pytest.mark.parametrize("most", [5, float("inf")])
def test_a_trainer_that_wants_fewer_steps_is_charged_for_those(most: float) -> None:
    stop = budget_of()
    train(stop, private_parts(), most)
    assert stop.steps == min(most, steps_within(PrivacyBudget(*BUDGET), RATE, 2.0))


def test_a_cap_that_does_not_cover_it_stops_it_before_the_first_step(tmp_path: Path) -> None:
    Account(tmp_path).open_with_cap(3.0, 1e-5)
    train(budget_of(tmp_path, "first", (2.9, 1e-5)), private_parts())
    parts = private_parts()
    with pytest.raises(AccountError, match="does not cover this release"):
        begin(budget_of(tmp_path, "second", (1.5, 1e-5)), parts)
    with pytest.raises(BudgetTooSmallError, match=r"No step fits epsilon=0\.1 at delta=1e-05"):
        begin(budget_of(tmp_path, "third", (0.1, 1e-5)), parts)
    assert len(Account(tmp_path).read()[1]) == 1


def test_a_second_release_is_refused(tmp_path: Path) -> None:
    stop, parts = budget_of(tmp_path), private_parts()
    begin(stop, parts, most=3)
    with pytest.raises(InvalidValueError, match="that is another release"):
        begin(stop, private_parts())  # of this callback
    with pytest.raises(RecordError, match="is under way in another process"):
        begin(budget_of(tmp_path), private_parts())
    assert stop._run is not None
    stop._run.release()  # as the end of a process does
    with pytest.raises(RecordError, match="was interrupted, and code of yours cannot go on"):
        begin(budget_of(tmp_path), private_parts())
    with pytest.raises(InvalidValueError, match="that is another release"):
        begin(budget_of(tmp_path, "later"), private_parts(), done=6)  # of a checkpoint
    step(parts)
    with pytest.raises(InvalidValueError, match="that is another release"):
        begin(budget_of(tmp_path, "later"), parts)  # of this optimizer
    assert len(Account(tmp_path).read()[1]) == 1


def test_a_step_after_the_last_is_stopped_before_it_is_taken(tmp_path: Path) -> None:
    stop, parts = budget_of(tmp_path), private_parts()
    begin(stop, parts, most=2)
    for _ in range(2):
        step(parts)
    with pytest.raises(OverBudgetError, match="The Trainer goes on after 2 steps, and no more were planned"):
        step(parts)
    assert stop.finished is not None
    assert stop.finished.record.status == "failed"


def test_a_step_after_the_end_is_stopped_before_it_is_taken() -> None:
    stop, parts = budget_of(), private_parts(poisson_sampling=False)  # whose engine keeps no history
    parts.loader = DPDataLoader.from_data_loader(DataLoader(parts.loader.dataset, batch_size=16))
    train(stop, parts, most=2)
    with pytest.raises(OverBudgetError, match="The Trainer goes on after 2 steps"):
        step(parts)
    parts.engine.accountant.history.clear()
    with pytest.raises(InvalidValueError, match="that is another release"):
        begin(budget_of(), parts)


def test_noise_may_rise_and_not_fall() -> None:
    parts, stop = private_parts(), budget_of()
    begin(stop, parts)
    for gamma in (1.5, 0.5):
        step(parts)
        ExponentialNoise(parts.optimizer, gamma=gamma).step()
    with pytest.raises(OverBudgetError, match=r"The noise of step 3 fell to 1\.5, and 2 is declared"):
        step(parts)


def test_a_batch_of_several_pieces_is_one_step() -> None:
    parts, stop = private_parts(), budget_of()
    parts.loader = wrap_data_loader(data_loader=parts.loader, max_batch_size=6, optimizer=parts.optimizer)
    begin(stop, parts, most=50)
    for batch in parts.loader:
        step(parts, batch)
    assert stop.taken == sum(times for *_, times in parts.engine.accountant.history) == 4


def test_several_batches_are_no_step() -> None:
    """Opacus refuses them where its engine drew the batches; with Poisson batches of the caller's it does not."""
    parts, stop = private_parts(poisson_sampling=False), budget_of()
    parts.loader = DPDataLoader.from_data_loader(DataLoader(parts.loader.dataset, batch_size=16))
    begin(stop, parts, most=5)
    for inputs, labels in list(parts.loader)[:2]:
        torch.nn.functional.cross_entropy(parts.model(inputs), labels).backward()
    with pytest.raises(OverBudgetError, match="got several backward passes: a record may be in several"):
        parts.optimizer.step()


def test_a_training_that_is_not_private_is_refused(tmp_path: Path) -> None:
    optimizer = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(InvalidValueError, match=r"This trainer is not private: its optimizer \(SGD\)"):
        budget_of(tmp_path).begin("model", optimizer, None, 3, 0)
    with pytest.raises(InvalidValueError, match="noise_multiplier > 0, got noise_multiplier=0"):
        begin(budget_of(tmp_path), private_parts(noise=0.0))
    assert not Account(tmp_path).path.exists()


@pytest.mark.parametrize(
    "loader",
    [{"batch_size": 16}, {"batch_sampler": SortedBatches(RandomSampler(range(64)), 16, False)}],
)
def test_batches_of_a_fixed_size_are_refused(loader: dict[str, Any]) -> None:
    parts = private_parts()
    parts.loader = DataLoader(parts.loader.dataset, **loader)
    with pytest.raises(InvalidValueError, match="Expected Poisson batches, on which ε relies"):
        begin(budget_of(), parts)


def seeded_steps(*, counted: bool, generator: torch.Generator | None = None) -> tuple[list[Any], torch.Tensor]:
    """Take two steps after a seed that everybody knows; return the batches and the weights."""
    parts = private_parts(noise_generator=generator)
    if counted:
        begin(budget_of(), parts, most=2)
        assert generator is None or parts.optimizer.generator is generator
    torch.manual_seed(42)
    batches = [next(iter(parts.loader)) for _ in range(2)]
    for batch in batches:
        step(parts, batch)
    return [inputs.tolist() for inputs, _ in batches], next(parts.model.parameters()).detach()


def test_a_public_seed_says_nothing_of_noise_and_batches() -> None:
    (public, weights), (same, same_weights) = seeded_steps(counted=False), seeded_steps(counted=False)
    assert public == same
    assert torch.equal(weights, same_weights)  # which is what the callback mends
    (first, weights), (second, other_weights) = seeded_steps(counted=True), seeded_steps(counted=True)
    assert public != first != second
    assert not torch.equal(weights, other_weights)
    seeded_steps(counted=True, generator=torch.Generator().manual_seed(3))


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
