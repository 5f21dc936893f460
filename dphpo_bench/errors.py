"""Errors that the package raises.

Each is a `DphpoBenchError` whose text is one line: the value, the rule, and a way out.

    >>> import dphpo_bench as bench
    >>> try:
    ...     bench.PrivacyBudget(epsilon=-1, delta=1e-5)
    ... except bench.errors.InvalidValueError as error:
    ...     print(error)
    Expected a finite epsilon > 0, got epsilon=-1.
"""

from dphpo_bench.base.namespaces import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
