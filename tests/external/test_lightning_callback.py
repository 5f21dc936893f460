import subprocess
import sys
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from dp_accounting import pld
from lightning.pytorch.callbacks import (
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
)
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dphpo_bench.base.errors import InvalidValueError, OverBudgetError
from dphpo_bench.harness.account import Account
from dphpo_bench.lightning import BudgetCallback
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.recipes.dp_sgd import dp_sgd_event
from dphpo_bench.records.store import read_record
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
        self.falls_at = -1

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        inputs, labels = batch
        loss = nn.functional.cross_entropy(self.network(inputs), labels)
        optimizer: Any = self.optimizers()
        if self.global_step == self.falls_at:
            optimizer.optimizer.noise_multiplier /= 2
        if not self.automatic_optimization:
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
    trainer = trainer_of(tmp_path, callback)
    trainer.fit(module, datamodule=Data())
    taken = trainer.global_step
    exact = [
        pld.PLDAccountant(value_discretization_interval=1e-4)
        .compose(dp_sgd_event(RATE, steps, NOISE))
        .get_epsilon(BUDGET[1])
        for steps in (taken, taken + 1)
    ]
    assert exact[0] <= BUDGET[0] < exact[1]
    assert module.privacy_engine.accountant.history == [(NOISE, RATE, taken)]
    assert module.privacy_engine.get_epsilon(BUDGET[1]) == pytest.approx(exact[0], abs=0.02)
    assert callback.record.privacy is not None
    assert callback.record.privacy.epsilon == pytest.approx(exact[0], abs=2e-3)
    assert read_record(callback.path or "") == callback.record
    assert f"{taken} × Poisson(q=0.25; Gaussian σ=2)" in callback.statement()


def test_planned_steps_are_the_trainers_if_the_budget_covers_them(tmp_path: Path) -> None:
    callback = callback_of()
    trainer = trainer_of(tmp_path, callback, max_epochs=2)
    trainer.fit(Network(), datamodule=Data())
    assert callback.planned is not None
    assert callback.planned.steps == callback.taken == trainer.global_step == 8


def test_a_trainer_without_an_end_is_stopped(tmp_path: Path) -> None:
    callback = callback_of()
    trainer_of(tmp_path, callback, max_epochs=-1).fit(Network(), datamodule=Data())
    assert callback.record.status == "ok"


def test_a_checkpoint_gives_no_free_steps(tmp_path: Path) -> None:
    class Kill(lightning.Callback):
        def on_train_batch_end(self, trainer: Any, *parts: Any) -> None:
            if trainer.global_step == 6:
                raise RuntimeError("killed")

    first = callback_of(tmp_path / "results")
    saved = ModelCheckpoint(tmp_path / "out", every_n_train_steps=4, save_top_k=-1, filename="{step}")
    with pytest.raises(RuntimeError, match="killed"):
        trainer_of(tmp_path, first, saved, Kill(), max_epochs=3).fit(Network(wraps=False), datamodule=Data())
    assert first._run is not None
    first._run.release()  # as the end of the process does

    second, path = callback_of(tmp_path / "results"), str(tmp_path / "out" / "step=4.ckpt")
    trainer = trainer_of(tmp_path, second, max_epochs=3)
    trainer.fit(Network(wraps=False), datamodule=Data(), ckpt_path=path, weights_only=False)
    assert trainer.global_step == 10  # 4 of the checkpoint and 6: two steps were taken twice
    assert [entry.dp_event for entry in Account(tmp_path / "results").read()[1]] == [dp_sgd_event(RATE, 12, NOISE)]

    other = callback_of(tmp_path / "results", "other")
    with pytest.raises(InvalidValueError, match="after step 4 of a checkpoint, of which the accountant knows 0"):
        trainer_of(tmp_path, other, max_epochs=3).fit(
            Network(wraps=False), datamodule=Data(), ckpt_path=path, weights_only=False
        )


def test_a_module_without_noise_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"This trainer is not private: its optimizer \(SGD\)"):
        trainer_of(tmp_path, callback_of()).fit(Network(private=False), datamodule=Data())


def test_batches_that_opacus_did_not_draw_are_refused(tmp_path: Path) -> None:
    data = Data()
    data.train_dataloader = data.plain  # type: ignore[method-assign]
    with pytest.raises(InvalidValueError, match="Expected Poisson batches, on which ε relies"):
        trainer_of(tmp_path, callback_of()).fit(Network(), datamodule=data)


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"accumulate_grad_batches": 4}, "got accumulate_grad_batches=4: a record may be in several"),
        ({"min_epochs": 3}, "Expected no min_epochs and no min_steps"),
        ({"min_steps": 3}, "Expected no min_epochs and no min_steps"),
    ],
)
def test_what_is_silently_wrong_is_refused(tmp_path: Path, settings: dict[str, Any], rule: str) -> None:
    callback = callback_of(tmp_path / "results")
    with pytest.raises(InvalidValueError, match=rule) as refusal:
        trainer_of(tmp_path, callback, **settings).fit(Network(), datamodule=Data())
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "results").exists()


def test_batches_that_are_added_up_later_on_are_refused(tmp_path: Path) -> None:
    later = GradientAccumulationScheduler({2: 4})
    with pytest.raises(InvalidValueError, match="got accumulate_grad_batches=4"):
        trainer_of(tmp_path, callback_of(), later).fit(Network(), datamodule=Data())


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

    with pytest.raises(InvalidValueError, match="schedulers that look at a score choose by raw scores"):
        trainer_of(tmp_path, callback_of()).fit(Plateau(), datamodule=Data(evaluates=True))


def test_a_module_without_an_optimizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="This trainer is not private"):
        trainer_of(tmp_path, callback_of()).fit(Network(private=False, optimizers=0), datamodule=Data())


def test_public_evaluation_may_choose(tmp_path: Path) -> None:
    callback = callback_of(public_evaluation=True)
    trainer = trainer_of(tmp_path, callback, EarlyStopping(monitor="val_loss", patience=1), max_epochs=30)
    trainer.fit(Network(), datamodule=Data(evaluates=True))
    assert callback.planned is not None
    assert 0 < callback.taken <= callback.planned.steps
    assert callback.record.privacy is not None
    assert callback.record.privacy.epsilon == callback.record.privacy.planned.epsilon


def test_scores_and_clipping_are_named(tmp_path: Path) -> None:
    logger = lightning.pytorch.loggers.CSVLogger(tmp_path)
    trainer = trainer_of(tmp_path, callback_of(), max_epochs=1, gradient_clip_val=1.0, logger=logger)
    with (
        pytest.warns(UserWarning, match="What training_step logs has no noise"),
        pytest.warns(UserWarning, match="scores of evaluations are computed without noise"),
        pytest.warns(UserWarning, match=r"gradient_clip_val=1\.0 clips a gradient that Opacus does not use"),
    ):
        trainer.fit(Network(), datamodule=Data(evaluates=True))


def test_half_precision_and_two_optimizers_are_refused(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, callback_of(), precision="16-true")
    with pytest.raises(InvalidValueError, match="got precision='16-true'"):
        trainer.fit(Network(), datamodule=Data())
    module = Network(private=False, automatic=False, optimizers=2)
    with pytest.raises(InvalidValueError, match="Expected one optimizer, whose steps are counted, got 2"):
        trainer_of(tmp_path, callback_of()).fit(module, datamodule=Data())


def test_a_second_training_of_a_callback_is_refused(tmp_path: Path) -> None:
    callback = callback_of()
    trainer_of(tmp_path, callback, max_epochs=1).fit(Network(), datamodule=Data())
    with pytest.raises(InvalidValueError, match="has ended, and its record is written"):
        trainer_of(tmp_path, callback, max_epochs=1).fit(Network(), datamodule=Data())


@pytest.mark.parametrize("automatic", [True, False])
def test_a_lower_noise_ends_the_training_before_its_step(tmp_path: Path, automatic: bool) -> None:
    callback, module = callback_of(), Network(automatic=automatic)
    module.falls_at = 3
    with pytest.raises(OverBudgetError, match="The noise of step 4 fell to 1"):
        trainer_of(tmp_path, callback).fit(module, datamodule=Data())
    assert module.privacy_engine.accountant.history == [(NOISE, RATE, 3)]
    assert callback.record.status == "failed"


def test_without_the_library_a_line_names_the_extra() -> None:
    code = (
        "import sys, importlib.util as util; find = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'lightning' else find(name, *rest)\n"
        "import dphpo_bench\n"
        "try: dphpo_bench.lightning.BudgetCallback\n"
        "except dphpo_bench.errors.DataError as error: print(error)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip().endswith("pip install 'dphpo-bench[lightning]'.")
