"""Findings that a person wrote: text against data, those of this repository first."""

from pathlib import Path

import pytest

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.leaderboard.written import Writings, Written, held, read_written, wrong_figure

LEADERBOARD = Path(__file__).parents[2] / "leaderboard"
TABLE = "label,mean,private,gap\nhyfreedp,0.8716,True,0.025\nnonprivate,0.95,False,\n"
GAP = "SELECT 100 * gap FROM board WHERE label = 'hyfreedp'"


def written(text: str, figures: dict[str, str]) -> Written:
    return Written(title="A title", text=text, figures=figures)


def test_the_boards_own_findings_are_right() -> None:
    findings = read_written(LEADERBOARD / "findings.toml").finding
    assert len(findings) == 8
    table = (LEADERBOARD / "leaderboard.csv").read_text(encoding="utf-8")
    assert [wrong_figure(one, table) for one in findings] == [""] * 8


@pytest.mark.parametrize(
    ("words", "query"),
    [
        ("2.5 points", GAP),
        ("−2.50", GAP.replace("100", "-100")),
        ("hyfreedp", "SELECT label FROM board WHERE private ORDER BY mean DESC"),
        ("1 of", "SELECT COUNT(gap) FROM board"),
        ("87.2 %", "SELECT 100 * MIN(mean) FROM board"),
        ("1,000", "SELECT 1000"),
    ],
)
def test_figures_are_as_exact_as_the_words(words: str, query: str) -> None:
    assert wrong_figure(written(f"It is {words} so.", {words: query}), TABLE) == ""


@pytest.mark.parametrize(
    ("words", "query", "reason"),
    [
        ("2.6 points", GAP, f"it says '2.6 points', the board gives 2.5: {GAP}"),
        ("nonprivate", "SELECT label FROM board WHERE private", "it says 'nonprivate', the board gives hyfreedp: "),
        ("2.5", "SELECT gap FROM board WHERE label = 'dowg'", "its query gives 0 rows rather than one value"),
        ("2.5", "SELECT lead FROM board", "no such column: lead"),
        ("2.5", "DELETE FROM board", "not authorized"),
        ("2.5", "SELECT 1; SELECT 2", "one statement at a time"),
    ],
)
def test_a_wrong_figure_is_one_line(words: str, query: str, reason: str) -> None:
    found = wrong_figure(written(f"It is {words} so.", {words: query}), TABLE)
    assert reason in found
    findings, lines = held([written(f"It is {words} so.", {words: query})], TABLE, Path("findings.toml"))
    assert findings == []
    assert [line.partition(": ")[0] for line in lines] == ["findings.toml, finding 1"]
    assert "\n" not in lines[0]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[[finding]", "is not TOML"),
        ("[[finding]]\ntitle = 'x'\ntext = 'y'", "finding.0.figures: Field required"),
        ("[[finding]]\ntitle = 'x'\ntext = 'y'\nfigures = {}", "finding.0.figures: Dictionary should have at least 1"),
        ("[[findings]]\ntitle = 'x'", "findings: Extra inputs are not permitted"),
    ],
)
def test_a_file_of_another_form_is_one_line(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "findings.toml"
    assert read_written(path) == Writings()
    path.write_text(content)
    with pytest.raises(InvalidValueError, match=r"findings\.toml") as raised:
        read_written(path)
    assert reason in str(raised.value)
