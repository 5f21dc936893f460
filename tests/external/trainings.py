"""Small private trainings with Opacus, whose records have known noise."""

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

RATE = 0.25
BUDGET = (3.0, 1e-5)


@dataclass
class Parts:
    engine: Any
    model: nn.Module
    optimizer: Any
    loader: Any


def private_parts(noise: float = 2.0, records: int = 64, model: nn.Module | None = None, **how: Any) -> Parts:
    from opacus import PrivacyEngine

    torch.manual_seed(0)
    model = nn.Linear(4, 2) if model is None else model
    data = how.pop("data", None) or TensorDataset(torch.randn(records, 4), torch.randint(0, 2, (records,)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = PrivacyEngine()
        wrapped, optimizer, loader = engine.make_private(
            module=model.train(),
            optimizer=torch.optim.SGD([weight for weight in model.parameters() if weight.requires_grad], lr=0.1),
            data_loader=DataLoader(data, batch_size=int(RATE * records)),
            noise_multiplier=noise,
            max_grad_norm=1.0,
            **how,
        )
    return Parts(engine, wrapped if isinstance(wrapped, nn.Module) else model, optimizer, loader)


def step(parts: Parts, batch: Any = None) -> None:
    """Take one private step."""
    inputs, labels = next(iter(parts.loader)) if batch is None else batch
    parts.optimizer.zero_grad()
    nn.functional.cross_entropy(parts.model(inputs), labels).backward()
    parts.optimizer.step()
