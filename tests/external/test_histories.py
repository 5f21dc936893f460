"""Histories of runs: what is read, and that each mistake is one line that names the place."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dp_accounting
import pytest
from dp_accounting import dp_event
from opacus import PrivacyEngine
from opacus.accountants import GaussianAccountant, PRVAccountant, RDPAccountant

import dphpo_bench as bench
from dphpo_bench.external.histories import read_history
from dphpo_bench.external.studies import TrialOptions
from dphpo_bench.privacy import event_rules, events
from dphpo_bench.privacy.event_texts import to_json

DELTA = 1e-5


def sgd(rate: float, noise: float, steps: int) -> Any:
    return events.repeat(events.poisson_sampled(rate, events.gaussian(noise)), steps)


def runs_of(history: object, count: int = 1) -> Any:
    return dict(read_history(history, count, TrialOptions()).runs)


RUN = sgd(0.01, 1.1, 300)
THEIRS = dp_accounting.SelfComposedDpEvent(
    dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.1)), 300
)


def engine() -> Any:
    made = PrivacyEngine(accountant="prv")
    made.accountant.history = [(1.1, 0.01, 300)]
    return made


def accountant(kind: Any = RDPAccountant) -> Any:
    made = kind()
    for _ in range(300):
        made.step(noise_multiplier=1.1, sample_rate=0.01)
    return made


@pytest.mark.parametrize(
    "history",
    [
        [("dp-sgd", 0.01, 1.1, 300)],
        ("dp_sgd", 0.01, 1.1, 300),
        [{"mechanism": "dp-sgd", "sample_rate": 0.01, "noise_multiplier": 1.1, "steps": 300}],
        [{"event": to_json(RUN)}],
        [{"event": THEIRS, "count": 1}],
        to_json(RUN),
        RUN,
        THEIRS,
        dp_accounting.ComposedDpEvent([THEIRS]),
        [(1.1, 0.01, 300)],
        [[1.1, 0.01, 100.0], (1.1, 0.01, 200)],
        accountant(),
        accountant(PRVAccountant),
        accountant(GaussianAccountant),
        engine(),
        SimpleNamespace(dp_event=THEIRS),
        SimpleNamespace(dp_event=THEIRS, neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE),
    ],
    ids=lambda form: type(form).__name__,
)
def test_one_run_in_many_forms(history: object) -> None:
    assert runs_of(history) == {RUN: 1}
    if not isinstance(history, list | tuple):
        assert runs_of([history, history]) == {RUN: 2}
    assert runs_of(history, 40) == {RUN: 40}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("h.toml", "[[runs]]\nmechanism='dp-sgd'\nsample_rate=0.01\nnoise_multiplier=1.1\nsteps=300\ncount=2"),
        ("h.toml", "runs = [['dp-sgd', 0.01, 1.1, 300], [[1.1, 0.01, 300]]]"),
        ("h.toml", f"[[runs]]\ncount = 2\nevent = {{type='repeated', count=300, event={{type='poisson_sampled', {''}"
         "sample_rate=0.01, event={type='gaussian', noise_multiplier=1.1}}}"),
        ("h.json", json.dumps({"delta": 1e-5, "runs": [["dp-sgd", 0.01, 1.1, 300]] * 2})),
        ("h.json", json.dumps([{"event": to_json(RUN), "count": 2}])),
        ("h", json.dumps([to_json(RUN)] * 2)),
        ("h.json", "\ufeff" + json.dumps([[[1.1, 0.01, 300]]] * 2)),
    ],
)  # fmt: skip
def test_two_runs_in_files(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert runs_of(tmp_path / name) == {RUN: 2}
    assert runs_of(str(tmp_path / name)) == {RUN: 2}


@pytest.mark.parametrize(
    ("event", "same"),
    [
        (THEIRS, RUN),
        (dp_accounting.ComposedDpEvent([THEIRS, dp_accounting.LaplaceDpEvent(2)]), None),
        (dp_accounting.ComposedDpEvent([dp_accounting.NoOpDpEvent(), dp_accounting.NonPrivateDpEvent()]), None),
        (dp_event.RepeatAndSelectDpEvent(THEIRS, 10, 1.0), events.best_of(RUN, bench.search.geometric(10))),
        (dp_event.RepeatAndSelectDpEvent(THEIRS, 10, math.inf), events.best_of(RUN, bench.search.Poisson(10))),
    ],
    ids=repr,
)
def test_the_printed_event_is_the_event(tmp_path: Path, event: Any, same: Any) -> None:
    (tmp_path / "event.txt").write_text(repr(event) + "\n")
    assert runs_of(tmp_path / "event.txt") == {event_rules.frozen(same or event): 1}


def test_values_of_a_file_are_its_history(tmp_path: Path) -> None:
    path = tmp_path / "h.toml"
    path.write_text("delta=1e-6\nchosen_by='F1'\nepsilon=2.0\nscore_noise=5.0\nruns=[['gaussian', 3], ['laplace', 2]]")
    read = read_history(path, 1, TrialOptions())
    assert (read.delta, read.chosen_by, read.epsilon, read.score_noise) == (1e-6, "F1", 2.0, 5.0)
    assert bench.price(path).chosen_by == "F1"


def test_an_opacus_history_says_what_its_accountants_assume() -> None:
    assert "poisson_sampling=False" in " ".join(str(bench.price(accountant(), delta=DELTA)).split())
    assert "Opacus" not in str(bench.price(RUN, delta=DELTA))


def endless() -> Any:
    event = dp_accounting.ComposedDpEvent([])
    event.events.append(event)
    return event


def nested(depth: int) -> Any:
    event = dp_accounting.GaussianDpEvent(1.0)
    for _ in range(depth):
        event = dp_accounting.SelfComposedDpEvent(event, 1)
    return event


@pytest.mark.parametrize(
    ("history", "message"),
    [
        (None, "Expected a run"),
        (3, "Expected a run"),
        ([], "at least one run"),
        ([[]], r"history\[0\]: Expected a run"),
        ({}, "the key mechanism"),
        ([("dp-sgd", 0.01, 1.1)], r"history\[0\].*'dp-sgd', sample_rate, noise_multiplier, steps"),
        ([("gaussian", 1)] * 3 + [("gaussian", math.nan)], r"history\[3\].*nan"),
        ([("gaussian", -1)], "noise_multiplier=-1"),
        ([("gaussian", True)], "noise_multiplier=True"),
        ([("pure", "1")], "epsilon='1'"),
        ([("exponential", 1)], "Unknown mechanism 'exponential'.*gaussian"),
        ([("dp-sgd", 1.1, 0.01, 300)], "sample_rate=1.1"),
        ([("dp-sgd", 0, 1.1, 300)], "sample_rate=0"),
        ([("dp-sgd", 0.01, 1.1, 0)], "steps=0"),
        ([("dp-sgd", 0.01, 1.1, 2.5)], "steps=2.5"),
        ([("dp-sgd", 0.01, math.inf, 3)], "noise_multiplier=inf"),
        ([{"mechanism": "gaussian", "noise_multiplier": 1, "count": 0}], "count=0"),
        ([{"mechanism": "gaussian", "noise_multiplier": 1, "count": 10**9}], "count=1000000000"),
        ([{"mechanism": "gaussian", "sigma": 1}], "Unknown key 'sigma'"),
        ([{"mechanism": "gaussian"}], "noise_multiplier is missing"),
        ([{"mechanism": ["gaussian"]}], "Unknown mechanism"),
        ([{"event": 3}], "Expected an event"),
        ([{"event": RUN, "steps": 3}], "event and count only"),
        ([{"type": "mystery"}], "mystery"),
        ([(1.1, 0.01, 300), (1.1, "0.01", 300)], "sample_rate='0.01'"),
        ([(1.1, 0.01, 300), (1.1, 0.01)], "Expected a run"),
        ([("dp-sgd", 1e-9, 1.1, 10**9)] * 2, "number of steps of all runs"),
        (RDPAccountant(), "recorded steps"),
        (dp_accounting.RandomizedResponseDpEvent(0.1, 2), "RandomizedResponseDpEvent"),
        ([dp_accounting.ComposedDpEvent([dp_accounting.ZCDpEvent(0.1)])], "ZCDpEvent"),
        (dp_accounting.ComposedDpEvent(3), "broken"),
        (dp_accounting.ComposedDpEvent([3]), "bounds a int"),
        (dp_accounting.SelfComposedDpEvent(RUN, "3"), "count='3'"),
        (dp_accounting.PoissonSampledDpEvent(2, RUN), "sample_rate=2"),
        (SimpleNamespace(dp_event=THEIRS, neighboring_relation="REPLACE_ONE"), "REPLACE_ONE"),
        (endless(), "too deep"),
        (nested(100_000), "too deep"),
        (b"h.toml", "Expected a run"),
        ("no such file.toml", "No such file"),
        ("", "Is a directory"),
        ("a\0b", "Cannot read the history"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else "",
)  # fmt: skip
def test_a_mistake_in_python_is_one_line(history: object, message: str) -> None:
    with pytest.raises(bench.errors.DphpoBenchError, match=message) as error:
        bench.price(history, delta=DELTA)
    assert len(str(error.value).splitlines()) == 1
    assert len(str(error.value)) < 900


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "pass delta"),
        ({"delta": 1.0}, "delta=1.0"),
        ({"delta": "1e-5"}, "delta"),
        ({"delta": math.nan}, "delta"),
        ({"delta": DELTA, "epsilon": 0}, "epsilon"),
        ({"delta": DELTA, "score_noise": -1}, "score_noise"),
        ({"delta": DELTA, "scores": "secret"}, "scores"),
        ({"delta": DELTA, "count": 0}, "count"),
        ({"delta": DELTA, "count": 10**7}, "count"),
        ({"delta": DELTA, "steps": 3}, "about Optuna's studies"),
        ({"delta": DELTA, "study": "x"}, "about Optuna's studies"),
        ({"delta": DELTA, "chosen_by": 3}, "chosen_by"),
    ],
)
def test_wrong_options_are_one_line(options: Any, message: str) -> None:
    with pytest.raises(bench.errors.InvalidValueError, match=message):
        bench.price([("gaussian", 1)], **options)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("h.toml", b"", "runs: This key is missing"),
        ("h.toml", b"runs = []", "at least one run"),
        ("h.toml", b"runs = 3", "runs:"),
        ("h.toml", b"runs = [", "is not TOML"),
        ("h.toml", b"delta = 1\ndelta = 2\nruns = []", "is not TOML"),
        ("h.toml", b"\xff\xfe\xfd", "is not TOML"),
        ("h.toml", b"delta = 'x'\nruns = [['gaussian', 1]]", "delta: expected a valid number|delta:"),
        ("h.toml", b"dleta = 1e-5\nruns = [['gaussian', 1]]", "Unknown key 'dleta'. Did you mean 'delta'"),
        ("h.toml", b"scores = 'no'\nruns = [['gaussian', 1]]", "scores:"),
        ("h.toml", b"runs = [['gaussian', nan]]", r"runs\[0\]: .*nan"),
        ("h.toml", b"delta = nan\nruns = [['gaussian', 1]]", "delta=nan"),
        ("h.toml", b"epsilon = -1.0\nruns = [['gaussian', 1]]", "epsilon=-1"),
        ("h.toml", b"[[runs]]\nmechanism='gaussian'\nnoise_multiplier=1\nnoise_multiplier=2", "is not TOML"),
        ("h.toml", b"[[runs]]\nmechanism='dp-sgd'\nsample_rate=0.1\nnoise_multiplier=1", "steps is missing"),
        ("h.toml", b"[[runs]]\nmechanism='gaussian'\nnoise_multiplier=1\ncount=1000000000", r"runs\[0\]: .*count"),
        ("h.toml", b"a = " + b"[" * 5000 + b"]" * 5000, "h.toml"),
        ("h.json", b"", "is not JSON"),
        ("h.json", b"{", "is not JSON"),
        ("h.json", b"[]", "at least one run"),
        ("h.json", b"3", "Expected a run"),
        ("h.json", b"null", "Expected a run"),
        ("h.json", b"{}", "runs: This key is missing"),
        ("h.json", b'{"runs": [["gaussian", 1]], "runs": []}', "'runs' is there twice"),
        ("h.json", b'[["gaussian", NaN]]', "NaN is no number"),
        ("h.json", b'[["gaussian", 1e999]]', "inf"),
        ("h.json", b'[[["1.1", 0.01, 3]]]', r"h.json, \[0\]: Expected a run"),
        ("h.json", b'[["1.1", 0.01, 3]]', "Unknown mechanism"),
        ("h.json", b'[[1.1, 0.01, "3"]]', "steps='3'"),
        ("h.json", b'[[1.1, 0.01, null]]', "steps=None"),
        ("h.json", b"[" * 100_000 + b"]" * 100_000, "too deep"),
        ("h.json", b"[" + b"9" * 5000 + b"]", "is not JSON"),
        ("h.json", b'{"type": "gaussian"}', "noise_multiplier"),
        ("h.json", b'{"type": "gaussian", "noise_multiplier": "1"}', "noise_multiplier='1'"),
        ("j.log", b'{"op_code": 0, "study_name": "x"}\n{"op_code": 4, "study_id": 0}\n', "journal of Optuna"),
        ("h.db", b"", "is no history"),
        ("h.db", bytes(range(256)) * 20, "is no history"),
        ("h.db", b"SQLite format 3\0" + bytes(2000), "has no studies that this version of Optuna"),
        ("h.txt", b"__import__('os').getpid()", "is no kind of event|no event"),
        ("h.txt", b"GaussianDpEvent(1.0)", "is no history"),
        ("h.txt", b"GaussianDpEvent(sigma=1.0)", "cannot be made"),
        ("h.txt", b"GaussianDpEvent(noise_multiplier=open('x'))", "open"),
        ("h.txt", b"RandomizedResponseDpEvent(noise_parameter=0.1, num_buckets=2)", "RandomizedResponseDpEvent"),
        ("h.txt", b"GaussianDpEvent(noise_multiplier=" + b"(" * 3000 + b"1" + b")" * 3000 + b")", "is no history"),
        ("h.txt", b"GaussianDpEvent(noise_multiplier=" + b"-" * 3000 + b"1)", "is no history|Expected"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_file_is_one_line(
    main_here: Any, tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    code, out, err = main_here("price", name, "--delta", "1e-5")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    with pytest.raises(bench.errors.DphpoBenchError, match=message):
        bench.price(name, delta=DELTA)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("none.toml", "--delta", "1e-5"),
        (".", "--delta", "1e-5"),
        ("h.json",),
        ("h.json", "--delta", "2"),
        ("h.json", "--delta", "nan"),
        ("h.json", "--delta", "x"),
        ("h.json", "--delta", "1e-5", "--count", "0"),
        ("h.json", "--delta", "1e-5", "--public-scores", "--score-noise", "3"),
        ("h.json", "--delta", "1e-5", "--steps", "3"),
        ("mystery://user:secret@nowhere/x", "--delta", "1e-5"),
        ("postgresql://user:secret@", "--delta", "1e-5"),
        ("sqlite:///none.db", "--delta", "1e-5"),
    ],
)
def test_a_mistake_in_the_call_is_one_line(main_here: Any, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "h.json").write_text('[["gaussian", 1]]')
    code, out, err = main_here("price", *arguments)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert "secret" not in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["h.json"]


def test_a_file_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dphpo_bench.external.histories.MAX_BYTES", 10)
    (tmp_path / "h.json").write_text('[["gaussian", 1]]')
    with pytest.raises(bench.errors.InvalidValueError, match="larger than 10 bytes"):
        bench.price(tmp_path / "h.json", delta=DELTA)
