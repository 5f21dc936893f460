"""Search spaces, trials, private selection and the distributions of the number of runs.

A search of a random number of runs releases its winner alone; its ε grows with the distribution, not with the runs.

    >>> from dphpo_bench.search import Poisson, TruncatedNegativeBinomial
    >>> Poisson(mean=20).expected, round(TruncatedNegativeBinomial(mean=20, shape=1).expected)
    (20.0, 20)
"""

from dphpo_bench.base.namespaces import attach_names

__getattr__, __dir__, __all__ = attach_names(__name__, __file__)
