"""What the pages show works: commands, code, results, lists."""

import io
import re
import shlex
from collections import Counter
from inspect import ismodule
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console

import dphpo_bench
from dphpo_bench.cli import commands as cli
from dphpo_bench.cli.output import facts
from dphpo_bench.contract import registry
from dphpo_bench.records.store import read_record

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
RESEARCH = sorted((ROOT / "research").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")), *RESEARCH]


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def code(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def test_the_result_in_the_readme_is_the_record_on_the_board() -> None:
    records = [read_record(path) for path in (ROOT / "leaderboard/results/digits/hyfreedp").glob("*.json")]
    found = [record for record in records if (record.identity.epsilon, record.identity.seed) == (3, 0)]
    if not found:
        pytest.skip("the board has no such run now")
    (record,) = found
    place = Path("results/digits/hyfreedp") / f"{record.identity.key}.json"
    printed = io.StringIO()
    title, rows = record.display(record=place)
    Console(file=printed, width=120).print(facts(rows, title=title))
    expected = [f"    {line.rstrip()}" for line in printed.getvalue().splitlines()]
    of_that_day = ("    │ seconds", "    │ peak memory")
    missing = [line for line in expected if not line.startswith(of_that_day) and line not in README.splitlines()]
    assert missing == [], "The README should show:\n" + "\n".join(expected)


def test_records_in_the_pages_are_those_that_the_commands_write() -> None:
    (written,) = set(re.findall(r"results/digits/hyfreedp/\w+\.json", README))
    shown = {name for path in PAGES for name in re.findall(r" results/digits/hyfreedp/\w+\.json", path.read_text())}
    assert shown == {f" {written}"}


@pytest.mark.parametrize("path", PAGES, ids=[str(path.relative_to(ROOT)) for path in PAGES])
def test_every_command_shown_exists_with_its_options(path: Path) -> None:
    """Also every method, task and suite of the README, which is to be typed as it stands."""
    text = path.read_text()
    shown = re.findall(r"^ +(?:.*&& )?(?:srun .*)?(?:\.venv/bin/)?dphpo-bench ([^`\n]*)$", text, flags=re.MULTILINE)
    shown += re.findall(r"`dphpo-bench ([^`]+)`", text.replace("\n", " "))
    for line in shown:
        command: Any = typer.main.get_command(cli.app)
        words = shlex.split(line.rstrip("\\"), comments=True)
        while words and hasattr(command, "commands") and words[0] != "COMMAND" and words[0][0] != "-":
            assert words[0] in command.commands, line
            command = command.commands[words.pop(0)]
        options = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        assert {word for word in words if word.startswith("--")} <= options, line
        if path == PAGES[0]:
            values = dict(pairwise(words))
            assert values.get("--method", "hyfreedp") in registry.methods()
            assert values.get("--task", "digits") in registry.tasks()
            assert all((ROOT / word).is_file() for word in words if word.endswith(".toml"))
    assert path != PAGES[0] or len(shown) >= 4


def test_every_run_of_the_four_papers_has_a_method_with_its_parameters_and_a_task_with_its_model() -> None:
    shown = re.findall(r"`dphpo-bench (?:run|plan) ([^`]+)`", page("../research/four_papers.md"))
    for line in shown:
        words = list(pairwise(shlex.split(line)))
        values = dict(words)
        registry.make_method(values["--method"], dict(word.split("=") for name, word in words if name == "--set"))
        registry.make_task(values["--task"], values.get("--model"))
    assert len(shown) > 20


def test_rows_of_the_four_papers_are_counted_by_status() -> None:
    text = page("../research/four_papers.md")
    statuses, total = ("here", "in kind", "GPU", "no"), Counter[str]()
    for paper, body in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL):
        rows = Counter(re.findall(rf"^\|[^|]*\|[^|]*\| ({'|'.join(statuses)}) \|", body, flags=re.MULTILINE))
        if rows:
            total += rows
            counts = " | ".join(str(rows[status]) for status in statuses)
            (listed,) = re.findall(rf"^\| {paper} \|[^|]*\| (.*) \|$", text, flags=re.MULTILINE)
            assert listed == counts, paper
    assert f"| all | | {' | '.join(str(total[status]) for status in statuses)} |" in text


def test_every_method_task_and_model_is_listed() -> None:
    rows = " ".join(re.findall(r"^\| (`.*?) \|", page("methods.md"), flags=re.MULTILINE))
    assert [name for name in registry.methods() if f"`{name}`" not in rows] == []
    table, _, _ = page("tasks.md").partition("\n## ")
    for name, task in registry.tasks().items():
        (row,) = re.findall(rf"^\| `{name}` .*$", table, flags=re.MULTILINE)
        assert all(f"`{model}`" in row for model in task.cls.models)


def test_prices_of_rounds_are_those_in_the_pitfalls() -> None:
    (block,) = code(page("pitfalls.md"))
    for line in block.splitlines():
        values: dict[str, Any] = {"bench": dphpo_bench}
        exec(line, values)
        assert f"{values['price']:.2f}" == re.findall(r"# ([\d.]+):", line)[0]
    assert "| 1.40 a round, 10.78 after 80 |" in page("pitfalls.md")


def test_every_public_name_has_one_place_in_the_reference() -> None:
    sections = re.split(r"^## `([\w.]+)`", page("api.md"), flags=re.MULTILINE)[1:]
    listed = {
        title: Counter(re.findall(r"`(\w+)`", text)) for title, text in zip(sections[::2], sections[1::2], strict=True)
    }
    top = {name: getattr(dphpo_bench, name) for name in dphpo_bench.__all__}
    spaces = {f"bench.{name}": Counter(value.__all__) for name, value in top.items() if ismodule(value)}
    assert listed == {"dphpo_bench": Counter(name for name, value in top.items() if not ismodule(value)), **spaces}


def anchors(path: Path) -> set[str]:
    """Return what a link to the page may name after "#"."""
    titles = re.findall(r"^#+ (.*)$", path.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", RESEARCH, ids=[path.name for path in RESEARCH])
def test_links_of_research_lead_somewhere(path: Path) -> None:
    """The site, which follows all links of the other pages, leaves these out."""
    for target in re.findall(r"\]\(([^):]+)\)", path.read_text()):
        name, _, anchor = target.partition("#")
        file = path.parent / name if name else path
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def test_the_table_of_own_data_becomes_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    example, from_disk = code(page("own_data.md").partition("## Tables")[2])
    names: dict[str, Any] = {}
    exec(example, names)
    task, columns = names["task"], dphpo_bench.Columns.read("stays.json")
    assert task.columns == columns
    inputs = columns.encode(names["frame"][:8000].drop(columns="readmitted"))
    source = dphpo_bench.DataSource.resolve(cache_dir=tmp_path)
    assert task.load_train(source).inputs.equal(inputs)
    names["frame"][:8000].to_parquet("stays.parquet")
    exec(from_disk.replace("100_000", "3000"), names)
    mapped, before = names["task"].load_train(source), task.load_train(source)
    assert mapped.inputs.equal(inputs)
    assert mapped.targets.equal(before.targets)
