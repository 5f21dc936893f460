"""What the probes of `hyfreedp_paper` see: slope and curvature as they are, as released, and the noise on them.

    python -m research.parabola --task digits --epsilon 3 [--set rule=paper] [--exact]

Each row is a probe: the learning rate η in force, the bound R, the mean clipped loss, b and a of the parabola through
the exact clipped losses of all records at w − ηG, w, w + ηG, the standard deviations that the noise gives b and a, both
from public numbers, b and a as released, and the rate that follows. `--exact` hands the exact losses to the rule: the
same run, its gradients as noisy, without noise on the losses. Neither is private, so this is for public data.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from typing import Any

import torch

import dphpo_bench as bench
from dphpo_bench.methods.hyfreedp_paper import HyFreeDPPaper
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.session.raw import RawRecords
from dphpo_bench.session.session import open_session
from dphpo_bench.training.randomness import Streams

EVERYTHING = bench.events.poisson_sampled(1.0, bench.events.repeat(bench.events.gaussian(0.0), 3))


class Watched:
    """A session, or a batch of it, whose probes are also answered exactly."""

    def __init__(self, session: bench.Session, exact: bool, seen: list[list[float]], batch: Any = None) -> None:
        self._session, self._exact, self._seen, self._batch = session, exact, seen, batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch or self._session, name)

    def sample(self, kind: Any, purpose: str = "training") -> "Watched":
        """A batch."""
        return Watched(self._session, self._exact, self._seen, self._session.sample(kind, purpose))

    def losses(self, model: Any, direction: Any, steps: Sequence[float], bound: float, noise: float) -> list[float]:
        """What the rule is told: as released, or as it is."""
        truth = bench.recipes.mean_losses(
            self._session.sample(EVERYTHING, "watching"), model, direction, steps, bound, 0.0
        )
        released: list[float] = bench.recipes.mean_losses(self._batch, model, direction, steps, bound, noise)
        self._seen.append(truth)
        return truth if self._exact else released


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="digits")
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="parameters of hyfreedp_paper")
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--rows", type=int, default=12, help="probes to print, evenly spaced")
    options = parser.parse_args()
    task, source = bench.make_task(options.task), bench.DataSource.resolve()
    task.prepare(source)
    method = bench.make_method("hyfreedp_paper", dict(text.split("=", 1) for text in options.set))
    assert isinstance(method, HyFreeDPPaper)
    plan = method.plan(task.facts, bench.PrivacyBudget(options.epsilon, task.facts.default_delta))
    session = open_session(RawRecords(task, task.load_train(source), "cpu"), Ledger(), Streams(options.seed))
    seen: list[list[float]] = []
    outcome = method.run(plan, Watched(session, options.exact, seen))  # type: ignore[arg-type]
    path = outcome.released["path"]
    size = plan.parameters.sample_rate * task.facts.n_records
    rows = []
    for found, truth in zip(path, seen, strict=True):
        h, noise = found["radius"], plan.parameters.loss_noise_multiplier * found["loss_bound"] / size
        (b, a), (b_seen, a_seen) = (
            bench.recipes.parabola(v, h) for v in (truth, [found[f"probe_{i}"] for i in range(3)])
        )
        sd_b, sd_a = noise / (math.sqrt(2) * h), math.sqrt(6) * noise / h**2
        rows.append(
            (found["step"], h, found["loss_bound"], truth[1], b, sd_b, b_seen, a, sd_a, a_seen, found["learning_rate"])
        )
    line = "{:>4} {:>9} {:>6} {:>6} | {:>9} {:>9} {:>9} | {:>9} {:>9} {:>9} | {:>9}\n"
    sys.stdout.write(line.format("step", "η", "R", "loss", "b", "sd", "seen", "a", "sd", "seen", "η after"))
    for row in rows[:: math.ceil(len(rows) / options.rows)]:
        sys.stdout.write(line.format(row[0], *(f"{value:.3g}" for value in row[1:])))
    drawn = statistics_of(rows)
    test = task.load_test(source)
    with torch.no_grad():
        score = task.ready("scores")(outcome.model.eval()(test.inputs), test.targets).mean()
    sys.stdout.write(f"{drawn}; test score {100 * float(score):.1f} %\n")


def statistics_of(rows: Sequence[tuple[float, ...]]) -> str:
    """How often the noise was smaller than what it hid, and how often it let the rule move."""
    n = len(rows)
    b, a = (sum(abs(row[i]) > row[i + 1] for row in rows) for i in (4, 7))
    moved = sum(row[6] > 0 and row[9] > 0 for row in rows)
    truly = sum(row[4] > 0 and row[7] > 0 for row in rows)
    return f"of {n} probes: |b| > sd in {b}, |a| > sd in {a}; b, a > 0 in {truly}, released in {moved}"


if __name__ == "__main__":
    main()
