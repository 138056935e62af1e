"""The lesson in a real JupyterLab, opened in Chromium: run, led to by an address, answered wrong."""

import shutil

import on_browser
import pytest
from texts import beside

from bppsa_nb.machine import files
from bppsa_nb.papers import explain

pytestmark = [pytest.mark.full, pytest.mark.skipif(on_browser.CHROMIUM is None, reason="needs Chromium")]
NOTEBOOKS = ("00_solve_scan_puzzles", "01_see_backprop_as_a_scan", "02_run_the_levels_on_cuda")
NOTEBOOKS = (*NOTEBOOKS, "02b_solve_kernel_puzzles", "02c_climb_a_ladder_of_kernels")
WIDGET = "[...jupyterapp.shell.widgets('main')][0]"
ERRORS, WRONG = (WIDGET + script for script in beside(__file__).values())


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The address of a JupyterLab on a copy of this checkout, and a page to open it in."""
    folder = tmp_path_factory.mktemp("lab")
    root = folder / "checkout"
    for name in ("notebooks", "figures", "data", "bppsa_nb"):
        shutil.copytree(files.root() / name, root / name, ignore=shutil.ignore_patterns("measured", "__pycache__"))
    for name in ("pyproject.toml", "CONTRIBUTING.md"):
        shutil.copy(files.root() / name, root)
    with on_browser.jupyterlab(folder, root) as address, on_browser.browser(folder) as page:
        yield address, page


def run_all(lab, name):
    """Open a notebook, run all of it, and see that nothing was wrong."""
    address, page = lab
    page.call("Page.navigate", url=f"{address}/lab/tree/notebooks/{name}.ipynb?reset")
    page.wait(f"window.jupyterapp && {WIDGET} && {WIDGET}.content && {WIDGET}.content.widgets.length > 5")
    page.wait(f"{WIDGET}.sessionContext.session?.kernel?.status == 'idle'")
    page.run(f"jupyterapp.shell.activateById({WIDGET}.id)")
    page.run("jupyterapp.commands.execute('notebook:run-all-cells')")
    page.wait(f"{WIDGET}.content.widgets.every((cell) => cell.model.type != 'code' || cell.model.executionCount)", 120)
    page.wait(f"{WIDGET}.sessionContext.session.kernel.status == 'idle'")
    assert page.run(ERRORS) == [] and page.errors == []
    return page


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_run_all_and_each_figure_is_there_once(lab, name):
    page = run_all(lab, name)
    seen = page.run("""[...document.querySelectorAll('.jp-Notebook img')].filter((img) => img.offsetParent)
        .map((img) => [img.src.slice(0, 40), img.alt])""")
    assert all(source.startswith("data:image/png") and len(alt) > 40 for source, alt in seen)
    embedded = page.run("document.querySelectorAll('.jp-MarkdownOutput img').length")
    written = (files.root() / f"notebooks/{name}.ipynb").read_text(encoding="utf-8")
    assert len(seen) == embedded == written.count("](../figures/")


def test_an_address_goes_to_the_cell_that_draws_a_figure(lab):
    """Where the notebook is open: JupyterLab 4.6 drops what follows # from an address that opens it first."""
    address, page = lab
    cell = next(cell for cell in explain.cells()["figure_08"] if cell.draws)
    opened = f"{address}/lab/tree/notebooks/{cell.notebook}.ipynb"
    page.call("Page.navigate", url=f"{opened}?reset")
    page.wait(f"window.jupyterapp && {WIDGET} && {WIDGET}.content && {WIDGET}.content.widgets.length > 5")
    page.wait("!document.querySelector('#jupyterlab-splash')")
    there = f"{WIDGET}.content.widgets[{cell.number - 1}]"
    found = page.run(f"[{there}.model.id, {there}.model.sharedModel.getSource().includes('\"figure_08\"')]")
    assert found == [cell.identifier, True]
    top = f"{there}.node.getBoundingClientRect().top"
    assert page.run(top) > 1500
    page.call("Page.navigate", url=f"{opened}#cell-id={cell.identifier}")
    page.wait(f"{top} > 0 && {top} < innerHeight", 20)


def test_a_wrong_answer_shows_the_red_square(lab):
    page = run_all(lab, "00_solve_scan_puzzles")
    page.run(WRONG)
    page.run("jupyterapp.commands.execute('notebook:run-all-cells')")
    page.wait(
        "[...document.querySelectorAll('p')].some((p) => p.textContent.includes(\"place 3: 'cab' should be 'abc'\"))"
    )
    red = """[...document.querySelectorAll('.scan g.wrong')].filter((g) => g.textContent == 'cab')
        .map((g) => getComputedStyle(g.querySelector('rect')).stroke)"""
    assert page.wait(red) == ["rgb(192, 0, 0)"]
