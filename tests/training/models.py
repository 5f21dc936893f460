"""Small models, data and a brute-force reference for the tests of the training engine."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from dphpo_bench.base.tensors import Records
from dphpo_bench.training.clipping import Clipping
from dphpo_bench.training.engine import GradientEngine
from dphpo_bench.training.gradients import LoopEngine
from dphpo_bench.training.layerwise import LayerwiseEngine
from dphpo_bench.training.linear import LinearEngine
from dphpo_bench.training.losses import Objective, PerRecord, cross_entropy
from dphpo_bench.training.values import Query

BACKENDS = ("loop", "layerwise")


def engine_by(backend: str, model: nn.Module, micro_batch_size: int | None = None) -> GradientEngine:
    """An engine of this kind, whichever one suits the model; its micro-batches of this size, if one is given."""
    if backend == "linear":
        return cut(LinearEngine(model), micro_batch_size)
    kind = {"loop": LoopEngine, "layerwise": LayerwiseEngine}[backend]
    if micro_batch_size is not None:  # of the class: an engine may set its own
        kind = type("Cut", (kind,), {"_rows": property(lambda _: micro_batch_size, lambda *_: None)})
    return kind(model, cross_entropy)


def total_loss(model: nn.Module, losses: PerRecord, records: Records) -> float:
    """The sum of the records' losses, as queries compute it."""
    query = Query(lambda model, x, y: model.losses(x, y), 1e6)
    return query.total(model, Objective(losses, losses), records).item()


def cut(engine: LinearEngine, micro_batch_size: int | None) -> LinearEngine:
    """The engine, with micro-batches of this size, if one is given."""
    if micro_batch_size is not None:
        vars(engine)["_rows_at_once"] = lambda *_: micro_batch_size
    return engine


def linear(features: int = 20, classes: int = 5) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(features, classes)


def flat_linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(20, 5, bias=False))


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 7), nn.ReLU(), nn.Linear(7, 5))


def tanh_cnn() -> nn.Module:
    """The network of Papernot et al. 2021 for 28x28 grey pictures: 26,010 parameters."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )


def vectors(n: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scale = 10 ** torch.linspace(-2, 1, n)[:, None]
    return scale * torch.randn(n, 20, generator=generator), torch.randint(0, 5, (n,), generator=generator)


def pictures(n: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 1, 28, 28, generator=generator), torch.randint(0, 10, (n,), generator=generator)


def brute_force(model: nn.Module, inputs: Tensor, targets: Tensor, clipping: Clipping) -> list[Tensor]:
    """Clipped sum by one backward pass for each record, in the dtype of the model."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    total = [torch.zeros_like(p, requires_grad=False) for p in parameters]
    for x, y in zip(inputs, targets, strict=True):
        loss = functional.cross_entropy(model(x[None]), y[None])
        gradients = torch.autograd.grad(loss, parameters)
        norm = torch.sqrt(sum((g.double() ** 2).sum() for g in gradients))  # type: ignore[arg-type]
        if norm.isfinite():
            factor = clipping.factors(norm[None])[0].to(total[0].dtype)
            total = [t + factor * g for t, g in zip(total, gradients, strict=True)]
    return total


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def relative_error(actual: list[Tensor], expected: list[Tensor]) -> float:
    return float((flat(actual).double() - flat(expected).double()).norm() / flat(expected).double().norm())


class Calls(nn.Module):
    """A network whose forward pass is a function of its layers and its inputs."""

    def __init__(self, forward: Callable[..., Tensor], **layers: nn.Module | nn.Parameter) -> None:
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)
        self._call = forward

    def forward(self, x: Tensor) -> Tensor:
        return self._call(self, x)
