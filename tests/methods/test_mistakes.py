"""Parameters out of range are refused in one line, before anything is released."""

import math
from dataclasses import replace
from typing import Any

import pytest
from optuna.distributions import FloatDistribution, IntDistribution

import dphpo_bench as bench
from tests.conftest import TinyTask

MISTAKES: list[tuple[str, dict[str, Any], str]] = [
    ("adaptive_clipping", {"quantile": 1.0}, "quantile < 1"),
    ("slaclip", {"clipping": "auto_s"}, "slaclip moves a threshold"),
    ("adaptive_clipping", {"count_noise": 0.5}, "Raise count_noise"),
    ("auto_clipping", {"clipping": "abadi:1"}, "auto_s, auto_v or psac"),
    ("banded_mf", {"bands": 0}, "bands"),
    ("banded_mf", {"bands": 7}, "bands=7 <= 6, the least of N/B = 6"),
    ("dog", {"initial_distance": 0.0}, "initial_distance > 0"),
    ("dp_adam_wosm", {"momentum": 1.0}, "momentum < 1"),
    ("dp_ebm", {"bins": 2}, "bins >= 3"),
    ("naive_bayes", {"bins": 1}, "bins >= 3"),
    ("dp_fedavg", {"local_steps": 0}, "local_steps"),
    ("dp_fedavg", {}, "unit holds several records, such as a client, got task tiny"),
    ("dp_hype", {"partitions": 1}, "partitions >= 2"),
    ("dp_hypo", {"adaptivity_share": -0.1}, "adaptivity_share"),
    ("dp_sgd", {"clipping": "none"}, "Unknown clipping"),
    ("dp_sgd", {"learning_rate": math.inf}, "learning_rate > 0"),
    ("grid_oracle", {"validation": 1.0}, "validation < 1"),
    ("grid_oracle", {"schedule": "steps"}, "Input should be 'constant', 'cosine' or"),
    ("hyfreedp", {"share": 0.0}, "0 < share < 1"),
    ("linear_scaling", {"smallest": 9.0, "largest": 3.0}, "smallest"),
    ("linear_scaling", {"degree": 2}, "third_share"),
    ("linear_scaling", {"most_steps": 100}, "most_steps >= 2 x steps = 120"),
    ("linear_scaling", {"joint": True}, "nothing to search"),
    ("liu_talwar", {"mean": 1.0}, "mean > 1"),
    ("objective_perturbation", {"regularisation": 1e-3}, "Raise it, or leave it out"),
    ("output_perturbation", {"regularisation": 1e-12}, "Expected 1e-09 <= regularisation <="),
    ("objective_perturbation", {"curvature_share": 1.0}, "0 < curvature_share < 1"),
    ("papernot_steinke", {"distribution": "uniform", "accounting": "profile"}, "layer_cake"),
    ("papernot_steinke", {"distribution": "binomial", "accounting": "rdp"}, "tightest or layer_cake or profile with"),
    ("papernot_steinke", {"distribution": "negative_binomial", "shape": -1.0}, "shape"),
    ("propose_test", {"resolution": 0.0}, "resolution"),
    ("random_search", {"batch_size": 601}, "batch_size"),
    ("replay", {"share": 0.0}, "0 < share <= 1"),
    ("replay", {"again": "nonprivate"}, "private method, got nonprivate"),
    ("replay", {"again": "hyfreedp", "settings": '{"x": 1}'}, "Unknown parameter of hyfreedp"),
    ("schedule_free", {"averaging": 0.99}, "averages its weights itself"),
    ("subsampled_tuning", {"tuning_rate": 1.0}, "tuning_rate"),
    ("successive_halving", {"space": "full"}, "got 'batch_size': the rungs are the schedule"),
]


@pytest.mark.parametrize(("method", "options", "message"), MISTAKES)
def test_parameters_out_of_range(method: str, options: dict[str, Any], message: str, budget) -> None:
    with pytest.raises(bench.errors.DphpoBenchError, match=message) as error:
        bench.run(bench.make_method(method, options), TinyTask(), budget, seed=0)
    assert "\n" not in str(error.value)


class Searched(TinyTask):
    """The tiny task with one odd hyperparameter to search."""

    searched = "depth"

    @property
    def facts(self) -> bench.TaskFacts:
        kind = IntDistribution(1, 100) if self.searched == "steps" else FloatDistribution(1.0, 2.0)
        return replace(super().facts, search_space=lambda: {self.searched: kind})


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("linear_scaling", "weight_decay"),
        ("random_search", "steps"),
        ("papernot_steinke", "depth"),
    ],
)
def test_a_hyperparameter_that_a_method_cannot_search(method: str, name: str, budget) -> None:
    task = Searched()
    task.searched = name
    with pytest.raises(bench.errors.InvalidValueError, match=f"'{name}'"):
        bench.run(method, task, budget, seed=0)
