"""dphpo-bench: hyperparameter tuning under differential privacy, measured end to end.

    >>> from dphpo_bench import PrivacyBudget, run
    >>> result = run("hyfreedp", "digits", PrivacyBudget(epsilon=3, delta=1e-4), seed=0)  # doctest: +SKIP

The public names are those of `__init__.pyi`. They are loaded on first use, so that importing the package costs nothing.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
