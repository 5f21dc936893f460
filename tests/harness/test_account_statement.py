"""The page of text on an account, and what it says of single runs."""

import json
from pathlib import Path

import pytest

import dphpo_bench as bench
from dphpo_bench.cli import commands as cli
from dphpo_bench.harness.account import Account
from dphpo_bench.harness.account_report import account_sections, bound_text, total_risk
from dphpo_bench.privacy.events import gaussian, non_private
from dphpo_bench.records.statement import WIDTH
from tests.harness.test_account import PrivateTask, release


def text_of(root: Path) -> str:
    return " ".join(paragraph for _, told in account_sections(bench.account(root)) for paragraph in told)


def test_two_gaussians_have_the_risk_of_one(tmp_path: Path) -> None:
    """Two of σ = 2√2 are one of μ = 1/2: advantage 2Φ(1/4) − 1 = .19741, in closed form."""
    Account(tmp_path).count([release(1, gaussian(8**0.5)), release(2, gaussian(8**0.5))])
    report = bench.account(tmp_path)
    found = total_risk(report, report.totals[0])
    assert found is not None
    assert found.advantage == pytest.approx(0.19741, abs=2e-5)
    assert found.mu == pytest.approx(0.5, abs=1e-3)
    text = text_of(tmp_path)
    assert f"ε = {bound_text(report.totals[0].together or 0, 5)} and δ = 1e-05, if their settings were fixed" in text
    assert "holds on condition that this total was planned beforehand" in text
    assert "1. 2026-01-01, run: m on t (o), ε = 1.000, δ = 1e-05, per record; not ended, or killed." in text


def test_what_has_no_guarantee_says_so(tmp_path: Path) -> None:
    Account(tmp_path).count([release(1, gaussian(2.0)), release(2, non_private(), float("inf"))])
    assert "For one record: none. Some run had no privacy" in text_of(tmp_path)


def test_the_command_states_an_account_and_what_else_ran(fixed_noise, budget, tmp_path, monkeypatch, capsys) -> None:
    first, _ = (bench.run(fixed_noise(), PrivateTask(), budget, results_dir=tmp_path) for _ in range(2))
    capsys.readouterr()

    def told(*arguments: str) -> str:
        monkeypatch.setattr("sys.argv", ["dphpo-bench", "statement", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 0
        return capsys.readouterr().out

    page = told(str(tmp_path))
    assert page.startswith("Privacy statement: account main, 2 runs\n\nGuarantee\n")
    assert max(map(len, page.splitlines())) <= WIDTH
    assert json.loads(told(str(tmp_path), "--json"))["account"]["totals"][0]["releases"] == 2
    single = " ".join(told(str(first.path)).split())
    assert "The account main counts this run. By now: 2 runs on these records; both together: ε = " in single
    assert "every other run on the same records" not in single
