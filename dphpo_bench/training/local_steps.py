"""The update of a client that takes several steps on its own records: federated averaging."""

import torch
from torch import Tensor, nn
from torch.func import grad

from dphpo_bench.base.tensors import Tensors, each
from dphpo_bench.training.functional import call_with
from dphpo_bench.training.losses import PerRecord, check_one_each, tensors_of

Local = tuple[int, float] | None
"""Number and rate of the steps that a unit takes on its own records; None: it takes none, for a mean gradient."""


def local_update(
    model: nn.Module, inputs: Tensors, targets: Tensors, shares: Tensor, *, loss: PerRecord, steps: int, rate: float
) -> dict[str, Tensor]:
    """Return (w − w_E) / (E · rate), where w_E are the weights after E steps of gradient descent from the model's w.

    It is the mean of the gradients that the steps met, and computed so.

    Args:
        model: its weights stay.
        inputs: of one client's records, shape (1, n, ...).
        targets: of the same shape.
        shares: of each record in the client's mean loss, shape (1, n); 0 for a record that does not count.
        loss: per sample: (outputs, targets) → shape (n,).
        steps: E.

    Returns:
        A tensor for each trained parameter by name, with a first dimension of 1.
    """
    x, y = (each(lambda tensor: tensor[0], part) for part in (inputs, targets))

    def mean_loss(weights: dict[str, Tensor]) -> Tensor:
        # The model and the loss may write to their arguments.
        losses = loss(tensors_of(call_with(model, weights, each(Tensor.clone, x))), each(Tensor.clone, y))
        check_one_each(losses, shares.shape[1], "loss")
        return (losses * shares[0]).sum()

    weights = {name: weight.detach() for name, weight in model.named_parameters() if weight.requires_grad}
    total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for _ in range(steps):
        gradients = grad(mean_loss)(weights)
        total = {name: part + gradients[name] for name, part in total.items()}
        weights = {name: weight - rate * gradients[name] for name, weight in weights.items()}
    return {name: part[None] / steps for name, part in total.items()}
