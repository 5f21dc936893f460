"""Types of a method's parameters, checked when an instance is made.

>>> from dataclasses import dataclass
>>> from dphpo_bench.parameters import Count, Positive, check_fields
>>> @dataclass(frozen=True)
... class Settings:
...     runs: Count = 3
...     bound: Positive = 1.0
...     def __post_init__(self):
...         check_fields(self)
>>> Settings(runs=0)
Traceback (most recent call last):
...
dphpo_bench.base.errors.InvalidValueError: Expected runs >= 1, got runs=0.
"""

from dphpo_bench.base.namespaces import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
