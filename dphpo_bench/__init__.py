"""dphpo-bench: hyperparameter tuning under differential privacy, measured end to end.

    >>> from dphpo_bench import PrivacyBudget, run
    >>> result = run("hyfreedp", "digits", PrivacyBudget(epsilon=3, delta=1e-4), seed=0)  # doctest: +SKIP

The public names are those of `__init__.pyi`. They are loaded on first use, so that importing the package costs nothing.
"""

from importlib import import_module

import lazy_loader

_attribute, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

_NAMESPACES = (
    "clipping",
    "errors",
    "events",
    "features",
    "hyfreedp",
    "lightning",
    "losses",
    "metrics",
    "optuna",
    "parameters",
    "recipes",
    "search",
    "transformers",
)


def __getattr__(name: str) -> object:
    """Return a public name; of one that a namespace has, say so."""
    try:
        return _attribute(name)
    except AttributeError as error:
        spaces = [] if name.startswith("_") else [import_module(f"{__name__}.{space}") for space in _NAMESPACES]
        place = next((space.__name__ for space in spaces if name in space.__all__), None)
        if place is None:
            raise
        raise AttributeError(f"{error}; it is in {place.replace(__name__, 'bench')}.") from None
