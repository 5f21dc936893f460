"""HyFreeDP in a training loop of the caller, and the parts of the method `hyfreedp`."""

from dphpo_bench.base.namespaces import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
