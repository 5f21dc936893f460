"""Runs that are no better than a constant guess on the test records, and why that may be.

The reasons come from the test records and from the plan. The private records are not looked at: means and maxima of
their columns would be a release.
"""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.tensors import Records, leaves
from dphpo_bench.base.text import count, shown
from dphpo_bench.contract.guesses import best_guess, is_no_better
from dphpo_bench.contract.metrics import Metric
from dphpo_bench.harness.plan import CheckedPlan
from dphpo_bench.records.record import ConstantGuess

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dphpo_bench.contract.task import Task

LARGE = 10.0
"""A root mean square above this is not of the size 1 that networks learn from."""
SMALL = 0.02
FEW_STEPS = 50
NOISY = 0.5
"""Noise against the sum of clipped gradients of one direction, both over all steps, from which on it counts."""


DIVERGED = "some outputs are not finite: training diverged, as by a large learning rate or unscaled inputs"


def diverged(outputs: Any) -> bool:
    """Return whether a model's outputs, a tensor or several by name, hold NaN or infinity."""
    return outputs is not None and not all(bool(tensor.isfinite().all()) for tensor in leaves(outputs))


def constant_guess(
    task: "Task", test: Records, outputs: Any, metrics: dict[str, float], model: "nn.Module", checked: CheckedPlan
) -> ConstantGuess | None:
    """Return the best constant guess if a run's first metric is no better, with the reasons; else None.

    Args:
        task: the task.
        test: its test records, at least one.
        outputs: of the model, in the units of the targets; None if no metric is of outputs.
        metrics: of the run, by name.
        model: the trained model.
        checked: the run's plan.
    """
    first, facts = next(iter(task.metrics), None), checked.facts
    targets = test.targets
    if not isinstance(first, Metric) or outputs is None or isinstance(targets, dict):
        return None
    of_targets: Tensor = leaves(targets)[0]
    of_targets = (
        of_targets.double() if facts.kind == "regression" and not of_targets.is_floating_point() else of_targets
    )
    try:
        guess = best_guess(first, facts.kind, of_targets, facts.n_classes)
        if guess is None:
            return None
        if not is_no_better(first, metrics[first.name], guess, facts.kind, outputs, of_targets, facts.n_classes):
            return None
        return ConstantGuess(value=guess, why=reasons(task, test, outputs, model, checked))
    except Exception:  # targets and parameters of a plug-in may be of any form, and no run fails because of a guess
        return None


def reasons(task: "Task", test: Records, outputs: Any, model: "nn.Module", checked: CheckedPlan) -> str:
    """Return sentences on why a run may have learned nothing, the most probable reason first."""
    stated = [*_scales(task, test, outputs), *_of_the_plan(model, checked)]
    first = [f"{reason[0].upper()}{reason[1:]}." for reason in stated]
    if not first:
        return "Usual reasons: unscaled inputs or targets, too few steps, an untuned learning rate, a small budget."
    return " ".join(first)


def _scales(task: "Task", test: Records, outputs: Any) -> Iterator[str]:
    """Yield what is wrong with the sizes of outputs, inputs and targets."""
    if diverged(outputs):
        yield DIVERGED
    sizes = {name: _sizes(tensor) for name, tensor in test.named().items() if name.startswith("inputs")}
    for name, tensor in ((name, tensor) for name, tensor in sizes.items() if tensor is not None):
        title = name.replace("inputs.", "input ")
        large = (tensor > LARGE).nonzero().flatten().tolist()
        if large and len(tensor) > 1:
            which = ", ".join(map(str, large[:3])) + (f" and {len(large) - 3:,} more" if len(large) > 3 else "")
            columns = "column" if len(large) == 1 else "columns"
            title = f"{columns} {which} (counted from 0) of the {title}"
        if large:
            yield (
                f"{title} {'has' if len(large) == 1 else 'have'} sizes of up to {float(tensor.max()):.2g} in the test "
                "records: scale to about 1 by public constants, as bench.Number does"
            )
    known = [tensor for tensor in sizes.values() if tensor is not None]
    if known and all(float(tensor.max()) < SMALL for tensor in known):
        yield f"all inputs are below {SMALL:g} in the test records: scale to about 1 by public constants"
    if task.facts.kind == "regression":
        yield from _target_scale(task, leaves(test.targets)[0])


def _sizes(tensor: "Tensor") -> "Tensor | None":
    """Return the root mean square of each column, or of the whole input if it is no table; None of integers."""
    if not tensor.is_floating_point():
        return None
    values = tensor.float().flatten(1) if tensor.ndim == 2 else tensor.float().reshape(-1, 1)
    return values.square().mean(0).sqrt()


def _target_scale(task: "Task", targets: "Tensor") -> Iterator[str]:
    scaled = (targets if task.target_scale is None else task.target_scale.apply(targets)).double()
    size, spread = float(scaled.square().mean().sqrt()), float(scaled.std(correction=0))
    if size > LARGE or (spread < SMALL and len(targets) > 1):
        already = "" if task.target_scale is None else ", also by their target_scale"
        yield (
            f"targets have a size of {size:.2g} and a spread of {spread:.2g} in the test records{already}: declare "
            "target_scale=(typical, spread), so that the network learns numbers of about 1"
        )


def _of_the_plan(model: "nn.Module", checked: CheckedPlan) -> Iterator[str]:
    """Yield what is wrong with the number of steps, the learning rate and the noise."""
    plan, facts, method = checked.plan, checked.facts, checked.method
    steps = round(plan.cost.steps / max(plan.cost.runs, 1))
    if 0 < steps < FEW_STEPS:
        yield f"there were only {count(steps, 'step')}: more epochs or smaller batches give more"
    if "learning rate" not in method.tuning:
        rate = method.parameters.get("learning_rate")
        rate = facts.learning_rate if rate is None else rate
        yield f"nobody tuned the learning rate of {f'{rate:g}' if isinstance(rate, int | float) else shown(rate)}"
    gradients = max(plan.releases, key=lambda release: release.count, default=None)
    weights = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    if gradients is not None and gradients.noise_multiplier > 0:
        batch = gradients.sample_rate * facts.n_records
        noise = gradients.noise_multiplier * math.sqrt(weights / max(gradients.count, 1)) / batch
        if noise > NOISY:
            yield (
                f"noise of multiplier {gradients.noise_multiplier:.3g} on batches of {batch:,.0f} hides the gradients "
                f"of {weights:,} weights: larger batches, a larger ε, more records or a smaller network help"
            )
