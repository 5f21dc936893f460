"""Whole runs and sessions with secure noise: what they draw from, what they refuse, what their records say."""

import sys
from importlib.metadata import version
from typing import Any

import pytest
import torch

import dphpo_bench as bench
from dphpo_bench.base.errors import InvalidValueError, RecordError
from dphpo_bench.data.source import DataSource
from dphpo_bench.privacy.events import gaussian, pure_dp, repeat
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.privacy.run_counts import UniformCount
from dphpo_bench.recipes.queries import mean_loss_changes, mean_losses, mean_score, rising_share
from dphpo_bench.session.interfaces import TrialResult
from dphpo_bench.session.sealed import SealedUtilities
from dphpo_bench.session.session import Session
from dphpo_bench.training.randomness import Streams
from tests.conftest import asking, session_on


@pytest.fixture
def only_secure(monkeypatch) -> None:
    """Nothing may draw from a torch generator."""
    monkeypatch.setattr(Streams, "generator", lambda *_, **__: pytest.fail("drawn from a torch generator"))


@pytest.fixture
def open_session(tiny_task, tmp_path):
    def make(seed: int = 0) -> Session:
        train = tiny_task.load_train(DataSource.resolve(cache_dir=tmp_path))
        return session_on(tiny_task, train, Ledger(), Streams(seed, secure=True))

    return make


def flat(result: Any) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in result.model.parameters()])


class TestRun:
    def test_a_record_says_which_noise_it_was(self, fixed_noise, plain_run, only_secure) -> None:
        method = fixed_noise(noise_multiplier=8.0, steps=60)  # accuracies of .859 ± .007 over 40 runs
        result = plain_run(method, seed=None, execution=bench.ExecutionOptions(secure_noise=True))
        assert result.record.status == "ok"
        assert result.record.identity.seed is None
        assert result.record.environment["noise"] == f"opendp {version('opendp')}, discrete"
        assert result.record.metrics["accuracy"] > 0.6  # three classes: chance is 1/3
        assert not torch.equal(
            flat(result), flat(plain_run(method, seed=None, execution=bench.ExecutionOptions(secure_noise=True)))
        )

    def test_a_seed_is_refused(self, fixed_noise, plain_run) -> None:
        with pytest.raises(InvalidValueError, match="no seed with secure noise, got 0: whoever knows"):
            plain_run(fixed_noise(), seed=0, execution=bench.ExecutionOptions(secure_noise=True))

    def test_without_opendp_no_data_are_read(self, fixed_noise, plain_run, tiny_task, monkeypatch) -> None:
        monkeypatch.setattr(type(tiny_task), "load_train", lambda *_: pytest.fail("private data were read"))
        monkeypatch.setitem(sys.modules, "opendp.measurements", None)
        with pytest.raises(InvalidValueError, match="dphpo-bench\\[secure\\]"):
            plain_run(fixed_noise(), seed=None, execution=bench.ExecutionOptions(secure_noise=True))


class TestSecondChances:
    def run(self, plain_run, method, path, secure: bool = True) -> Any:
        execution = bench.ExecutionOptions(secure_noise=secure)
        return plain_run(method, seed=None, execution=execution, results_dir=path)

    @pytest.mark.parametrize("again", [True, False])
    def test_an_interrupted_run_is_not_started_anew(self, fixed_noise, plain_run, tmp_path, again: bool) -> None:
        """Also not with other noise: what the first try drew is lost either way."""
        with pytest.raises(KeyboardInterrupt):
            self.run(plain_run, fixed_noise(fault="interrupt"), tmp_path)
        (journal,) = (tmp_path / ".unfinished").iterdir()
        with pytest.raises(RecordError, match=r"remove .*\.jsonl to start anew, which is a second release"):
            self.run(plain_run, fixed_noise(fault="interrupt"), tmp_path, again)
        journal.unlink()
        with pytest.raises(KeyboardInterrupt):
            self.run(plain_run, fixed_noise(fault="interrupt"), tmp_path)

    def test_copies_of_the_process_draw_noise_of_their_own(self, open_session) -> None:
        """Trials run in copies. Were the state of a generator copied with them, all would have the same noise.

        Scores are numbers on a fine grid: two of eight are equal with a probability below 1e-12.
        """

        def trial(own: Session) -> TrialResult:
            return TrialResult(mean_score(own, own.build_model(), 9.0), 0.0)

        assert mean_score(
            open_session(), open_session().build_model(), 9.0
        )  # the generator is in use before the copies
        drawn = [open_session().best_of(trial, UniformCount(1, 2), gaussian(9.0)) for _ in range(8)]
        assert len(set(drawn)) == 8


class TestSession:
    def test_every_release(self, open_session, only_secure) -> None:
        session = open_session()
        model = session.build_model()
        batch = session.sample(asking(0.5, gaussian(1e-3), gaussian(2e-3), repeat(gaussian(1e-3), 4)))
        zero = [torch.zeros_like(parameter) for parameter in model.parameters()]
        gradient, share = batch.gradient_and_quantile(model, 1.0, 1e-3, 1e-3)
        losses = mean_losses(batch, model, zero, [0.0, 1.0], 2.0, 1e-3)
        (change,) = mean_loss_changes(batch, model, zero, [1.0], 0.5, 1e-3)
        rising = rising_share(batch, model, zero, [1.0], 1.5, 1e-3)
        assert [part.dtype for part in gradient] == [parameter.dtype for parameter in model.parameters()]
        assert 0 <= share <= 1.5
        assert abs(losses[0] - losses[1]) < 1e-3
        assert abs(change) < 1e-3
        assert abs(rising) < 0.15  # none rises; the number drawn moves the share by .02 (one standard deviation)
        assert 0 <= mean_score(session, model, 1e-3) <= 1.01
        assert 0 <= session.uniform("a choice") < 1

    def test_sealed_utilities(self, open_session, only_secure) -> None:
        sealed = SealedUtilities(open_session()._access, [0.2, 0.9], 0.01)
        assert sealed.open_test(5.0).first(0.5) == 1  # false alarm below e^-30
        assert sealed._access.ledger.event == pure_dp(5.0)
