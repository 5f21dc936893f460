"""Privacy events of released quantities, the ε and the risk of an event, and the least noise for a budget."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub("dphpo_bench", __file__)
