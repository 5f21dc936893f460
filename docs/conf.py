"""The documents as a site: `sphinx-build -c docs . build/site`, from the root of the repository.

The Markdown files are what a reader of the repository sees, links included. Three things are added for the site: a
page's links to other pages become its branch of the navigation, names in docs/api.md become their docstrings, and
docs/command_line.md gets the help of every command.
"""

import ast
import functools
import html
import importlib
import inspect
import re
import shutil
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

import typer
from typer.cli import get_docs_for_click
from typer.rich_utils import rich_to_html

ROOT = Path(__file__).parents[1]

project = "dphpo-bench"
author = "The dphpo-bench developers"
copyright = "The dphpo-bench developers; Apache-2.0"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "README"
include_patterns = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/*.md",
    "examples/**.md",
    "leaderboard/*.md",
    "leaderboard/tables/*.md",
]
exclude_patterns = [".*", "build", "dphpo_bench", "leaderboard/results", "tests"]
nitpicky = True
smartquotes = False  # -- of an option stays two dashes
# What other libraries document, and what is ours but not public: text, not a link.
nitpick_ignore_regex = [("py:.*", ".*")]

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
# A page may skip a level of headings, and need not be in the navigation.
suppress_warnings = ["myst.header", "toc.not_included"]

default_role = "py:obj"
add_module_names = False
autodoc_default_options = {"members": True, "exclude-members": "model_config, model_post_init, set_score_request"}
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
napoleon_use_ivar = True
napoleon_use_rtype = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100

html_theme = "pydata_sphinx_theme"
html_title = "dphpo-bench"
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "secondary_sidebar_items": ["page-toc"],
    "header_links_before_dropdown": 8,
    "navbar_end": ["theme-switcher"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_prev_next": True,
}
html_sidebars = {"leaderboard/README": []}

BRANCHES = ("README", "docs/tutorial", "docs/howto", "docs/concepts", "docs/reference")
"""Pages whose lists of links are the navigation."""


@functools.cache
def public_names(namespace: str = "*") -> dict[str, str]:
    """Return the module that defines each public name, of the package and of its namespaces; or of one of them."""
    modules = {}
    for path in (ROOT / "dphpo_bench").rglob(f"{namespace}.pyi"):
        package = ".".join(path.parent.relative_to(ROOT).parts)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom) and node.module:
                module = resolve_name(f"{'.' * node.level}{node.module}", package)
                modules |= dict.fromkeys((alias.name for alias in node.names), module)
    return modules


def branches(text: str) -> str:
    """Return a page's text with its list of links as a part of the navigation."""
    found = re.findall(r"^- \[(.+?)\]\(([\w./-]+)\.md\)", text, flags=re.MULTILINE)
    return "\n".join([text, "```{toctree}", ":hidden:", "", *(f"{title} <{page}>" for title, page in found), "```", ""])


def described(section: "re.Match[str]") -> str:
    """Return a section of docs/api.md with the docstrings of its names, which another namespace may have as well."""
    lines = functools.partial(docstrings, public_names() | public_names(section[1]))
    return re.sub(r"^- (`\w+`(, |,\n  |$))+", lines, section[0], flags=re.MULTILINE)


def docstrings(modules: dict[str, str], line: "re.Match[str]") -> str:
    """Return the docstrings of the names in a line of docs/api.md."""
    parts = ["```{eval-rst}"]
    for name in re.findall(r"`(\w+)`", line[0]):
        found = getattr(importlib.import_module(modules[name]), name)
        kind = "class" if inspect.isclass(found) else "function" if inspect.isfunction(found) else "data"
        parts.append(f".. auto{kind}:: {modules[name]}.{name}")
    return "\n".join([*parts, "```"])


def commands() -> str:
    """Return the help of every command, below the headings of a page."""
    from dphpo_bench.cli.commands import app

    command: Any = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="dphpo-bench")
    text = rich_to_html(text[text.index("\n## ") :].replace("**Usage**:\n", ""))
    return re.sub("`[^`]+`", lambda code: html.unescape(code[0]), text)


def expand(_app: Any, page: str, source: list[str]) -> None:
    """Add to a page what only the site has; the board's page is a page of it, and research is named, not linked."""
    source[0] = re.sub(r"\[([^]]+)\]\((?:\.\./)?(research/\w+\.md)[^)]*\)", r"\1 (`\2`)", source[0])
    source[0] = re.sub(r"\[([^]]+)\]\(((?:leaderboard/)?index\.html)\)", r'<a href="\2">\1</a>', source[0])
    if page in BRANCHES:
        source[0] = branches(source[0])
    elif page == "docs/api":
        source[0] = re.sub(r"^## `(?:bench\.)?(\w+)`\n(?:(?!## ).*\n?)*", described, source[0], flags=re.MULTILINE)
    elif page == "docs/command_line":
        source[0] += commands()


def linked(app: Any, _env: Any, node: Any, text: Any) -> Any:
    """Link a public name, wherever a text uses its short name."""
    module = public_names().get(node.get("reftarget", "").split(".")[-1])
    if node.get("refdomain") != "py" or module is None:
        return None
    name = f"{module}.{node['reftarget'].split('.')[-1]}"
    return app.env.domains.python_domain.resolve_xref(app.env, node["refdoc"], app.builder, "obj", name, node, text)


def front(app: Any, error: Exception | None) -> None:
    """Make the README the first page, and put the board beside its tables, with all that it links to."""
    if error or app.builder.format != "html":
        return
    site = Path(app.outdir)
    shutil.copy(site / "README.html", site / "index.html")
    for folder in ("leaderboard", "methods", "tasks"):
        shutil.copytree(ROOT / folder, site / folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.md", "__*"))
    board = site / "leaderboard/index.html"
    text = re.sub(r'(href="[./\w]+)\.md\b', r"\1.html", board.read_text(encoding="utf-8"))
    board.write_text(text, encoding="utf-8")


def setup(app: Any) -> None:
    """Connect these functions to Sphinx's events."""
    app.connect("source-read", expand)
    app.connect("missing-reference", linked)
    app.connect("build-finished", front)
