"""The notebooks as files; `make figures` runs them."""

import importlib
import inspect
import re

import pytest

from bppsa_nb import puzzles
from bppsa_nb.machine import files
from bppsa_nb.papers import experiments, notebooks
from bppsa_nb.puzzles import contents, warps

FOLDER = files.root() / "notebooks"
NAMES = notebooks.names()
MARKDOWN_IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]*)[^)]*\)")


def read(name):
    import nbformat

    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def test_notebooks_are_numbered_and_named_by_what_one_does():
    assert all(re.fullmatch(r"\d\d[bc]?(_[a-z0-9]+){2,}", name) for name in NAMES), NAMES
    assert sorted({int(name[:2]) for name in NAMES}) == list(range(len(NAMES) - 2))  # and 02b, 02c


@pytest.mark.parametrize("name", NAMES)
def test_what_cells_take_of_the_papers_modules_is_there(name):
    source = "\n".join(cell.source for cell in read(name).cells if cell.cell_type == "code")
    for package, imported in re.findall(r"^from (bppsa_nb\.papers[\w.]*) import (.*)$", source, re.MULTILINE):
        for module, called in [each.split(" as ") if " as " in each else (each, each) for each in imported.split(", ")]:
            named = getattr(importlib.import_module(package), module, None)
            there = named or importlib.import_module(f"{package}.{module}")
            assert set(re.findall(rf"(?<![\w/]){called}\.(\w+)", source)) <= {*dir(there)}, module


@pytest.mark.parametrize("name", NAMES)
def test_cells_that_time_something_say_so(name):
    for cell in read(name).cells:
        source = re.sub("#.*", "", cell.source)
        made = re.findall(r'experiments\.(?:make|measured)\(\s*"(\w+)"', source)
        timed = re.search(r"perf_counter|timeit|take_turns|execution\.profile", source)
        timed = timed or any(experiments.load(each).FIGURE.origin == "timed" for each in made)
        assert ("timed" in cell.metadata.get("tags", [])) == bool(timed and cell.cell_type == "code"), source


def test_every_puzzle_is_asked_with_its_stub_in_order():
    asked = []
    for name in ("00_solve_scan_puzzles", "02b_solve_kernel_puzzles"):
        for cell in read(name).cells:
            if found := re.search(r'^check\("(\w+)", \1\)$', cell.source, re.MULTILINE):
                asked.append(found[1])
                assert cell.source == f"{puzzles.puzzle(found[1]).stub}\n\n\n{found[0]}"
            if cell.cell_type == "markdown" and (titles := re.findall(r"^## (\d+\. .*)$", cell.source, re.MULTILINE)):
                assert titles == [contents.title(puzzles.NAMES[len(asked)])]
    assert asked == [*puzzles.NAMES]


def test_the_suspect_is_the_one_that_is_judged():
    source = inspect.getsource(warps.suspect.py_func)
    head, _, body = source.partition('    """')
    (found,) = [cell.source for cell in read("02b_solve_kernel_puzzles").cells if "def suspect" in cell.source]
    assert found + "\n" == head + body.partition('"""\n')[2]


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith("_puzzles")])
def test_every_exercise_has_a_solution_that_is_folded(name):
    *_, exercises, solutions = read(name).cells
    assert solutions.metadata.tags[:2] == ["solution", "hide-cell"] and solutions.source.startswith("# Solutions\n")
    assert solutions.metadata.jupyter == {"source_hidden": True, "outputs_hidden": True}
    _, _, asked = exercises.source.partition("## Exercise\n")
    numbers = re.findall(r"^(\d)\. ", asked, re.MULTILINE)
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)] and len(numbers) >= 2
    assert all(re.search(rf"(# |\"){number}\.", solutions.source) for number in numbers)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_short_has_its_parameters_and_keeps_no_outputs(name):
    import nbformat

    notebook, values = read(name), {}
    nbformat.validate(notebook)
    cells, code = notebook.cells, [cell for cell in notebook.cells if cell.cell_type == "code"]
    most = 31 if name.endswith("_puzzles") else 25  # twelve questions, twelve answers
    assert len([cell for cell in cells if "solution" not in cell.metadata.get("tags", [])]) <= most
    assert cells[0].cell_type == "markdown" and cells[0].source.startswith("# ")
    (parameters,) = [cell for cell in cells if "parameters" in cell.metadata.get("tags", [])]
    exec(parameters.source, values)
    assert values["scale"] == "quick" and values["seed"] == 0
    for cell in code:
        assert cell.outputs == [] and cell.execution_count is None, f"keeps its outputs: {cell.source}"
        assert max(map(len, cell.source.splitlines())) <= 88, f"does not fit into a page: {cell.source}"


@pytest.mark.parametrize("name", NAMES)
def test_images_are_there_with_alt_text(name):
    text = "\n\n".join(cell.source for cell in read(name).cells if cell.cell_type == "markdown")
    for alt, target in MARKDOWN_IMAGE.findall(text):
        assert len(alt.split()) >= 5, f"say more about {target} than {alt!r}"
        assert (FOLDER / target).is_file(), f"{target} is missing"
    assert "<img" not in text
