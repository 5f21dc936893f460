"""Distributions of the secret number of runs K, of which a private selection releases only the best.

The privacy bounds need the derivative f' of the probability generating function f(z) = E[z^K]; a tuner draws K.
Notation: u is the probability that another run beats the released one, and `weight(u)` = f'(1 − u) is the factor
by which selection multiplies the density of that run.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import exprel, gammaln

from dphpo_bench.base.checks import number, whole
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import shown

Array = NDArray[np.float64]

MAX_MEAN = 1e4
MAX_RUNS = 10_000
"""The largest K of the distributions that have one."""

_FIXED = "A fixed count is not private selection: compose the runs instead, and release them all."
_NO_TAIL = 1e-20  # a probability below the resolution of any uniform number in [0, 1)


class RunCount(ABC):
    """A distribution of the number of runs: K is from `smallest` to `largest`."""

    smallest: int = 1
    largest: float = math.inf

    @property
    @abstractmethod
    def expected(self) -> float:
        """E[K]."""

    @abstractmethod
    def probability(self, runs: ArrayLike) -> Array:
        """Return P(K = runs), for each of an array of whole numbers."""

    @abstractmethod
    def weight(self, beaten: ArrayLike) -> Array:
        """Return f'(1 − u) for each u = `beaten` in [0, 1]: from E[K] at 0 down to P(K = 1) at 1, non-increasing."""

    @abstractmethod
    def describe(self) -> str:
        """Return a few words such as `geometric, mean 10`."""

    def to_json(self) -> dict[str, Any]:
        """Return the distribution as JSON values, for `from_json`."""
        names = {kind: name for name, kind in KINDS.items()}
        return {"type": names[type(self)], **{field: getattr(self, field) for field in _fields(type(self))}}

    def sample(self, uniform: float) -> int:
        """Draw K by inversion of its distribution function: the least k with P(K <= k) > uniform.

        `uniform` is a number drawn uniformly from [0, 1). The same number gives the same K.
        """
        if not 0 <= uniform < 1:
            raise InvalidValueError(f"Expected a number in [0, 1), got {uniform}.")
        below, start, size = 0.0, self.smallest, 64
        while True:
            runs = np.arange(start, int(min(start + size, self.largest + 1)))
            probabilities = self.probability(runs)
            reached = below + np.cumsum(probabilities)
            index = int(np.searchsorted(reached, uniform, side="right"))
            if index < len(runs):
                return int(runs[index])
            # Rounding can leave the sum below 1, and below the number; then the tail is empty.
            in_tail = runs[-1] > 2 * self.expected and probabilities[-1] < _NO_TAIL
            if runs[-1] == self.largest or in_tail:
                return int(runs[-1])
            below, start, size = float(reached[-1]), int(runs[-1]) + 1, min(2 * size, 2**18)


@dataclass(frozen=True)
class TruncatedNegativeBinomial(RunCount):
    """P(K=k) ∝ (1−γ)^k Π_{l<k} (l+η)/(l+1) for k ≥ 1 (Papernot and Steinke 2022, Definition 1).

    Attributes:
        mean: E[K], in (1, `MAX_MEAN`]; it determines γ.
        shape: η ≥ 0. 0 is the logarithmic distribution, the cheapest in ε for its mean; 1 is the geometric one. The
            larger, the more concentrated.

    Raises:
        InvalidValueError: if a value is out of range.
    """

    mean: float
    shape: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", _mean_above_one(self.mean))
        object.__setattr__(self, "shape", number("shape", self.shape, low=0, high=100))

    @property
    def expected(self) -> float:
        return self.mean

    @cached_property
    def gamma(self) -> float:
        """γ, the probability to stop after a run in the geometric case."""
        return math.exp(-self._log_inverse_gamma)

    @cached_property
    def _log_inverse_gamma(self) -> float:
        # With t = −ln γ, E[K] = η (e^t − 1) / (1 − e^{−ηt}), which grows with t and has no 0/0 at η = 0 in this
        # form: (e^t − 1)/t over (1 − e^{−ηt})/(ηt).
        def excess(t: float) -> float:
            return float(np.log(exprel(t)) - np.log(exprel(-self.shape * t)) - math.log(self.mean))

        # The mean is at least (e^t − 1)/t, and at least e^{t/2} at that.
        return float(brentq(excess, 0.0, 2 * math.log(self.mean) + 1, xtol=1e-300, rtol=1e-15))

    def probability(self, runs: ArrayLike) -> Array:
        k = np.asarray(runs, dtype=float)
        t, eta = self._log_inverse_gamma, self.shape
        inside = np.maximum(k, 1)
        log_probability = (
            inside * np.log(-np.expm1(-t))
            + (gammaln(inside + eta) - gammaln(1 + eta) - gammaln(inside + 1))
            - (math.log(t) + np.log(exprel(eta * t)))
        )
        return np.where(k >= 1, np.exp(log_probability), 0.0)

    def weight(self, beaten: ArrayLike) -> Array:
        u = np.asarray(beaten, dtype=float)
        # γ + (1−γ)u instead of 1 − (1−γ)z, which would cancel near z = 1.
        ratio = self.gamma / (self.gamma - math.expm1(-self._log_inverse_gamma) * u)
        return np.asarray(self.mean * ratio ** (1 + self.shape))

    def describe(self) -> str:
        names = {0.0: "logarithmic", 1.0: "geometric"}
        name = names.get(self.shape, f"negative binomial of shape {self.shape:.4g}")
        return f"{name}, mean {self.mean:.4g}"


def geometric(mean: float) -> TruncatedNegativeBinomial:
    """Return the number of runs until a coin of probability 1/mean says stop."""
    return TruncatedNegativeBinomial(mean, 1.0)


@dataclass(frozen=True)
class Poisson(RunCount):
    """The Poisson distribution. If K is 0, a default fixed in advance is released, and nothing is drawn again.

    Attributes:
        mean: E[K], in (0, `MAX_MEAN`].

    Raises:
        InvalidValueError: if it is out of range.
    """

    mean: float
    smallest = 0  # without a type, so it is no field

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", number("mean", self.mean, low=1e-6, high=MAX_MEAN))

    @property
    def expected(self) -> float:
        return self.mean

    def probability(self, runs: ArrayLike) -> Array:
        k = np.asarray(runs, dtype=float)
        inside = np.maximum(k, 0)
        return np.where(k >= 0, np.exp(inside * math.log(self.mean) - self.mean - gammaln(inside + 1)), 0.0)

    def weight(self, beaten: ArrayLike) -> Array:
        return np.asarray(self.mean * np.exp(-self.mean * np.asarray(beaten, dtype=float)))

    def describe(self) -> str:
        return f"Poisson, mean {self.mean:.4g}"


@dataclass(frozen=True)
class Binomial(RunCount):
    """The number of heads of `cap` coins, each of probability mean/cap: a Poisson number of runs with a hard stop.

    If K is 0, a default fixed in advance is released, and nothing is drawn again (docs/accounting.md).

    Attributes:
        mean: E[K], positive and below the cap. The nearer to the cap, the more concentrated, and the dearer in ε.
        cap: the largest K, at most `MAX_RUNS`.

    Raises:
        InvalidValueError: if a value is out of range, or the number of runs is fixed.
    """

    mean: float
    cap: int
    smallest = 0  # without a type, so it is no field

    def __post_init__(self) -> None:
        object.__setattr__(self, "cap", whole("cap", self.cap, low=1, high=MAX_RUNS))
        object.__setattr__(self, "mean", number("mean", self.mean, low=1e-6, high=self.cap))
        if self.mean == self.cap:
            raise InvalidValueError(f"Expected mean < cap, got {self.cap} for both. {_FIXED}")

    @property
    def largest(self) -> float:  # type: ignore[override]
        return self.cap

    @property
    def expected(self) -> float:
        return self.mean

    @property
    def success(self) -> float:
        """p, the probability of heads."""
        return self.mean / self.cap

    @property
    def failure(self) -> float:
        """1 − p, with all digits where p is near 1."""
        return (self.cap - self.mean) / self.cap

    def probability(self, runs: ArrayLike) -> Array:
        from scipy.stats import binom  # slow to load; logarithms of factorials would lose five digits

        return np.asarray(binom.pmf(np.asarray(runs), self.cap, self.success))

    def weight(self, beaten: ArrayLike) -> Array:
        u = np.asarray(beaten, dtype=float)
        # A sum of positive terms instead of 1 − pu, which would cancel near u = 1.
        return np.asarray(self.mean * ((1 - u) + self.failure * u) ** (self.cap - 1))

    def describe(self) -> str:
        return f"binomial, mean {self.mean:.4g}, at most {self.cap}"


class _BoundedCount(RunCount):
    """A distribution given by the finite table of its probabilities."""

    @property
    @abstractmethod
    def _table(self) -> Array:
        """P(K = 0), P(K = 1), ..., up to the largest K."""

    @property
    def largest(self) -> float:  # type: ignore[override]
        return len(self._table) - 1

    @property
    def expected(self) -> float:
        return float(np.arange(len(self._table)) @ self._table)

    def probability(self, runs: ArrayLike) -> Array:
        k = np.asarray(runs)
        inside = (k >= 0) & (k < len(self._table))
        return np.where(inside, self._table[np.where(inside, k, 0)], 0.0)

    def weight(self, beaten: ArrayLike) -> Array:
        # Horner's rule: all terms are positive, so nothing cancels.
        z = 1 - np.asarray(beaten, dtype=float)
        coefficients = np.arange(1, len(self._table)) * self._table[1:]
        total: Array = np.full_like(z, coefficients[-1])
        for coefficient in coefficients[-2::-1]:
            total = total * z + coefficient
        return total


@dataclass(frozen=True)
class UniformCount(_BoundedCount):
    """Each number of runs from `low` to `high` with the same probability.

    Attributes:
        low: at least 1.
        high: above `low`, at most `MAX_RUNS`.

    Raises:
        InvalidValueError: if a value is out of range, or the number of runs is fixed.
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "low", whole("low", self.low, low=1, high=MAX_RUNS))
        object.__setattr__(self, "high", whole("high", self.high, low=self.low, high=MAX_RUNS))
        if self.low == self.high:
            raise InvalidValueError(f"Expected low < high, got {self.low} for both. {_FIXED}")

    @property
    def smallest(self) -> int:  # type: ignore[override]
        return self.low

    @cached_property
    def _table(self) -> Array:
        table: Array = np.zeros(self.high + 1)
        table[self.low :] = 1 / (self.high - self.low + 1)
        return table

    def describe(self) -> str:
        return f"uniform, {self.low} to {self.high}"


@dataclass(frozen=True)
class CappedGeometric(_BoundedCount):
    """The smaller of a geometric number of runs and a hard stop (Liu and Talwar 2019, Algorithm 2).

    Attributes:
        mean: 1/γ, the mean without the cap; `expected` is what the cap leaves of it.
        cap: the hard stop T, from 2 to `MAX_RUNS`.

    Raises:
        InvalidValueError: if a value is out of range.
    """

    mean: float
    cap: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", _mean_above_one(self.mean))
        object.__setattr__(self, "cap", whole("cap", self.cap, low=2, high=MAX_RUNS))

    @cached_property
    def _table(self) -> Array:
        log_going_on = math.log1p(-1 / self.mean)
        table: Array = np.exp(np.arange(-1, self.cap) * log_going_on) / self.mean
        table[0] = 0.0
        table[-1] = math.exp((self.cap - 1) * log_going_on)
        return table

    def describe(self) -> str:
        return f"geometric, mean {self.mean:.4g}, at most {self.cap}"


KINDS: Mapping[str, type[RunCount]] = MappingProxyType(
    {
        "negative_binomial": TruncatedNegativeBinomial,
        "poisson": Poisson,
        "binomial": Binomial,
        "uniform": UniformCount,
        "capped_geometric": CappedGeometric,
    }
)
"""All distributions, by their names in files."""


def from_json(obj: object) -> RunCount:
    """Read what `to_json` wrote; anything else is refused. Types are looked up in a list, never imported."""
    kind = obj.get("type") if isinstance(obj, dict) else None
    if not isinstance(obj, dict) or not isinstance(kind, str) or kind not in KINDS:
        name = shown(kind if isinstance(obj, dict) else obj, form=repr)
        raise InvalidValueError(f"Expected a number of runs of a type in {sorted(KINDS)}, got {name}.")
    names = _fields(KINDS[kind])
    if obj.keys() != {"type", *names}:
        raise InvalidValueError(f"Expected the keys type, {', '.join(names)}, got {shown(list(obj), 200, repr)}.")
    return KINDS[kind](**{name: obj[name] for name in names})


def _fields(kind: type[RunCount]) -> list[str]:
    return [field.name for field in fields(kind)]  # type: ignore[arg-type]


def _mean_above_one(value: Any) -> float:
    mean = number("mean", value, low=1, high=MAX_MEAN)
    if mean == 1:
        raise InvalidValueError("Expected a mean > 1, got mean=1. A single run needs no selection: compose it.")
    return mean
