"""Muon on private gradients: steps along orthogonalised matrices."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import dphpo_bench as bench

from .dp_sgd import FixedDpSgd

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class Muon(FixedDpSgd):
    """Muon (Jordan et al. 2024) for the matrices of hidden layers, AdamW for the rest, fed with noisy gradients.

    A step of a matrix moves along U Vᵀ, where U S Vᵀ is its momentum: all directions get the same length, by five
    Newton–Schulz iterations. The optimiser is PyTorch's at its defaults, with the scaling of Liu et al. 2025
    (arXiv:2502.16982), by which an entry moves as far as with AdamW, so both have the same learning rate. As Muon's
    authors advise, embeddings and the last layer are AdamW's. A model without other matrices is trained by AdamW alone.

    All of it is post-processing of released gradients: T × Poisson(q; Gaussian σ). Noise of equal size on all entries
    fills all directions of a matrix alike, and the orthogonalised step gives them as much weight as the signal's few.

    The other parameters are those of every `SingleRun`.

    Attributes:
        learning_rate: of both; default: the task's.
        optimizer: of the rest; default: the task's.
    """

    name = "muon"
    summary = "Muon for hidden matrices, the task's optimiser for the rest, at the task's learning rate."
    reference = "Jordan et al. 2024, Muon: An optimizer for hidden layers in neural networks; torch.optim.Muon"

    def run(self, plan: bench.Plan[bench.recipes.DpSgd], session: "bench.Session") -> bench.Outcome:
        """Train for T steps."""
        training, model = plan.parameters, session.build_model()
        weights = bench.recipes.trainable(model)
        hidden = [any(weight is matrix for matrix in hidden_matrices(model)) for weight in weights]
        updates = [
            (mask, bench.recipes.UpdateRule(name, [w for w, mine in zip(weights, mask, strict=True) if mine], options))
            for mask, name, options in (
                (hidden, "Muon", {"adjust_lr_fn": "match_rms_adamw"}),
                ([not mine for mine in hidden], training.optimizer, {}),
            )
            if any(mask)
        ]
        state = [update for _, update in updates]
        for _ in bench.recipes.training_steps(session, training.steps, [model], [training.averaging], state=state):
            gradient = training.gradient(session, model)
            for mask, update in updates:
                part = [value for value, mine in zip(gradient, mask, strict=True) if mine]
                update.apply(update.direction(part), training.learning_rate)
        return bench.Outcome(model, {"learning_rate": training.learning_rate, "matrices": sum(hidden)})


def hidden_matrices(model: "nn.Module") -> "Sequence[Tensor]":
    """Return the trained matrices that are neither of an embedding nor of the last layer."""
    from torch import nn

    layers = [layer for layer in model.modules() if any(w.requires_grad for w in layer.parameters(recurse=False))]
    inner = [layer for layer in layers[:-1] if not isinstance(layer, nn.Embedding)]
    weights = [weight for layer in inner for weight in layer.parameters(recurse=False)]
    return [weight for weight in weights if weight.requires_grad and weight.ndim == 2]
