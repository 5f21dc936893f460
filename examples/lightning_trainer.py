"""A Trainer of Lightning that stops when its privacy budget is spent: the lines marked with # + are new.

python examples/lightning_trainer.py
"""

import lightning
import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, TensorDataset

import dphpo_bench as bench

records = TensorDataset(torch.randn(256, 4), torch.randint(0, 2, (256,)))
network, optimizer, loader = PrivacyEngine().make_private(
    module=(model := torch.nn.Linear(4, 2)),
    optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
    data_loader=DataLoader(records, batch_size=32),
    noise_multiplier=2.0,
    max_grad_norm=1.0,
)


class Classifier(lightning.LightningModule):
    """The network and its private optimiser, as Opacus made them."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Return the loss of a batch."""
        return torch.nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Opacus' optimiser."""
        return optimizer


if __name__ == "__main__":
    callback = bench.lightning.BudgetCallback(bench.PrivacyBudget(1, 1e-5), name="net", results_dir="results")  # +
    trainer = lightning.Trainer(max_epochs=100, logger=False, enable_checkpointing=False, callbacks=[callback])  # +
    trainer.fit(Classifier(), loader)
    print(f"Stopped after {callback.taken} steps.\n{callback.finished.statement()}")
