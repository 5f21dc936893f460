"""`run --save-model`, and which runs have a seed."""

import json
from pathlib import Path
from typing import Any

import pytest

import dphpo_bench as bench
from dphpo_bench.contract import registry
from dphpo_bench.data.source import DataSource

pytestmark = pytest.mark.usefixtures("plugin")

BUDGET = ("-m", "auto_clipping", "-t", "blobs", "--epsilon", "3", "--delta", "1e-4", "-q")


def test_a_run_saves_its_model(main_here: Any, tmp_path: Path) -> None:
    code, out, err = main_here("run", *BUDGET, "--save-model", "m.safetensors")
    assert code == 0, err
    assert "dphpo_bench.load_model('m.safetensors').predict(inputs)" in out
    test = registry.make_task("blobs").load_test(DataSource.resolve())
    (path,) = Path("results").rglob("*.json")
    accuracy = (bench.load_model("m.safetensors").predict(test) == test.targets.numpy()).mean()
    assert accuracy == pytest.approx(bench.read_record(path).metrics["accuracy"])

    code, out, err = main_here("run", *BUDGET, "--save-model", "n.safetensors", "--json")
    assert json.loads(out)["status"] == "ok"


@pytest.mark.parametrize(("name", "message"), [("m.pt", "end in .safetensors"), ("old.safetensors", "does not exist")])
def test_a_file_that_cannot_be_written_is_found_before_the_run(
    main_here: Any, tmp_path: Path, name: str, message: str
) -> None:
    (tmp_path / "old.safetensors").touch()
    code, out, err = main_here("run", *BUDGET, "--save-model", name)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("public", [True, False])
def test_runs_on_private_data_have_no_seed_unless_asked(
    main_here: Any, monkeypatch: pytest.MonkeyPatch, public: bool
) -> None:
    monkeypatch.setattr(registry.tasks()["blobs"].cls, "public", public)

    def seeds() -> list[int | None]:
        return [bench.read_record(path).identity.seed for path in sorted(Path("results").rglob("*.json"))]

    code, _, err = main_here("run", *BUDGET)
    assert (code, err) == (0, "")
    assert seeds() == [0 if public else None]
    attack = ("audit", *BUDGET, "--canaries", "20", "--attack", "black_box")
    if not public:
        code, _, err = main_here(*attack)
        assert (code, len(err.splitlines())) == (2, 1)
        assert "The data of task blobs are private" in err
        assert "--private-records" in err
        attack = (*attack, "--private-records")
    code, _, err = main_here(*attack)
    assert (code, err) == (0, "")
    assert seeds() == ([0] if public else [None, None])
    code, _, err = main_here("run", *BUDGET, "--seed", "3")
    assert code == 0
    assert ("whoever learns a seed can subtract the noise" in err) is not public
