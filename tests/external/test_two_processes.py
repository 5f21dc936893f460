"""One training in two processes: the first opens the account and writes the record, both stop after the same step."""

import subprocess
import sys
from pathlib import Path

import pytest

from dphpo_bench.harness.account import Account
from dphpo_bench.recipes.dp_sgd import dp_sgd_event
from tests.external.trainings import RATE

WORKER = """
import sys, warnings
import torch
from torch import nn, distributed
from torch.utils.data import DataLoader, TensorDataset
from opacus import PrivacyEngine
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel as Parallel
from dphpo_bench.base.errors import DphpoBenchError
from dphpo_bench.external.trainers import StepBudget
from dphpo_bench.privacy.budget import PrivacyBudget

rank, folder, name = int(sys.argv[1]), sys.argv[2], sys.argv[3]
warnings.simplefilter("ignore")
distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting-{name}", rank=rank, world_size=2)
torch.manual_seed(0)
model = Parallel(nn.Linear(4, 2))
data = TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,)))
engine = PrivacyEngine()
model, optimizer, loader = engine.make_private(
    module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), data_loader=DataLoader(data, batch_size=16),
    noise_multiplier=2.0, max_grad_norm=1.0,
)
stop = StepBudget(PrivacyBudget(1.5, 1e-5), name=name, results_dir=folder)
try:
    stop.begin(model, optimizer, loader, -1, 0)
    for _ in range(200):
        inputs, labels = next(iter(loader))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        stop.before_step()
        optimizer.step()
        if not stop.has_next:
            break
    stop.end()
    weights = next(model.parameters()).detach().sum().item()
    print(stop.taken, engine.accountant.history, stop.finished is not None, round(weights, 4), flush=True)
except DphpoBenchError as error:
    print(error, flush=True)
"""


def both(folder: Path, name: str) -> list[str]:
    """Run both processes to their end, and return what each printed."""
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(rank), str(folder), name],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [worker.communicate(timeout=120) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0], outputs
    return [output.strip() for output, _ in outputs]


def test_two_processes_stop_at_one_step_and_write_one_record(tmp_path: Path) -> None:
    first, second = both(tmp_path, "ddp")
    taken, rest = first.split(" ", 1)
    assert rest.startswith(f"[(2.0, {RATE}, {taken})] True")
    assert second == first.replace("True", "False")
    (entry,) = Account(tmp_path).read()[1]
    assert entry.dp_event == dp_sgd_event(RATE, int(taken), 2.0)
    assert entry.status == "ok"
    assert len(list((tmp_path / "ddp").rglob("*.json"))) == 1


@pytest.mark.slow
def test_a_refusal_reaches_both(tmp_path: Path) -> None:
    Account(tmp_path).open_with_cap(0.5, 1e-5)
    first, second = both(tmp_path, "refused")
    assert first == second
    assert "does not cover this release" in first
