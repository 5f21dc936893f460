"""Ways around the session that a reviewer found, each by the documented interface and ordinary Python."""

import functools
import gc
import importlib
import json
import logging
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

import dphpo_bench as bench
from dphpo_bench.base.errors import InvalidValueError, OverBudgetError, RecordError, UnknownNameError
from dphpo_bench.session import guard
from dphpo_bench.session.batch import gradients_together
from dphpo_bench.session.guard import Guard
from dphpo_bench.session.held_clipping import CountingRule
from dphpo_bench.training.optimizers import UpdateRule
from tests.conftest import TinyTask, session_on
from tests.security.test_sealing import Built, Probe, finish, run

QUERY = bench.gaussian(1000.0)
BATCH = bench.poisson_sampled(0.5, bench.repeat(bench.gaussian(1.0), 4))


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

    @pytest.mark.parametrize("bound", [5e-324, 1e-31, 1e31, 1e306])
    @pytest.mark.parametrize("query", ["losses", "loss_changes"])
    def test_of_losses_are_neither_tiny_nor_huge(self, session, query: str, bound: float) -> None:
        model, batch = session.build_model(), session.sample(BATCH)
        direction = [torch.ones_like(one) for one in model.parameters()]
        with pytest.raises(InvalidValueError, match="loss bound <= 1e"):
            getattr(batch, query)(model, direction, [1.0], bound, 1.0)

    @pytest.mark.parametrize("bound", [5e-324, 1e306])
    def test_of_gradients_are_neither_tiny_nor_huge(self, session, bound: float) -> None:
        model, batch = session.build_model(), session.sample(BATCH)
        with pytest.raises(InvalidValueError, match="sensitivity <= 1e"):
            batch.gradient(model, bench.Abadi(bound), 1.0)
        with pytest.raises(InvalidValueError, match="max_grad_norm <= 1e"):
            batch.gradient_and_quantile(model, bound, 1.0, 1.0)

    @pytest.mark.parametrize("bound", [1e-30, 1e30])
    def test_at_their_limits_have_noise_of_the_right_size(self, session, bound: float) -> None:
        """128 draws: the mean square of a standard normal is below .25 or above 2.5 with probability below 1e-6."""
        model, kind = session.build_model(), bench.poisson_sampled(0.5, bench.repeat(bench.gaussian(100.0), 128))
        direction = [torch.zeros_like(one) for one in model.parameters()]
        found = session.sample(kind).loss_changes(model, direction, [1.0] * 128, bound, 100.0)
        noise = torch.tensor(found, dtype=torch.float64) * 300 / (100 * bound)
        assert 0.25 < noise.square().mean() < 2.5


class TestOtherProcessesAndThreads:
    """They would get the same noise again, share memory, or take what another has been charged for."""

    def test_another_thread_is_refused(self, session) -> None:
        batch, model = session.sample(BATCH), session.build_model()
        questions = [
            lambda: batch.gradient(model, bench.AutoS(), 1.0),
            lambda: session.sample(BATCH),
            lambda: session.score(model, 1000.0),
            lambda: session.uniform("a"),
            lambda: session.holdout(0.5),
            lambda: session.best_of(print, bench.UniformCount(1, 2), QUERY),
            lambda: session.sealed_utilities([], 4, 0.5),
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
                session.score(model, 1000.0)
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
                    session.score(nn.Linear(5, 3), 1000.0)
                found.append("refused")
                return super().named_parameters(*args, **kwargs)

        session.score(Asking(5, 3), 1000.0)
        assert found

    def test_a_signal_between_two_queries_may_ask(self, session) -> None:
        model, answers = session.build_model(), []
        before = signal.signal(signal.SIGUSR1, lambda *_: answers.append(session.score(model, 1000.0)))
        try:
            os.kill(os.getpid(), signal.SIGUSR1)
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert len(answers) == 1

    def test_a_trial_may_ask_in_its_copy(self, session) -> None:
        def trial(own: bench.Session) -> bench.Scored:
            return bench.Scored("asked", own.score(own.build_model(), 1000.0))

        assert session.best_of(trial, bench.UniformCount(1, 3), QUERY) == "asked"

    def test_a_session_belongs_to_the_thread_that_opened_it(self) -> None:
        task, found = TinyTask(), []

        def work() -> None:
            own = session_on(task, task.load_train(bench.DataSource.resolve()))
            found.append(own.score(own.build_model(), 1000.0))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert len(found) == 1


class TestStreams:
    """A stream that starts twice gives the same noise twice, and a difference without any."""

    @pytest.mark.parametrize("names", [("\N{GRINNING FACE}", "\ud83d\ude00"), (float("nan"), float("nan")), ([1], [1])])
    def test_a_name_is_a_text(self, session, names: tuple[Any, Any]) -> None:
        for ask in (session.fork, session.uniform, lambda name: session.sample(BATCH, name)):
            with pytest.raises(InvalidValueError, match="to be a text of 1 to 64 printable"):
                [ask(name) for name in names]

    def test_two_names_that_are_seeded_alike_are_one_stream(self, session) -> None:
        class Odd(str):
            def __hash__(self) -> int:
                return 7

            def __eq__(self, other: object) -> bool:
                return self is other

        one, two = session.uniform(Odd("a")), session.uniform(Odd("a"))
        assert one != two
        access = session._access
        assert access.generator("noise", "\N{GRINNING FACE}") is access.generator("noise", "\ud83d\ude00")
        assert access.numbered("\N{GRINNING FACE}") != access.numbered("\ud83d\ude00")


def test_a_rule_that_counts_is_refused() -> None:
    """The session makes its own."""
    task = TinyTask()
    session = session_on(task, task.load_train(bench.DataSource.resolve()))
    batch = session.sample(bench.poisson_sampled(0.08, bench.gaussian(4.0)))
    with pytest.raises(InvalidValueError, match="got CountingRule: a session asks it about norms in advance"):
        batch.gradient(session.build_model(), CountingRule(1.0), 4.0)


class TestWatchers:
    """What watches is refused also if it comes late, or says that it is torch's own."""

    def ask(self, session: bench.Session, model: nn.Module | None = None) -> None:
        with pytest.raises(InvalidValueError, match=r"without hooks of all modules|no mode of torch"):
            session.score(model or session.build_model(), 1000.0)

    def test_a_hook_that_claims_to_be_of_torch(self, session) -> None:
        @functools.wraps(nn.functional.relu)
        def spy(*_: Any) -> None: ...

        for hook in (spy, nn.DataParallel(nn.Identity())):
            handle = nn.modules.module.register_module_forward_hook(hook)
            try:
                self.ask(session)
            finally:
                handle.remove()

    def test_a_hook_that_is_set_while_weights_are_read(self, session) -> None:
        class Late(nn.Linear):
            def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
                nn.modules.module.register_module_forward_hook(lambda *_: None)
                return super().named_parameters(*args, **kwargs)

        with pytest.raises(RuntimeError, match="no hook of all modules"):
            session.score(Late(5, 3), 1000.0)
        assert not nn.modules.module._global_forward_hooks

    def test_a_mode_that_a_clipping_rule_enters(self, session) -> None:
        class Mode(torch.overrides.TorchFunctionMode):
            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                return func(*args, **(kwargs or {}))

        mode = Mode()

        class Entering(bench.Clipping):
            interpolated = True
            sensitivity = 1.0

            def factors(self, norms: torch.Tensor) -> torch.Tensor:
                mode.__enter__()
                return 1 / (norms + 1)

        kind = bench.poisson_sampled(1.0, bench.gaussian(1000.0))
        batches, models = [session.sample(kind) for _ in range(2)], [session.build_model() for _ in range(2)]
        try:
            with pytest.raises(InvalidValueError, match="Mode is active"):
                gradients_together(batches, models, [Entering(), bench.AutoS()], [1000.0, 1000.0])
        finally:
            mode.__exit__(None, None, None)

    def test_a_trace_of_the_execution_has_neither_sizes_nor_scores(self, session, tmp_path: Path) -> None:
        model, file = session.build_model(), tmp_path / "trace.json"
        observer = torch.profiler.ExecutionTraceObserver().register_callback(str(file))
        observer.start()
        try:
            torch.ones(3).sum().item()
            session.sample(bench.poisson_sampled(0.1, bench.gaussian(4.0))).gradient(model, bench.AutoS(), 4.0)
            session.score(model, 1000.0)
            torch.ones(3).sum().item()
        finally:
            observer.stop()
            observer.unregister_callback()
        names = [node["name"] for node in json.loads(file.read_text())["nodes"]]
        assert names.count("aten::item") == 2  # before and after: recording goes on once a query is over
        assert names.count("aten::sum") == 2 * names.count("aten::item")
        assert not any("addmm" in name for name in names)


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
        made.score(made.build_model(), 1000.0)
        return made

    @pytest.mark.parametrize(
        "register",
        [
            nn.modules.module.register_module_forward_hook,
            nn.modules.module.register_module_forward_pre_hook,
            nn.modules.module.register_module_full_backward_hook,
            nn.modules.module.register_module_parameter_registration_hook,
            register_optimizer_step_pre_hook,
        ],
    )
    def test_no_hook_is_added(self, session, monkeypatch, register: Any) -> None:
        tried = []

        def act() -> None:
            with pytest.raises(RuntimeError, match="no hook of all modules"), ThreadPoolExecutor(1) as pool:
                pool.submit(register, lambda *_: None).result()
            tried.append(1)

        monkeypatch.setattr(Acting, "act", staticmethod(act))
        session.score(session.build_model(), 1000.0)
        assert tried
        register(lambda *_: None).remove()  # afterwards it is as before

    def test_a_mode_that_is_entered_ends_the_run(self, session, monkeypatch) -> None:
        class Passing(torch.overrides.TorchFunctionMode):
            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                return func(*args, **(kwargs or {}))

        mode = Passing()
        monkeypatch.setattr(Acting, "act", staticmethod(lambda: mode.__enter__()))
        try:
            with pytest.raises(bench.DphpoBenchError, match="on private records"):
                session.score(session.build_model(), 1000.0)
        finally:
            mode.__exit__(None, None, None)
        assert torch.is_grad_enabled()
        monkeypatch.setattr(Acting, "act", None)
        with pytest.raises(bench.DphpoBenchError):
            session.score(session.build_model(), 1000.0)

    def test_handlers_of_signals_wait(self, session, monkeypatch) -> None:
        log: list[str] = []

        def act() -> None:
            signal.raise_signal(signal.SIGUSR1)
            log.append("in the query")

        before = signal.signal(signal.SIGUSR1, lambda *_: log.append("handled"))
        monkeypatch.setattr(Acting, "act", staticmethod(act))
        try:
            session.score(session.build_model(), 1000.0)
            assert log == ["in the query"] * (len(log) - 1) + ["handled"]
            signal.raise_signal(signal.SIGUSR1)
            assert log[-2:] == ["handled", "handled"]
        finally:
            signal.signal(signal.SIGUSR1, before)

    def test_no_garbage_is_collected(self, session, monkeypatch) -> None:
        seen = []
        monkeypatch.setattr(Acting, "act", staticmethod(lambda: seen.append(gc.isenabled())))
        session.score(session.build_model(), 1000.0)
        assert (set(seen), gc.isenabled()) == ({False}, True)

    def test_the_numbers_of_hooks_do_not_tell_how_many_there_were(self, session) -> None:
        """They told the size of a batch for a model that takes records one by one, and the number of trials."""
        numbers = []
        kind = bench.poisson_sampled(0.5, bench.gaussian(1000.0))
        for _ in range(2):
            handle = nn.Identity().register_forward_hook(lambda *_: None)
            numbers.append(handle.id)
            session.sample(kind).gradient(session.build_model(), bench.AutoS(), 1000.0)
            del handle
        assert (numbers[1] - numbers[0]) % guard._FAR == 1

    def test_hooks_added_meanwhile_keep_their_numbers(self, session, monkeypatch) -> None:
        """The next one of the same module took the number of one of another thread, and its place."""
        module, called = nn.Identity(), []
        kept = []

        def act() -> None:
            if not kept:
                kept.append(module.register_forward_hook(lambda *_: called.append("first")))

        monkeypatch.setattr(Acting, "act", staticmethod(act))
        session.score(session.build_model(), 1000.0)
        kept.append(module.register_forward_hook(lambda *_: called.append("second")))
        module(torch.zeros(1))
        assert called == ["first", "second"]

    def test_numbers_have_all_their_bits_whatever_the_process_has_chosen(self, session, monkeypatch) -> None:
        """TF32 rounds by 1e-3, and may do so for some sizes of a batch only."""
        seen = []
        products: Any = torch.backends.mkldnn.matmul
        before, products.fp32_precision = products.fp32_precision, "bf16"
        monkeypatch.setattr(Acting, "act", staticmethod(lambda: seen.append(products.fp32_precision)))
        try:
            session.score(session.build_model(), 1000.0)
            assert (set(seen), products.fp32_precision) == ({"ieee"}, "bf16")
        finally:
            products.fp32_precision = before

    def test_autocast_ends_where_a_query_begins(self, session) -> None:
        """It kept halves of the weights, which then changed: the loss was the same all along a direction."""
        model, kind = session.build_model(), bench.poisson_sampled(1.0, bench.repeat(bench.gaussian(1e-6), 3))
        with torch.no_grad():
            for weight in model.parameters():
                weight.normal_()
        direction = [weight.detach().clone() for weight in model.parameters()]
        steps = (-1.0, 0.0, 0.5)
        plain = session.sample(kind, "one").losses(model, direction, steps, 100.0, 1e-6)
        with torch.autocast("cpu", torch.bfloat16):
            found = session.sample(kind, "two").losses(model, direction, steps, 100.0, 1e-6)
            assert torch.is_autocast_enabled("cpu")
        assert found == pytest.approx(plain, rel=1e-4)
        assert len({round(loss, 3) for loss in plain}) == 3

    def test_freed_memory_does_not_hold_what_was_released_without_its_noise(self) -> None:
        """`torch.empty` gave the sum of clipped gradients back, to the last bit, in four queries of four."""

        class Wide(TinyTask):
            def build_model(self) -> nn.Module:
                return nn.Sequential(nn.Linear(5, 2000), nn.Tanh(), nn.Linear(2000, 3))

        task = Wide()
        train = task.load_train(bench.DataSource.resolve())
        session, kind = session_on(task, train), bench.poisson_sampled(1.0, bench.gaussian(1000.0))
        model = session.build_model()
        sizes = [weight.numel() for weight in model.parameters()]
        held: dict[int, list[torch.Tensor]] = {}
        for number in range(4):
            session.sample(kind, str(number)).gradient(model, bench.Abadi(1.0), 1000.0)
            for size in (*sizes, sum(sizes)):
                taken = [torch.empty(size, dtype=torch.float64) for _ in range(20)]
                held.setdefault(size, []).extend(one.clone() for one in taken)
        engine = session_on(task, train)._access.raw.own_model().engine(model)
        for true in engine.clipped_sum(train.inputs, train.targets, bench.Abadi(1.0)):
            near = 1e-6 * float(true.abs().max())
            shares = [((one - true.flatten()).abs() < near).double().mean() for one in held[true.numel()]]
            assert true.numel() < 10 or max(shares) < 0.05

    def test_a_direction_is_copied_and_has_values(self, session) -> None:
        model, kind = session.build_model(), bench.poisson_sampled(1.0, bench.gaussian(1000.0))
        direction = [torch.ones_like(weight, device="meta") for weight in model.parameters()]
        with pytest.raises(InvalidValueError, match="tensors with values"):
            session.sample(kind).losses(model, direction, (0.0,), 1.0, 1000.0)
        direction = [torch.ones_like(weight, dtype=torch.float64) for weight in model.parameters()]
        assert len(session.sample(kind).losses(model, direction, (0.0,), 1.0, 1000.0)) == 1

    def test_a_handler_that_raises_does_not_silence_the_next(self, session, monkeypatch) -> None:
        log: list[str] = []

        def fails(*_: object) -> None:
            raise TimeoutError

        def act() -> None:
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGUSR2)

        own = {signal.SIGUSR1: fails, signal.SIGUSR2: lambda *_: log.append("handled")}
        before = {one: signal.signal(one, handler) for one, handler in own.items()}
        monkeypatch.setattr(Acting, "act", staticmethod(act))
        try:
            with pytest.raises(TimeoutError):
                session.score(session.build_model(), 1000.0)
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)
        assert log == ["handled"]

    def test_a_training_on_parts_that_is_interrupted_ends_the_run(self, session) -> None:
        """It is charged to nobody: whoever swallowed the error could try again until something came of it."""
        candidates = [bench.DpSgd(1.0, 1, 50.0, 0.1, clipping="abadi:1e31")]
        with pytest.raises(InvalidValueError, match="sensitivity"):
            session.sealed_utilities(candidates, 4, 0.5)
        with pytest.raises(bench.DphpoBenchError):
            session.score(session.build_model(), 1000.0)


def test_two_runs_in_two_threads_leave_torch_as_it_was() -> None:
    """Each put back what it had found: the registries of the other, which took no hooks any more."""
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with Guard().alone():
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    with Guard().alone():
        thread.start()
        assert entered.wait(60)
    leave.set()
    thread.join()
    nn.modules.module.register_module_forward_hook(lambda *_: None).remove()
    assert gc.isenabled()


def test_an_interrupt_in_the_midst_of_a_query_ends_the_run(monkeypatch) -> None:
    interrupted: list[int] = []

    def interrupt() -> None:
        if interrupted:
            raise KeyboardInterrupt

    task = Built(Acting)
    session = session_on(task, task.load_train(bench.DataSource.resolve()))
    model = session.build_model()
    monkeypatch.setattr(Acting, "act", staticmethod(interrupt))
    session.score(model, 1000.0)
    interrupted.append(1)
    with pytest.raises(KeyboardInterrupt):
        session.score(model, 1000.0)
    interrupted.clear()
    with pytest.raises(bench.DphpoBenchError):
        session.score(model, 1000.0)


def test_the_dtype_of_models_is_that_of_the_run() -> None:
    """In float64 a method could have squares of gradients underflow, so that clipping took them for nothing."""
    task = TinyTask()
    session = session_on(task, task.load_train(bench.DataSource.resolve()))
    torch.set_default_dtype(torch.float64)
    try:
        model = session.build_model()
        session.score(model, 1000.0)
    finally:
        torch.set_default_dtype(torch.float32)
    assert {one.dtype for one in model.parameters()} == {torch.float32}


def test_outputs_of_another_class_do_not_meet_the_test_labels() -> None:
    seen = []

    class Answer(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.extend(one for one in args if type(one) is torch.Tensor and one.dtype == torch.int64)
            return super().__torch_function__(func, types, args, kwargs or {})

    class Telling(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).as_subclass(Answer)

    record = run(lambda _: bench.Outcome(Telling(5, 3)), event=QUERY)
    assert (record.status, seen) == ("failed", [])
    assert "Expected a torch.Tensor, got a Answer" in record.error


def test_whether_a_method_is_private_is_asked_once(monkeypatch) -> None:
    answers = iter([False, True, True, True])
    monkeypatch.setattr(Probe, "end_to_end_private", property(lambda _: next(answers)))
    record = run(lambda session: bench.Outcome(session.build_model()), event=bench.non_private())
    assert record.privacy.end_to_end_private is False


def test_an_optimiser_put_beside_those_of_torch_is_not_one(monkeypatch) -> None:
    class Spy(torch.optim.SGD): ...

    monkeypatch.setattr(torch.optim, "Spy", Spy, raising=False)
    with pytest.raises(UnknownNameError, match="spy"):
        UpdateRule("spy", [torch.zeros(2, requires_grad=True)])


class TestSelections:
    """Of trials that do not win, nothing is known: not their scores, and not their number."""

    def test_a_refusal_says_nothing_of_a_trial(self, session) -> None:
        def trial(own: bench.Session) -> bench.Scored:
            score = own.score(own.build_model(), 1000.0)
            own.one_of(bench.one_of([bench.on_part(repr(score), "x", QUERY), QUERY]), 0)
            return bench.Scored(None, score)

        with pytest.raises(OverBudgetError) as caught:
            session.best_of(trial, bench.UniformCount(1, 2), QUERY)
        assert "What it asked for stays hidden" in str(caught.value)
        assert "OneOf" not in str(caught.value) + str(session._access.ledger.refused)

    def test_an_outcome_that_cannot_be_kept_is_not_named(self, session) -> None:
        def trial(own: bench.Session) -> bench.Scored:
            outcome = type(f"T{own.score(own.build_model(), 1000.0)}", (), {"__reduce__": lambda _: 1 / 0})()
            return bench.Scored(outcome, 1.0)

        with pytest.raises(OverBudgetError) as caught:
            session.best_of(trial, bench.UniformCount(1, 2), QUERY)
        assert str(caught.value) == "Expected a trial's outcome that pickle can write; what it returned stays hidden."

    def test_neither_progress_nor_facts_nor_logs_count_trials(self) -> None:
        importlib.import_module("optuna.trial")  # its loggers
        told: list[Any] = []
        trial = bench.Trial(bench.DpSgd(1.0, 1, 50.0, 0.1, clipping="abadi:1"), 50.0, 0.2)
        runs = bench.UniformCount(3, 9)

        class Listening(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                told.append(record.getMessage())

        handler = Listening()
        loggers = [logging.getLogger(name) for name in logging.root.manager.loggerDict if name.startswith("optuna")]
        levels = [one.level for one in loggers]

        def body(session: bench.Session) -> bench.Outcome:
            session.progress.track = lambda *args: told.append(args)
            object.__setattr__(session.facts, "search_space", lambda: told.append("asked"))
            for one in loggers:
                one.setLevel(logging.DEBUG)
                one.addHandler(handler)
            session.best_of(trial, runs, trial.event)
            return finish(session)

        try:
            record = run(body, event=bench.best_of(trial.event, runs), seed=None)
        finally:
            for one, level in zip(loggers, levels, strict=True):
                one.setLevel(level)
                one.removeHandler(handler)
        assert loggers
        assert (record.status, told) == ("ok", [])


class TestInterrupted:
    """Whoever goes on in the same process may know the first answer, and gets the same noise."""

    def body(self, kept: list[float], interrupt: bool = True) -> Any:
        def ask(session: bench.Session) -> bench.Outcome:
            model = session.build_model()
            kept.append(session.score(changed(model) if kept else model, 1000.0))
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

    def test_one_that_had_released_nothing_is(self, tmp_path: Path) -> None:
        options = {"event": QUERY, "seed": None, "results_dir": tmp_path}

        def nothing(session: bench.Session) -> bench.Outcome:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(nothing, **options)
        assert run(self.body([], interrupt=False), **options).status == "ok"


def test_what_a_run_released_is_out_of_the_models_reach() -> None:
    released: dict[str, Any] = {"steps": [1]}

    class Telling(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            released["steps"].append(2)
            outcome.released["seen"] = x.tolist()
            return super().forward(x)

    outcome = bench.Outcome(Telling(5, 3), released)
    assert run(lambda _: outcome, event=QUERY).released == {"steps": [1]}
