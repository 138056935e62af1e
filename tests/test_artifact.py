"""The pages for reviewers, docs/artifact.md and docs/checklists.md: what they name exists, what they promise holds."""

import ast
import importlib
import inspect
import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml

from bppsa_nb.papers import cli, experiments, notebooks

REPO = Path(__file__).parents[1]
PAGES = {name: (REPO / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("artifact", "checklists")}
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CITED = yaml.safe_load((REPO / "CITATION.cff").read_text(encoding="utf-8"))
MAKEFILE = (REPO / "Makefile").read_text(encoding="utf-8")
MET = {"yes", "in part", "not yet", "for others", "not applicable"}
TEST = re.compile(r"(tests/[\w/]+\.py)::(test_\w+)")
WRITTEN = ("build/", "data/measured/", "data/downloads/", ".venv/")  # by commands, and not here before
on_pages = pytest.mark.parametrize("page", PAGES)


def spans(text):
    """List what stands in code spans, and the commands in blocks, without their comments."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    inline = re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return lines + [" ".join(each.split()) for each in inline]


def requirements(text):
    """List the lines of tables with a column "met": requirement, whether it is met, and what shows it."""
    tables = re.findall(r"^\| \w+ \| met \| .*\n\|[- |]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for table in tables for line in table.splitlines()]


def marks(file, name):
    """Return which of its marks keep a test out of `make test-all`; a KeyError if there is no such test."""
    tree = ast.parse((REPO / file).read_text(encoding="utf-8"))
    found = {node.name: node.decorator_list for node in tree.body if isinstance(node, ast.FunctionDef)}[name]
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            found = [*found, *getattr(node.value, "elts", [node.value])]
    marked = {ast.unparse(getattr(each, "func", each)).removeprefix("pytest.mark.") for each in found}
    return marked & {"full", "peers", "skip"}


@on_pages
def test_tests_exist_and_are_run_as_is_said(page):
    assert '"not outer and not full and not peers"' in MAKEFILE
    count = 0
    for part in re.split(r"[;\n]", PAGES[page]):
        for file, name in TEST.findall(part):
            assert marks(file, name) == {"full", "peers"} & {*spans(part)}, name
            count += 1
    assert count > 10


@on_pages
def test_commands_exist(page):
    for command in spans(PAGES[page]):
        program, _, rest = command.partition(" ")
        if program == "make" and rest:
            assert re.search(rf"^{rest.split()[0]}:", MAKEFILE, re.MULTILINE), command
        elif program == "python" and rest:
            file, *options = [word for word in rest.split() if word.startswith("--") or word.endswith(".py")]
            code = (REPO / file).read_text(encoding="utf-8")
            assert all(f'"{option}"' in code for option in options), command
        elif program == "bppsa-nb" and rest:
            understood(command, shlex.split(rest))


def understood(command, arguments):
    """Check that the command line takes a command, and that the figures and notebooks that it names exist."""
    try:
        parsed = vars(cli._parser().parse_args(arguments))
    except SystemExit as stop:
        assert stop.code == 0, command  # --help
        return
    known = notebooks.names() if arguments[0] == "notebooks" else experiments.names()
    assert {*(parsed.get("only") or parsed.get("check") or [])} <= {*known}, command
    if parsed.get("device"):
        with experiments.references():
            for name in parsed["only"]:
                assert (parsed["device"], parsed["scale"]) in experiments.recordings(name), command


@on_pages
def test_files_exist(page):
    pattern = r"[\w.-]+(/[\w.-]*)+|\w[\w-]*\.(md|toml|txt|yml|cff)"
    files = [each for each in spans(PAGES[page]) if re.fullmatch(pattern, each)]
    links = [(REPO / "docs" / each).resolve() for each in re.findall(r"\]\((?!http)([^)#]+)", PAGES[page])]
    paths = [REPO / each for each in files if not each.startswith(WRITTEN) and each != "paper.md"] + links
    assert len(paths) > 10 and [str(path) for path in paths if not path.exists()] == []


@on_pages
def test_each_requirement_is_met_or_not_as_is_shown(page):
    lines = requirements(PAGES[page])
    assert len(lines) > 30
    for requirement, met, shown in lines:
        assert met in MET, requirement
        evidence = [re.match(r"tests/|make |bppsa-nb |python |git ", s) or (REPO / s).exists() for s in spans(shown)]
        assert any(evidence) or page == "checklists" and met in ("not yet", "not applicable"), requirement


def test_what_is_missing():
    """An address, a DOI, a paper: whoever adds one changes the pages, and this."""
    assert "urls" not in PROJECT and not {"doi", "identifiers", "repository", "repository-code", "url"} & {*CITED}
    assert not (REPO / "paper.md").exists() and [*CITED["authors"][0]] == ["name"]
    this = "::test_what_is_missing"
    said = [met for text in PAGES.values() for _, met, shown in requirements(text) if this in shown]
    assert said == ["not yet"] * 5


def test_the_license_is_one_and_the_same():
    text = (REPO / "LICENSE").read_text(encoding="utf-8")
    assert text.startswith("MIT License\n") and "without restriction" in text
    assert PROJECT["license"] == CITED["license"] == "MIT" and PROJECT["license-files"] == ["LICENSE"]


def test_the_inventory_is_complete(tracked):
    """Each folder and file at the top has its line."""
    table = PAGES["artifact"].split("\n### How to access\n")[1].split("\n### ")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    listed = {name.rstrip("/") for cell in cells for name in spans(cell)}
    assert listed == {name.split("/")[0] for name in tracked}


def test_figures_and_tables_of_the_paper_are_there():
    """All of BPPSA's but Table 2, which lists the authors' machines."""
    titles = [experiments.title(name) for name in experiments.names() if ".bppsa." in experiments.load(name).__name__]
    titles = "\n".join(titles)
    assert {*map(int, re.findall(r"^Figure (\d+)\b", titles, re.MULTILINE))} == {*range(1, 14)}
    tables = " ".join(re.findall(r"\bTables? (\d+(?: and \d+)?)\b", titles))
    assert {*map(int, re.findall(r"\d+", tables))} == {1, 3, 4, 5, 6}


@pytest.mark.parametrize("name", notebooks.names())
def test_notebooks_say_what_for(name):
    first = "".join(json.loads((REPO / f"notebooks/{name}.ipynb").read_text(encoding="utf-8"))["cells"][0]["source"])
    for what in ("What you'll do.", "What you'll learn.", "What you need.", "Figures.", "Run time."):
        assert re.search(rf"\*\*{what}\*\* [\w`]", first), what


def public_names():
    """Yield whatever docs/reference.md lists: module, name, object."""
    for part in (REPO / "docs/reference.md").read_text(encoding="utf-8").split("currentmodule:: ")[1:]:
        for name in re.findall(r"^   (\w+)$", part, re.MULTILINE):
            yield part.split()[0], name, getattr(importlib.import_module(part.split()[0]), name)


def test_public_names_say_what_they_take():
    """Each argument, or whose arguments they are; what nobody builds has attributes."""
    names = list(public_names())
    texts = {name: inspect.getdoc(what) for _, name, what in names}
    assert len(names) > 80 and all(texts.values())
    for module, name, what in names:
        if "\nAttributes\n" not in texts[name] or "\nParameters\n" in texts[name]:
            others = re.findall(r"`[\w.]*?(\w+)`", texts[name])
            text = "\n".join([inspect.getdoc(what), *(texts[other] for other in others if other in texts)])
            missing = [each for each in inspect.signature(what).parameters if not re.search(rf"\b{each}\b", text)]
            assert missing == [], f"{module}.{name}"
