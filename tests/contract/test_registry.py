"""Plug-ins are found by entry points; broken, unknown and duplicate ones are handled in one line each."""

import subprocess
import sys
from importlib.metadata import Distribution
from pathlib import Path

import numpy as np
import pytest

from dphpo_bench.base.errors import InvalidValueError, RegistryError, UnknownNameError
from dphpo_bench.contract import registry
from dphpo_bench.methods.dp_sgd import FixedDpSgd

PLUG_IN = """
from dataclasses import dataclass
import dphpo_bench as bench

@dataclass(frozen=True)
class Toy(bench.Method):
    name = "toy"
    summary = "A stranger's method."
    reference = "none"
    tuning = ()
    end_to_end_private = True
    depth: int = 3
    rate: float | None = None

    def plan(self, facts, budget): ...
    def run(self, plan, session): ...
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Install throw-away distributions: their modules and their entry points."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def add(distribution: str, group: str, name: str, value: str, source: str = "") -> None:
        info = tmp_path / f"{distribution}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")
        module = value.partition(":")[0]
        (tmp_path / f"{module}.py").write_text(source)
        monkeypatch.delitem(sys.modules, module, raising=False)

    return add


def test_built_ins_arrive_by_entry_points() -> None:
    points = Distribution.from_name("dphpo-bench").entry_points
    for kind, found in (("methods", registry.methods()), ("tasks", registry.tasks())):
        assert {point.name for point in points if point.group == f"dphpo_bench.{kind}"} == set(found)
    assert len(registry.methods()) == 48
    assert len(registry.tasks()) == 36
    assert all(item.origin.startswith("dphpo-bench ") for item in registry.tasks().values())


def test_a_strangers_method_stands_beside_the_built_ins(install) -> None:  # type: ignore[no-untyped-def]
    install("stranger", "dphpo_bench.methods", "toy", "stranger_toy:Toy", PLUG_IN)
    assert registry.methods()["toy"].origin == "stranger 1.0"
    method = registry.make_method("toy", {"depth": "5", "rate": "0.5"})
    assert method.parameters == {"depth": 5, "rate": 0.5}


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_module", "No module named 'no_such_module'"),
        ("1 / 0", "ZeroDivisionError"),
        ("", "Toy"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_broken_plug_in_disturbs_only_who_asks_for_it(install, source: str, reason: str) -> None:  # type: ignore[no-untyped-def]
    install("broken", "dphpo_bench.methods", "toy", "broken_toy:Toy", source)
    assert registry.make_method("hyfreedp").name == "hyfreedp"
    with pytest.raises(RegistryError, match=f"Cannot load toy = broken_toy:Toy: .*{reason}"):
        registry.make_method("toy")
    with pytest.warns(UserWarning, match=f"Skipped the broken method plug-in 'toy'.*{reason}") as caught:
        working = registry.methods().loaded()
    assert (len(caught), "toy" in working, "hyfreedp" in working) == (1, False, True)


def test_only_what_is_named_is_loaded() -> None:
    code = "import sys, dphpo_bench as b; b.make_method('dp_sgd'); print('dphpo_bench.methods.hyfreedp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_parameter_without_a_default_is_asked_for(install) -> None:  # type: ignore[no-untyped-def]
    install("asking", "dphpo_bench.methods", "toy", "asking_toy:Toy", PLUG_IN.replace("depth: int = 3", "depth: int"))
    with pytest.raises(InvalidValueError, match=r"Cannot make toy: .*'depth'\. Set its parameters with --set"):
        registry.make_method("toy")
    assert registry.make_method("toy", {"depth": "3"}).parameters["depth"] == 3


def test_what_is_neither_a_plug_in_nor_a_name_is_refused() -> None:
    for of, kind in ((registry.method_of, "method"), (registry.task_of, "task")):
        with pytest.raises(InvalidValueError, match=f"Expected one {kind}, or its name, got the class dict"):
            of(dict)
        with pytest.raises(InvalidValueError, match=f"Expected one {kind}, or its name, got a list"):
            of(["digits", "adult"])


def test_an_edited_copy_of_a_registered_method_needs_a_name_of_its_own() -> None:
    edited = type("Edited", (FixedDpSgd,), {})
    with pytest.raises(InvalidValueError, match="Expected another name than 'dp_sgd' of the method Edited"):
        registry.method_of(edited())
    for method in (FixedDpSgd(), type("Edited", (FixedDpSgd,), {"name": "edited"})()):
        assert registry.method_of(method) is method


def test_a_class_under_another_name_is_refused(install) -> None:  # type: ignore[no-untyped-def]
    install("misnamed", "dphpo_bench.methods", "joy", "misnamed_toy:Toy", PLUG_IN)
    with pytest.raises(RegistryError, match="joy = misnamed_toy:Toy names a class whose `name` is 'toy'"):
        registry.make_method("joy")


def test_two_of_one_name_are_an_error(install) -> None:  # type: ignore[no-untyped-def]
    install("copycat", "dphpo_bench.methods", "hyfreedp", "copycat:Toy", PLUG_IN)
    with pytest.raises(RegistryError, match=r"Two plug-ins provide the method 'hyfreedp'.*copycat 1\.0"):
        registry.make_method("hyfreedp")
    assert registry.make_method("dp_sgd").name == "dp_sgd"


def test_unknown_names() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'hyfreedp'"):
        registry.make_method("hyfree")
    with pytest.raises(UnknownNameError, match=r"task 'cifar'. Did you mean 'cifar10'\? Available: adult, adult_few"):
        registry.make_task("cifar")
    with pytest.raises(UnknownNameError, match="Unknown model"):
        registry.make_task("digits", "resnet")


def test_parameters_are_read_by_their_types() -> None:
    assert registry.make_method("hyfreedp", {"epochs": np.int64(3)}).parameters["epochs"] == 3
    with pytest.raises(InvalidValueError, match=r"epochs=.*: a ndarray is no value of a parameter"):
        registry.make_method("hyfreedp", {"epochs": np.ones(1)})
    assert registry.make_method("hyfreedp_paper", {"update_interval": "10"}).parameters["update_interval"] == 10
    with pytest.raises(UnknownNameError, match="Did you mean 'update_interval'"):
        registry.make_method("hyfreedp_paper", {"update_intervall": "10"})
    with pytest.raises(InvalidValueError, match="update_interval='many'"):
        registry.make_method("hyfreedp_paper", {"update_interval": "many"})
    with pytest.raises(InvalidValueError, match="rule='magic'"):
        registry.make_method("hyfreedp_paper", {"rule": "magic"})
