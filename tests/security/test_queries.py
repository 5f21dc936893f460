"""Mistakes in queries: bounds, threads, processes, precision, interrupts."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dphpo_bench as bench
from dphpo_bench.base.errors import InvalidValueError, OverBudgetError, RecordError
from tests.conftest import TinyTask, session_on
from tests.security.test_sealing import Built, finish, run

QUERY = bench.events.gaussian(1000.0)
BATCH = bench.events.poisson_sampled(0.5, bench.events.repeat(bench.events.gaussian(1.0), 4))


@pytest.fixture
def session() -> bench.Session:
    task = TinyTask()
    return session_on(task, task.load_train(bench.DataSource.resolve()))


def changed(model: nn.Module) -> nn.Module:
    """The same model with other weights."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5))
    return model


class TestBounds:
    """Where a sum overflows, or its noise underflows, an answer counts records, whatever noise is charged."""

    @pytest.mark.parametrize("bound", [0.0, 1e-31, 1e31, float("nan")])
    @pytest.mark.parametrize("query", ["mean_losses", "mean_loss_changes"])
    def test_of_losses_are_neither_tiny_nor_huge(self, session, query: str, bound: float) -> None:
        model, batch = session.build_model(), session.sample(BATCH)
        direction = [torch.ones_like(one) for one in model.parameters()]
        with pytest.raises(InvalidValueError, match="bound <= 1e"):
            getattr(bench.recipes, query)(batch, model, direction, [1.0], bound, 1.0)

    @pytest.mark.parametrize("bound", [5e-324, 1e306])
    def test_of_gradients_are_neither_tiny_nor_huge(self, session, bound: float) -> None:
        model, batch = session.build_model(), session.sample(BATCH)
        with pytest.raises(InvalidValueError, match="sensitivity <= 1e"):
            batch.gradient(model, bench.clipping.Abadi(bound), 1.0)
        with pytest.raises(InvalidValueError, match="max_grad_norm <= 1e"):
            batch.gradient_and_quantile(model, bound, 1.0, 1.0)
        with pytest.raises(InvalidValueError, match="max_grad_norm <= 1e"):
            batch.gradient_and_slacks(model, bound, 1.0, 10)

    @pytest.mark.parametrize("bound", [1e-30, 1e30])
    def test_at_their_limits_have_noise_of_the_right_size(self, session, bound: float) -> None:
        """128 draws: the mean square of a standard normal is below .25 or above 2.5 with probability below 1e-6."""
        model, kind = (
            session.build_model(),
            bench.events.poisson_sampled(0.5, bench.events.repeat(bench.events.gaussian(100.0), 128)),
        )
        direction = [torch.zeros_like(one) for one in model.parameters()]
        found = bench.recipes.mean_loss_changes(session.sample(kind), model, direction, [1.0] * 128, bound, 100.0)
        noise = torch.tensor(found, dtype=torch.float64) * 300 / (100 * bound)
        assert 0.25 < noise.square().mean() < 2.5


class TestOtherProcessesAndThreads:
    """They would get the same noise again, share memory, or take what another has been charged for."""

    def test_another_thread_is_refused(self, session) -> None:
        batch, model = session.sample(BATCH), session.build_model()
        questions = [
            lambda: batch.gradient(model, bench.clipping.AutoS(), 1.0),
            lambda: session.sample(BATCH),
            lambda: bench.recipes.mean_score(session, model, 1000.0),
            lambda: session.uniform("a"),
            lambda: session.best_of(print, bench.search.UniformCount(1, 2), QUERY),
        ]
        spent = session._access.ledger.entries
        with ThreadPoolExecutor(1) as pool:
            for question in questions:
                with pytest.raises(InvalidValueError, match="in the process and the thread"):
                    pool.submit(question).result()
        assert session._access.ledger.entries == spent

    def test_a_copy_of_the_process_is_refused(self, session) -> None:
        model = session.build_model()
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                bench.recipes.mean_score(session, model, 1000.0)
                os.write(writing, b"answered")
            except InvalidValueError:
                os.write(writing, b"refused")
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        assert os.read(reading, 100) == b"refused"

    def test_a_query_inside_of_another_is_refused(self, session) -> None:
        """A signal, say, that comes between a charge and its release."""
        found: list[str] = []

        class Asking(nn.Linear):
            def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
                with pytest.raises(InvalidValueError, match="one query of a session at a time"):
                    bench.recipes.mean_score(session, nn.Linear(5, 3), 1000.0)
                found.append("refused")
                return super().named_parameters(*args, **kwargs)

        bench.recipes.mean_score(session, Asking(5, 3), 1000.0)
        assert found


class Acting(nn.Sequential):
    """The task's model, in whose forward something happens while a query is under way."""

    act: Any = None

    def __init__(self) -> None:
        super().__init__(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if Acting.act is not None:
            Acting.act()
        return super().forward(inputs)


class TestWhileAQueryLasts:
    """A thread, a handler of a signal, an audit hook or a finalizer could begin to watch when the checks are over."""

    @pytest.fixture
    def session(self, monkeypatch) -> bench.Session:
        task = Built(Acting)
        made = session_on(task, task.load_train(bench.DataSource.resolve()))
        bench.recipes.mean_score(made, made.build_model(), 1000.0)
        return made

    def test_numbers_have_all_their_bits_whatever_the_process_has_chosen(self, session, monkeypatch) -> None:
        """TF32 rounds by 1e-3, and may do so for some sizes of a batch only."""
        seen = []
        products: Any = torch.backends.mkldnn.matmul
        before, products.fp32_precision = products.fp32_precision, "bf16"
        monkeypatch.setattr(Acting, "act", staticmethod(lambda: seen.append(products.fp32_precision)))
        try:
            bench.recipes.mean_score(session, session.build_model(), 1000.0)
            assert (set(seen), products.fp32_precision) == ({"ieee"}, "bf16")
        finally:
            products.fp32_precision = before

    def test_autocast_ends_where_a_query_begins(self, session) -> None:
        """It kept halves of the weights, which then changed: the loss was the same all along a direction."""
        model, kind = (
            session.build_model(),
            bench.events.poisson_sampled(1.0, bench.events.repeat(bench.events.gaussian(1e-6), 3)),
        )
        with torch.no_grad():
            for weight in model.parameters():
                weight.normal_()
        direction = [weight.detach().clone() for weight in model.parameters()]
        steps = (-1.0, 0.0, 0.5)
        plain = bench.recipes.mean_losses(session.sample(kind, "one"), model, direction, steps, 100.0, 1e-6)
        with torch.autocast("cpu", torch.bfloat16):
            found = bench.recipes.mean_losses(session.sample(kind, "two"), model, direction, steps, 100.0, 1e-6)
            assert torch.is_autocast_enabled("cpu")
        assert found == pytest.approx(plain, rel=1e-4)
        assert len({round(loss, 3) for loss in plain}) == 3


def test_an_interrupt_in_the_midst_of_a_query_ends_the_run(monkeypatch) -> None:
    interrupted: list[int] = []

    def interrupt() -> None:
        if interrupted:
            raise KeyboardInterrupt

    task = Built(Acting)
    session = session_on(task, task.load_train(bench.DataSource.resolve()))
    model = session.build_model()
    monkeypatch.setattr(Acting, "act", staticmethod(interrupt))
    bench.recipes.mean_score(session, model, 1000.0)
    interrupted.append(1)
    with pytest.raises(KeyboardInterrupt):
        bench.recipes.mean_score(session, model, 1000.0)
    interrupted.clear()
    with pytest.raises(bench.errors.DphpoBenchError):
        bench.recipes.mean_score(session, model, 1000.0)


def test_the_dtype_of_models_is_that_of_the_run() -> None:
    """In float64 a method could have squares of gradients underflow, so that clipping took them for nothing."""
    task = TinyTask()
    session = session_on(task, task.load_train(bench.DataSource.resolve()))
    torch.set_default_dtype(torch.float64)
    try:
        model = session.build_model()
        bench.recipes.mean_score(session, model, 1000.0)
    finally:
        torch.set_default_dtype(torch.float32)
    assert {one.dtype for one in model.parameters()} == {torch.float32}


class TestSelections:
    """Of trials that do not win, nothing is known: not their scores, and not their number."""

    def test_a_refusal_says_nothing_of_a_trial(self, session) -> None:
        def trial(own: bench.Session) -> bench.search.TrialResult:
            score = bench.recipes.mean_score(own, own.build_model(), 1000.0)
            own.one_of(bench.events.one_of([bench.events.on_part(repr(score), "x", QUERY), QUERY]), 0)
            return bench.search.TrialResult(None, score)

        with pytest.raises(OverBudgetError) as caught:
            session.best_of(trial, bench.search.UniformCount(1, 2), QUERY)
        assert "What it asked for stays hidden" in str(caught.value)
        assert "OneOf" not in str(caught.value) + str(session._access.ledger.refused)


class TestInterrupted:
    """Whoever goes on in the same process may know the first answer, and gets the same noise."""

    def body(self, kept: list[float], interrupt: bool = True) -> Any:
        def ask(session: bench.Session) -> bench.Outcome:
            model = session.build_model()
            kept.append(bench.recipes.mean_score(session, changed(model) if kept else model, 1000.0))
            if len(kept) == 1 and interrupt:
                raise KeyboardInterrupt
            return finish(session)

        return ask

    def test_a_run_is_not_started_again_in_the_same_process(self, tmp_path: Path) -> None:
        kept: list[float] = []
        options = {"event": QUERY, "seed": None, "results_dir": tmp_path}
        with pytest.raises(KeyboardInterrupt):
            run(self.body(kept), **options)
        with pytest.raises(RecordError, match="Start a new process to go on; or remove"):
            run(self.body(kept), **options)
        assert len(kept) == 1
        (journal,) = (one for one in tmp_path.rglob("*") if one.is_file())
        journal.unlink()
        assert run(self.body(kept), **options).status == "ok"
