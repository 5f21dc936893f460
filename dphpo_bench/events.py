"""Privacy events of released quantities, the ε and the risk of an event, and the least noise for a budget."""

from dphpo_bench.base.namespaces import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
