"""Private selection for Optuna objectives.

>>> import dphpo_bench as bench
>>> study = bench.optuna.PrivateStudy(
...     budget=bench.PrivacyBudget(3, 1e-5),
...     event=lambda noise: bench.recipes.dp_sgd_event(sample_rate=0.1, steps=10, noise_multiplier=noise),
...     held_out=0.1,
...     n_scored=500,
... )
>>> def objective(trial):
...     learning_rate = trial.suggest_float("learning_rate", 1e-3, 1, log=True)
...     return train(learning_rate, trial.noise_multiplier, trial.generator)  # a score, larger being better
>>> study.optimize(objective)  # doctest: +SKIP
"""

from dphpo_bench.base.namespaces import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
