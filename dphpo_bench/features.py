"""Frozen public feature extractors."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub("dphpo_bench", __file__)
