"""The trial that an Optuna objective sees: it draws hyperparameters independently of everything, and shows no score."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import BaseTrial

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import one_line, shown
from dphpo_bench.external.trials import OneOfAKind, RefusedNameError, StudyTrial

if TYPE_CHECKING:
    import torch

_UNSHOWN = MappingProxyType(
    {
        "study": "other trials of the search are secret",
        "storage": "a storage would keep every raw score",
        "system_attrs": "they belong to Optuna's storage",
        "relative_params": "no sampler learns from earlier trials",
    }
)


class PrivateTrial(OneOfAKind, BaseTrial):
    """A trial as Optuna's objectives take it.

    `suggest_float`, `suggest_int` and `suggest_categorical` draw from the trial's secret stream by Optuna's
    distributions: uniformly, independently of all scores and of other suggestions. A range, or whether a name is
    suggested at all, may depend on earlier suggestions; never on records or on how training goes. A name that is
    suggested again has the same value.

    Attributes:
        noise_multiplier: σ of this training: standard deviation of the noise / sensitivity.
        generator: a torch generator on the CPU, for batches and noise.
        seed: an integer below 2^63, for generators elsewhere.
        is_final: whether this is the final run of dp_hyper or subsampled_tuning; it gets the winner's hyperparameters.
        number: 0 for every trial, since their number is secret.
        model: as `keep` got it.
        refusal: the mistake in the use of this trial, if there was any: it ends the search.
    """

    number = 0

    def __init__(self, trial: StudyTrial) -> None:
        self._trial = trial
        self._distributions: dict[str, BaseDistribution] = {}
        self._attributes: dict[str, Any] = {}
        self._began = datetime.now(UTC)
        self.model: Any = None
        self.refusal: InvalidValueError | None = None

    @property
    def noise_multiplier(self) -> float:
        """See above."""
        return self._trial.noise_multiplier

    @property
    def generator(self) -> "torch.Generator":
        """See above."""
        return self._trial.generator

    @property
    def seed(self) -> int:
        """See above."""
        return self._trial.seed

    @property
    def is_final(self) -> bool:
        """See above."""
        return self._trial.is_final

    def sample(self, n_records: int) -> "torch.Tensor":
        """Return the indices of the secret sample of subsampled_tuning; see `Study` and its trials."""
        return self._guarded(lambda: self._trial.sample(n_records))  # type: ignore[no-any-return]

    def keep(self, model: Any) -> None:
        """Keep a model, as it is when the objective returns, if this trial wins. Or return (score, model)."""
        self.model = model

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """Draw a number from [low, high], uniformly; in its logarithm with `log`, in steps with `step`."""
        return float(self._suggest(name, lambda: FloatDistribution(low, high, log=log, step=step)))

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """Draw a whole number from [low, high]; see `suggest_float`."""
        return int(self._suggest(name, lambda: IntDistribution(low, high, log=log, step=step)))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """Draw one of the choices, all equally likely."""
        return self._suggest(name, lambda: CategoricalDistribution(choices))

    def suggest_uniform(self, name: str, low: float, high: float) -> float:
        """Draw as `suggest_float`; an older name."""
        return self.suggest_float(name, low, high)

    def suggest_loguniform(self, name: str, low: float, high: float) -> float:
        """Draw as `suggest_float` with `log`; an older name."""
        return self.suggest_float(name, low, high, log=True)

    def suggest_discrete_uniform(self, name: str, low: float, high: float, q: float) -> float:
        """Draw as `suggest_float` with `step`; an older name."""
        return self.suggest_float(name, low, high, step=q)

    def set_user_attr(self, key: str, value: Any) -> None:
        """Note a text, a flag or a whole number about this trial, which its end forgets unless it wins.

        The winner's notes are released: they must not count or measure private records. Fractions and arrays, which
        are what such measures look like, are dropped.
        """
        if _is_plain(value):
            self._attributes[str(key)] = value

    def report(self, value: float, step: int) -> None:
        """Drop a raw score: no pruner compares scores on the way."""

    def should_prune(self) -> bool:
        """Return False: each trial trains to its end, as its event says."""
        return False

    def set_constraint(self, key: str, value: float) -> NoReturn:  # noqa: ARG002
        """Refuse: constraints are raw measures of a trial.

        Raises:
            InvalidValueError: always.
        """
        self._refuse("Expected no trial.set_constraint: its value would be compared without noise. Score it as 0.")

    @property
    def params(self) -> dict[str, Any]:
        """Values that were suggested so far."""
        return {name: self._trial.params[name] for name in self._distributions}

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        """Distributions of what was suggested so far."""
        return dict(self._distributions)

    @property
    def user_attrs(self) -> dict[str, Any]:
        """Notes about this trial."""
        return dict(self._attributes)

    @property
    def constraints(self) -> dict[str, float]:
        """Constraints: none."""
        return {}

    @property
    def datetime_start(self) -> datetime | None:
        """The time at which the trial began."""
        return self._began

    def __getattr__(self, name: str) -> Any:
        if name in _UNSHOWN:
            self.refusal = RefusedNameError(f"Expected no trial.{name}: {_UNSHOWN[name]}, and no ε covers them.")
            raise self.refusal
        error = RefusedNameError(f"A trial has no attribute {shown(name)}.")
        if not name.startswith("_"):
            self.refusal = error  # must not pass for a failed training
        raise error

    def _suggest(self, name: str, make: Callable[[], BaseDistribution]) -> Any:
        value = self._guarded(lambda: self._trial.draw(name, make()))
        self._distributions[name] = self._trial.distributions[name]
        return value

    def _guarded(self, ask: Callable[[], Any]) -> Any:
        """Return what a trial answers; note a mistake of the objective's, which must not pass for a failed training."""
        try:
            return ask()
        except InvalidValueError as error:
            self.refusal = error
            raise
        except (TypeError, ValueError) as error:  # of Optuna's distributions
            self._refuse(f"Expected a range or choices as Optuna takes them: {one_line(str(error), 200)}")

    def _refuse(self, message: str) -> NoReturn:
        self.refusal = InvalidValueError(message)
        raise self.refusal


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | bool | int)
