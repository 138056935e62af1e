"""Chapters: the notebooks as they ran, without what needs a kernel, each figure once."""

import re

import nbformat
import puzzle_page

_SHOWN = re.compile(r"(\w+)\.png: ")  # bppsa_nb.papers.figures.Shown: the text embeds the same file

_BAR = re.compile(r"\d+%\|")  # tqdm's
_WIDGET = "*Controls to try are here in JupyterLab: `make lab`.*"


def written(path, repository, drawn):
    """Return a chapter's title, and the notebook that becomes it, as JSON; `drawn` are figures' cells, by figure."""
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in map(_kept, cell.outputs) if output]
            if "parameters" in cell.metadata.get("tags", []):
                cell.metadata.tags.append("hide-input")
    figures = [(each.identifier, name) for name, cells in drawn.items() for each in cells if each.notebook == path.stem]
    notebook.cells = [each for cell in notebook.cells for each in _led_back(cell, figures)]
    first = notebook.cells[0]
    title = first.source.splitlines()[0].removeprefix("# ")
    first.source += f"\n\n{_live(path.name, repository)}"
    return title, nbformat.writes(notebook)


def _led_back(cell, figures):
    """Yield a cell; before one that draws figures an anchor for each, below each that it shows a link to its page."""
    names = [name for identifier, name in figures if identifier == cell.id]
    if cell.cell_type == "code" and names:
        yield nbformat.v4.new_markdown_cell("".join(f"[]{{#draws-{name.replace('_', '-')}}}" for name in names))
    for name in names if cell.cell_type == "markdown" else ():
        link = rf"\1\n\n[Data, code and claims of this figure](../figure/{name}.md)"
        cell.source = re.sub(rf"(!\[[^\]]*\]\(\.\./figures/{name}\.\w+\))", link, cell.source, count=1)
    yield cell


def _kept(output):
    """Return an output as a page shows it, or None: no bars of progress, no widgets, no figure that the text embeds."""
    data = output.get("data", {})
    widget, text = data.pop("application/vnd.jupyter.widget-view+json", None), data.get("text/plain", "")
    if output.output_type == "stream":
        return None if output.name == "stderr" else output
    if _SHOWN.match(text) or data.get("text/html") == "":
        return None
    if widget and "text/html" not in data:
        return None if _BAR.search(text) else nbformat.v4.new_output("display_data", {"text/markdown": _WIDGET})
    return output


def _live(name, repository):
    links = [f"`make lab` opens this as `notebooks/{name}`"]
    if repository:
        owned = repository.removeprefix("https://github.com/")
        links += [
            f"[Binder](https://mybinder.org/v2/gh/{owned}/HEAD?labpath=notebooks/{name})",
            f"[Colab](https://colab.research.google.com/github/{owned}/blob/HEAD/notebooks/{name})",
        ]
    if name == puzzle_page.NOTEBOOK:
        links.append("answer [in the page](../puzzles.md)")
    return f"**Run it.** {', or '.join(links)}."
