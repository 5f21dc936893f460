"""Tests that hold for every task, to inherit."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.contract.task import Task
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.recipes.single_run import SingleRun
from dphpo_bench.testing.dependence_contract import DependenceContract
from dphpo_bench.testing.expectations import ContractError, expect
from dphpo_bench.testing.records_contract import ALONE, RECORDS, named
from dphpo_bench.testing.runs import DELTA, EPSILON, other_global_randomness, recorded
from dphpo_bench.testing.small_tasks import Excerpt
from dphpo_bench.training.augmentation import augmentation_of


@dataclass(frozen=True)
class PlainDpSgd(SingleRun):
    """The plainest private method, to try tasks with: T steps of DP-SGD at the task's learning rate, no tuning."""

    name = "plain_dp_sgd"
    summary = "DP-SGD at the task's defaults."
    reference = "Abadi et al. 2016, Deep Learning with Differential Privacy, Algorithm 1"
    tuning: ClassVar[tuple[str, ...]] = ()
    end_to_end_private = True


class TaskContract(DependenceContract):
    """Tests of one task at one of its models: its facts, its records, its model, and a short private run.

    Inherit, and give it a fixture `task` that returns an instance. `dphpo-bench check` does the same, for each model.
    """

    def test_model_gives_one_output_per_class(self, task: Task) -> None:
        """The model takes the declared inputs and gives finite outputs, one for each class where there are classes."""
        import torch

        from dphpo_bench.base.tensors import call
        from dphpo_bench.training.losses import logits

        facts = task.facts
        for n in (1, RECORDS):
            with other_global_randomness(0), torch.no_grad():
                inputs = {
                    name: torch.zeros(n, *spec.shape, dtype=getattr(torch, spec.dtype))
                    for name, spec in named(facts.inputs).items()
                }
                outputs = call(task.build_model(), inputs if isinstance(facts.inputs, Mapping) else inputs[ALONE])
            if facts.kind == "own":
                continue
            values = logits(outputs)
            shape = tuple(values.shape) if isinstance(values, torch.Tensor) else type(values).__name__
            if facts.kind in ("classification", "multilabel"):
                expect(
                    shape == (n, facts.n_classes),
                    f"Expected outputs of shape {(n, facts.n_classes)} for {n} records, got {shape}.",
                )
            expect(bool(values.isfinite().all()), "Expected finite outputs for inputs of zeros.")

    def test_losses_and_scores_are_of_one_record_each(self, task: Task) -> None:
        """The model, the losses and the scores work on made-up records, one record at a time."""
        from dphpo_bench.training.own_model import OwnModel

        has_scores = task.facts.kind != "regression" or task.facts.error_bound is not None
        try:
            own_model = OwnModel(task.build_model, self._few(task), task.objective(), task.example)
            own_model.check(scores=has_scores)
        except InvalidValueError as error:
            raise ContractError(f"The model cannot be trained privately: {error}") from None

    def test_initial_weights_follow_the_seed(self, task: Task) -> None:
        """The initial weights are the same at one seed of torch's global generator."""
        import torch

        from dphpo_bench.training.structure import weights_hash

        hashes = []
        for other in (1, 2):
            with other_global_randomness(other):
                torch.manual_seed(7)
                hashes.append(weights_hash(task.build_model()))
        expect(
            hashes[0] == hashes[1],
            "At one seed the initial weights differ, so methods compared at it would not start alike. Draw them from "
            "torch's global generator, which the harness seeds; build a new model each time.",
        )

    def test_model_can_be_trained_privately(self, task: Task) -> None:
        """The gradient engine accepts the model and clips the gradient of each record."""
        import torch

        from dphpo_bench.training.clipping import Abadi
        from dphpo_bench.training.gradients import gradient_engine
        from dphpo_bench.training.model_checks import tried

        with other_global_randomness(0):
            model = task.build_model()
            few = self._few(task)
            try:
                with tried(few.inputs):
                    engine = gradient_engine(model, task.objective().losses, like=few)
                    total = engine.clipped_sum(few.inputs, few.targets, Abadi(0.5))
            except InvalidValueError as error:
                raise ContractError(f"The model cannot be trained privately: {error}") from None
        norm = float(torch.cat([part.flatten() for part in total]).double().norm())
        expect(
            norm <= 0.5 * len(few) * (1 + 1e-5),
            f"The sum of {len(few)} gradients clipped to 0.5 has norm {norm:g}.",
        )

    def test_model_treats_each_record_alone(self, task: Task) -> None:
        """The model's output for a record does not depend on the other records of its batch."""
        from dphpo_bench.training.model_checks import differs_in_batches

        way = differs_in_batches(task.build_model(), self._few(task).inputs)
        expect(
            not way,
            "The model's outputs for a record change with the others of a batch. Private training gives it one record "
            f"at a time, so that it is another network there. {way}",
        )

    def test_augmentation_treats_each_record_alone(self, task: Task) -> None:
        """A transform of the inputs, if the task declares some, keeps their form and combines no two records."""
        augmentation = augmentation_of(task.augment)
        if augmentation is None:
            return
        try:
            augmentation.check(self._few(task).inputs)
        except InvalidValueError as error:
            raise ContractError(f"{error} No clipping bounds the influence of one record then.") from None

    def test_private_run_works(self, task: Task) -> None:
        """A few steps of DP-SGD on the first records end with a model within the budget."""
        from dphpo_bench.harness.plan import plan

        excerpt = Excerpt(task)
        plan(PlainDpSgd(), task, PrivacyBudget(EPSILON, min(DELTA, task.facts.default_delta)))
        record = recorded(PlainDpSgd(), excerpt, self.source())
        expect(record.status == "ok", f"DP-SGD on the first {excerpt.facts.n_records} records failed: {record.error}")
        privacy = record.privacy
        expect(privacy is not None and privacy.epsilon <= EPSILON, f"DP-SGD overspent its budget of ε={EPSILON:g}.")
