"""Time and memory of private steps on a GPU, beside steps without privacy and Opacus' hooks and ghost clipping.

    python -m research.gpu_steps                        # twelve minutes of a GPU at most; writes nothing
    python -m research.gpu_steps --device cpu --rows 8  # the same on a CPU, for a look at the script

All take turns in one process: what counts are ratios. Two more tables say what one process and four at once take, with
and without `expandable_segments:True`. Rows of the small vision transformer are a suite:

    dphpo-bench sweep leaderboard/suites/fine_tuning.toml --only model=small_vit --only seed=1000
"""

import argparse
import copy
import os
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from dphpo_bench.training.clipping import Abadi
from dphpo_bench.training.gradients import gradient_engine
from tests.benchmarks.test_training_speed import NETWORKS, LastState

ROWS = 1000
ROUNDS = 5
SECONDS = 40.0
"""Of all turns of a network; the first network after them is left out."""
RECURRENT = {"GRU": nn.GRU, "LSTM": nn.LSTM}
ALLOCATORS = {"default": "", "expandable segments": "expandable_segments:True"}


def network(name: str, device: str, rows: int) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a model with inputs and targets of so many rows, on a device."""
    if name in RECURRENT:
        model: nn.Module = LastState(RECURRENT[name](64, 64, batch_first=True))
        inputs, targets = torch.randint(0, 1000, (rows, 64)), torch.randint(0, 2, (rows,))
    else:
        model, inputs, targets = NETWORKS[name]()
        repeats = -(-rows // len(inputs))
        inputs, targets = (torch.cat([part] * repeats)[:rows] for part in (inputs, targets))
    return model.train().to(device), inputs.to(device), targets.to(device)


def private(model: nn.Module, inputs: Tensor, targets: Tensor) -> Callable[[], object]:
    """Return a step of this package: clipped gradients, summed up."""
    engine = gradient_engine(model)
    return lambda: engine.clipped_sum(inputs, targets, Abadi(1.0))


def plain(model: nn.Module, inputs: Tensor, targets: Tensor) -> Callable[[], object]:
    """Return a step without privacy."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return lambda: torch.autograd.grad(functional.cross_entropy(model(inputs), targets), trained)


def hooks(model: nn.Module, inputs: Tensor, targets: Tensor) -> Callable[[], object]:
    """Return a step of Opacus with gradients of single records."""
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    wrapped = GradSampleModule(copy.deepcopy(model))
    trained = [parameter for parameter in wrapped.parameters() if parameter.requires_grad]
    optimizer = DPOptimizer(torch.optim.SGD(trained, 0.0), noise_multiplier=0.0, max_grad_norm=1.0,
                            expected_batch_size=len(inputs))  # fmt: skip

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(wrapped(inputs), targets).backward()
        optimizer.pre_step()

    return step


def ghost(model: nn.Module, inputs: Tensor, targets: Tensor) -> Callable[[], object]:
    """Return a step of Opacus with two backward passes and no gradients of single records."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    wrapped = GradSampleModuleFastGradientClipping(copy.deepcopy(model), max_grad_norm=1.0)
    trained = [parameter for parameter in wrapped.parameters() if parameter.requires_grad]
    optimizer = DPOptimizerFastGradientClipping(torch.optim.SGD(trained, 0.0), noise_multiplier=0.0, max_grad_norm=1.0,
                                                expected_batch_size=len(inputs))  # fmt: skip
    loss = DPLossFastGradientClipping(wrapped, optimizer, nn.CrossEntropyLoss())

    def step() -> None:
        optimizer.zero_grad()
        loss(wrapped(inputs), targets).backward()
        optimizer.pre_step()

    return step


STEPS = {"plain": plain, "private": private, "hooks": hooks, "ghost": ghost}


def seconds(step: Callable[[], object], device: str) -> float:
    """Return the seconds that a step takes, until the device has ended it."""
    start = time.perf_counter()
    step()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def ratios(name: str, device: str, rows: int) -> str:
    """Return a row of the table of times; "–" where a peer fails."""
    model, inputs, targets = network(name, device, rows)
    best: dict[str, float] = {}
    steps = {}
    for kind, make in STEPS.items():
        try:
            steps[kind] = make(model, inputs, targets)
            seconds(steps[kind], device)
        except Exception as error:  # whatever a peer raises, out of memory included
            print(f"{name}, {kind}: {type(error).__name__}: {str(error).splitlines()[0][:120]}", file=sys.stderr)
            steps.pop(kind, None)
    end = time.perf_counter() + SECONDS
    for _ in range(ROUNDS):
        for kind, step in steps.items():
            best[kind] = min(best.get(kind, 1e9), seconds(step, device))
        if time.perf_counter() > end:
            break
    cells = [f"{best[kind] / best['plain']:.2f}" if kind in best else "–" for kind in STEPS if kind != "plain"]
    return f"| {name} | {1e3 * best['plain']:.1f} ms | {' | '.join(cells)} |"


def memory(processes: int, allocator: str, rows: int) -> str:
    """Return a row of the table of memory: so many processes at once train ViT-Ti, each some steps."""
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": ALLOCATORS[allocator]}
    command = [sys.executable, "-m", "research.gpu_steps", "--one", "--rows", str(rows)]
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    answers = [process.communicate()[0].split() or ["–", "–"] for process in running]
    return f"| {processes} | {allocator} | {' '.join(a[0] for a in answers)} | {' '.join(a[1] for a in answers)} |"


def one(rows: int) -> None:
    """Print the GiB that a process reserves, and the seconds of a step."""
    step = private(*network("ViT-Ti", "cuda", rows))
    times = [seconds(step, "cuda") for _ in range(10)]
    print(f"{torch.cuda.max_memory_reserved() / 2**30:.2f} {min(times):.3f}")


def main() -> None:
    """Print both tables as they come."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", type=int, default=ROWS, help="records of a step")
    parser.add_argument("--only", default="", help="networks whose name has this text")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(options.rows)
        return
    print("| network | plain | private | Opacus, hooks | Opacus, ghost |\n| --- | --- | --- | --- | --- |")
    for name in (*NETWORKS, *RECURRENT):
        if options.only in name:
            print(ratios(name, options.device, options.rows), flush=True)
    if options.device != "cpu":
        print("\n| processes | memory | GiB of each | s a step |\n| --- | --- | --- | --- |")
        for processes in (1, 4):
            for allocator in ALLOCATORS:
                print(memory(processes, allocator, options.rows), flush=True)


if __name__ == "__main__":
    main()
