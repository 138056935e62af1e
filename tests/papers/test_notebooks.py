"""The notebooks as files; `make figures` runs them."""

import re

import nbformat
import pytest

from bppsa_nb import puzzles
from bppsa_nb.machine import files
from bppsa_nb.papers import notebooks

FOLDER = files.root() / "notebooks"
NAMES = notebooks.names()
MARKDOWN_IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]*)[^)]*\)")
HTML_IMAGE = re.compile(r"<img[^>]*>")


def read(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def images(notebook):
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            yield from MARKDOWN_IMAGE.findall(cell.source)


def test_notebooks_are_numbered_and_named_by_what_one_does():
    assert all(re.fullmatch(r"\d\db?(_[a-z0-9]+){2,}", name) for name in NAMES), NAMES
    assert sorted({int(name[:2]) for name in NAMES}) == list(range(len(NAMES) - 1))  # and one is 02b


def test_every_puzzle_is_asked_with_its_stub_in_order():
    asked = []
    for name in ("00_solve_scan_puzzles", "02b_solve_kernel_puzzles"):
        for cell in read(name).cells:
            if found := re.search(r'^check\("(\w+)", \1\)$', cell.source, re.MULTILINE):
                asked.append(found[1])
                assert cell.source == f"{puzzles.puzzle(found[1]).stub}\n\n\n{found[0]}"
    assert sorted(asked) == sorted(puzzles.NAMES) and asked[:9] == [*puzzles.NAMES[:9]]


@pytest.mark.parametrize("name", NAMES)
def test_notebook_is_valid_and_short(name):
    notebook = read(name)
    nbformat.validate(notebook)
    assert len([cell for cell in notebook.cells if "solution" not in cell.metadata.get("tags", [])]) <= 25
    assert notebook.cells[0].cell_type == "markdown" and notebook.cells[0].source.startswith("# ")


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith("_puzzles")])
def test_every_exercise_has_a_solution_that_is_folded(name):
    *_, exercises, solutions = read(name).cells
    assert solutions.metadata.tags == ["solution", "hide-cell"] and solutions.source.startswith("# Solutions\n")
    assert solutions.metadata.jupyter == {"source_hidden": True, "outputs_hidden": True}
    _, _, asked = exercises.source.partition("## Exercise\n")
    numbers = re.findall(r"^(\d)\. ", asked, re.MULTILINE)
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)] and len(numbers) >= 2
    assert all(re.search(rf"(# |\"){number}\.", solutions.source) for number in numbers)


@pytest.mark.parametrize("name", NAMES)
def test_code_fits_into_a_page(name):
    code = [cell.source for cell in read(name).cells if cell.cell_type == "code"]
    assert [line for source in code for line in source.splitlines() if len(line) > 88] == []


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_stripped(name):
    for number, cell in enumerate(read(name).cells, 1):
        if cell.cell_type == "code":
            assert cell.outputs == [] and cell.execution_count is None, f"cell {number} keeps its outputs"


@pytest.mark.parametrize("name", NAMES)
def test_one_cell_is_tagged_parameters_and_sets_scale_and_seed(name):
    (cell,) = [cell for cell in read(name).cells if "parameters" in cell.metadata.get("tags", [])]
    values = {}
    exec(cell.source, values)
    assert values["scale"] == "quick" and values["seed"] == 0


@pytest.mark.parametrize("name", NAMES)
def test_images_are_there_with_alt_text(name):
    notebook = read(name)
    for alt, target in images(notebook):
        assert len(alt.split()) >= 5, f"say more about {target} than {alt!r}"
        assert (FOLDER / target).is_file(), f"{target} is missing"
    assert not any(HTML_IMAGE.search(cell.source) for cell in notebook.cells if cell.cell_type == "markdown")
