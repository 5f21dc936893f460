from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import (
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
)
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dphpo_bench.base.errors import InvalidValueError, OverBudgetError
from dphpo_bench.external.declared import steps_within
from dphpo_bench.lightning import BudgetCallback
from dphpo_bench.privacy.budget import PrivacyBudget
from tests.external.trainings import BUDGET, RATE

pytestmark = [
    pytest.mark.filterwarnings("ignore:Full backward hook"),
    pytest.mark.filterwarnings("ignore:No account counts this"),
    pytest.mark.filterwarnings("ignore:Secure RNG turned off"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*is smaller than the logging interval"),
]
NOISE = 2.0


class Network(lightning.LightningModule):
    """A private training as Opacus documents it: `configure_optimizers` makes it private."""

    def __init__(
        self, *, automatic: bool = True, private: bool = True, optimizers: int = 1, wraps: bool = True
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network: nn.Module = nn.Linear(4, 2)
        self.privacy_engine = PrivacyEngine()
        self.automatic_optimization = automatic
        self.private, self.count, self.wraps = private, optimizers, wraps
        self.falls_at, self.wrapped = -1, True

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        inputs, labels = batch
        loss = nn.functional.cross_entropy(self.network(inputs), labels)
        optimizer: Any = self.optimizers()
        if self.global_step == self.falls_at:
            optimizer.optimizer.noise_multiplier /= 2
        if not self.automatic_optimization:
            optimizer = optimizer if self.wrapped else optimizer.optimizer
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", nn.functional.cross_entropy(self.network(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        optimizers = [torch.optim.SGD(self.network.parameters(), lr=0.1) for _ in range(self.count)]
        if not self.private:
            return optimizers
        wrapped, optimizer, self.trainer.datamodule.loader = self.privacy_engine.make_private(
            module=self.network,
            optimizer=optimizers[0],
            data_loader=self.trainer.datamodule.plain(),
            noise_multiplier=NOISE,
            max_grad_norm=1.0,
            wrap_model=self.wraps,
        )
        if self.wraps:
            self.network = wrapped
        return optimizer


class Data(lightning.LightningDataModule):
    loader: Any = None

    def __init__(self, *, evaluates: bool = False) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.records = TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,)))
        if evaluates:
            self.val_dataloader = self.plain  # type: ignore[method-assign]

    def plain(self) -> Any:
        return DataLoader(self.records, batch_size=16)

    def train_dataloader(self) -> Any:
        return self.loader or self.plain()


def callback_of(folder: Path | None = None, name: str = "net", **how: Any) -> BudgetCallback:
    return BudgetCallback(PrivacyBudget(*BUDGET), name=name, results_dir=folder, **how)


def trainer_of(folder: Path, *callbacks: Any, **settings: Any) -> lightning.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}
    checkpoints = {"enable_checkpointing": any(isinstance(callback, ModelCheckpoint) for callback in callbacks)}
    return lightning.Trainer(
        accelerator="cpu",
        devices=1,
        default_root_dir=folder,
        callbacks=list(callbacks),
        **{"max_epochs": 100} | quiet | checkpoints | settings,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("automatic", [True, False])
def test_the_trainer_stops_at_the_budget_with_a_record(tmp_path: Path, automatic: bool) -> None:
    callback, module = callback_of(tmp_path), Network(automatic=automatic)
    trainer = trainer_of(tmp_path, callback, max_epochs=-1)
    trainer.fit(module, datamodule=Data())
    taken = trainer.global_step
    assert taken == steps_within(PrivacyBudget(*BUDGET), RATE, NOISE)
    assert module.privacy_engine.accountant.history == [(NOISE, RATE, taken)]
    assert callback.finished is not None
    assert callback.finished.record.status == "ok"
    assert f"{taken} × Poisson(q=0.25; Gaussian σ=2)" in callback.finished.statement()


def test_steps_of_an_optimizer_without_lightnings_wrapper_count(tmp_path: Path) -> None:
    callback, module = callback_of(tmp_path), Network(automatic=False)
    module.wrapped = False
    trainer_of(tmp_path, callback, max_epochs=30).fit(module, datamodule=Data())
    assert callback.taken == callback.steps == steps_within(PrivacyBudget(*BUDGET), RATE, NOISE)
    assert module.privacy_engine.accountant.history == [(NOISE, RATE, callback.taken)]


def test_planned_steps_are_the_trainers_if_the_budget_covers_them(tmp_path: Path) -> None:
    callback = callback_of()
    trainer = trainer_of(tmp_path, callback, max_epochs=2)
    trainer.fit(Network(), datamodule=Data())
    assert callback.steps == callback.taken == trainer.global_step == 8


@pytest.mark.parametrize(("poisson", "why"), [(True, "rate of batches became 0.5"), (False, "got batches of a fixed")])
def test_a_loader_that_a_later_epoch_makes_anew_draws_as_declared(tmp_path: Path, poisson: bool, why: str) -> None:
    class Anew(Data):
        def train_dataloader(self) -> Any:
            if self.trainer.current_epoch < 2:
                return super().train_dataloader()
            larger = DataLoader(self.records, batch_size=32)
            return DPDataLoader.from_data_loader(larger) if poisson else larger

    callback, module = callback_of(tmp_path), Network()
    with pytest.raises(OverBudgetError, match=why):
        trainer_of(tmp_path, callback, reload_dataloaders_every_n_epochs=1).fit(module, datamodule=Anew())
    assert module.privacy_engine.accountant.history == [(NOISE, RATE, callback.taken)]
    assert callback.finished is not None
    assert callback.finished.record.status == "failed"


def test_batches_that_are_added_up_are_refused(tmp_path: Path) -> None:
    callback, later = callback_of(tmp_path / "results"), GradientAccumulationScheduler({2: 4})
    for trainer in (trainer_of(tmp_path, callback, accumulate_grad_batches=4), trainer_of(tmp_path, callback, later)):
        with pytest.raises(InvalidValueError, match="got accumulate_grad_batches=4: a record may be in several"):
            trainer.fit(Network(), datamodule=Data())
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    "chooser", [EarlyStopping("val_loss"), ModelCheckpoint(monitor="val_loss"), LearningRateFinder()]
)
def test_a_choice_by_raw_scores_is_refused_before_anything_is_read(tmp_path: Path, chooser: Any) -> None:
    trainer, module = trainer_of(tmp_path, callback_of(), chooser), Network()
    with pytest.raises(InvalidValueError, match=f"{type(chooser).__name__} choose by raw scores"):
        trainer.fit(module, datamodule=Data(evaluates=True))
    assert module.privacy_engine.accountant.history == []


def test_a_schedule_that_looks_at_scores_is_refused(tmp_path: Path) -> None:
    class Plateau(Network):
        def configure_optimizers(self) -> Any:
            optimizer = super().configure_optimizers()
            schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"}}

    with pytest.raises(InvalidValueError, match="schedulers that read a score choose by raw scores"):
        trainer_of(tmp_path, callback_of()).fit(Plateau(), datamodule=Data(evaluates=True))


def test_public_evaluation_may_choose(tmp_path: Path) -> None:
    callback = callback_of(public_evaluation=True)
    choosers = EarlyStopping(monitor="val_loss", patience=1), ModelCheckpoint(monitor="epoch", mode="max")
    trainer = trainer_of(tmp_path, callback, *choosers, max_epochs=30, num_sanity_val_steps=2)
    trainer.fit(Network(), datamodule=Data(evaluates=True))
    assert 0 < callback.taken <= callback.steps


@pytest.mark.parametrize(
    ("chooser", "evaluates"),
    [
        (EarlyStopping("train_loss"), False),
        (ModelCheckpoint(monitor="train_loss"), True),
        (LearningRateFinder(), True),
    ],
)
def test_losses_of_training_records_may_not_choose(tmp_path: Path, chooser: Any, evaluates: bool) -> None:
    class Logs(Network):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            loss = super().training_step(batch, batch_idx)
            self.log("train_loss", loss, on_epoch=True)
            return loss

    callback, module = callback_of(tmp_path / "results", public_evaluation=True), Logs()
    public = ModelCheckpoint(monitor="val_loss")
    trainer = trainer_of(tmp_path, callback, chooser, *[public] * evaluates, num_sanity_val_steps=2)
    with pytest.raises(InvalidValueError, match=f"^{type(chooser).__name__} choose by raw losses of the training"):
        trainer.fit(module, datamodule=Data(evaluates=evaluates))
    assert module.privacy_engine.accountant.history == []
    assert not (tmp_path / "results").exists()


def test_raw_values_that_the_trainer_shows_are_named(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, callback_of(), max_epochs=1)
    with pytest.warns(UserWarning, match="and scores of evaluations, without noise"):
        trainer.fit(Network(), datamodule=Data(evaluates=True))


def test_half_precision_and_two_optimizers_are_refused(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, callback_of(), precision="16-true")
    with pytest.raises(InvalidValueError, match="got precision='16-true'"):
        trainer.fit(Network(), datamodule=Data())
    module = Network(private=False, automatic=False, optimizers=2)
    with pytest.raises(InvalidValueError, match="Expected one optimizer, whose steps are counted"):
        trainer_of(tmp_path, callback_of()).fit(module, datamodule=Data())


@pytest.mark.parametrize("automatic", [True, False])
def test_a_lower_noise_ends_the_training_before_its_step(tmp_path: Path, automatic: bool) -> None:
    callback, module = callback_of(), Network(automatic=automatic)
    module.falls_at = 3
    with pytest.raises(OverBudgetError, match="The noise of step 4 fell to 1"):
        trainer_of(tmp_path, callback).fit(module, datamodule=Data())
    assert module.privacy_engine.accountant.history == [(NOISE, RATE, 3)]
    assert callback.finished is not None
    assert callback.finished.record.status == "failed"
