"""The page of puzzles: those of notebook 00, checked in the page by the same Python, which Brython runs."""

import json
import re
from html import escape
from pathlib import Path

import nbformat

from bppsa_nb.machine import files
from bppsa_nb.puzzles.scans import PUZZLES

# What the check of a scan needs, what answers can import of Python's library and what that is made of, and stand-ins
# for the little that the check takes from modules that need more.
_MODULES = ("schedule/colors", "schedule/svg", "puzzles/checker", "puzzles/workers", "puzzles/scans", "puzzles/drawing")
OFFERED = ("bisect", "collections", "copy", "functools", "heapq", "itertools", "math", "operator", "string")
_BEHIND = (
    *("_collections", "_collections_abc", "_functools", "_operator", "_py_abc", "_string", "_thread", "_weakref"),
    *("_weakrefset", "abc", "copyreg", "keyword", "reprlib", "sys", "types", "weakref"),
)
_LIBRARY = {
    "html": """def escape(text):
    for sign, name in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("'", "&#x27;")):
        text = text.replace(sign, name)
    return text
""",
    "pathlib": """class Path:  # of scan.css and scan.js, which the page has already
    def __init__(self, path):
        pass

    def with_name(self, name):
        return self

    def read_text(self, encoding):
        return ""
""",
}
NOTEBOOK = "00_solve_scan_puzzles.ipynb"
_PACKAGES = ("bppsa_nb", "bppsa_nb.schedule", "bppsa_nb.puzzles")


def text():
    """Compose the page, as MyST Markdown: notebook 00 without its cells, which are in the page."""
    parts = [
        "# Scan puzzles",
        "Nine puzzles, from running totals to the scan that this book is about, and on to chunks and ranks. Write "
        "the function that is asked for, and press **Check** (or Shift + Enter): your Python runs here, in this page, "
        "and you are told at once whether it is right. A scan that works in place is drawn, a row per level, the first "
        "wrong square in red, and beside it how it should have been. Nothing is sent anywhere, and what you write "
        f"stays in this browser. It may import {', '.join(OFFERED[:-1])} and {OFFERED[-1]}. It "
        "leaves what it is given as it is, unless it works in place.",
        'Here, lists hold letters, and the one thing that can be done with two of them is to **join** them: `op("ab", '
        '"c")` is `"abc"`. A joined word spells how it was made.',
        '<p id="solved" role="status"></p>',
    ]
    cells = nbformat.read(files.root() / "notebooks" / NOTEBOOK, as_version=4).cells
    begun = False
    for cell in cells:
        if cell.cell_type == "markdown" and "## What you have solved" not in cell.source:
            _, begins, rest = cell.source.partition("## 1.")  # before it the notebook speaks of itself
            begun = begun or bool(begins)
            parts += [begins + rest if begins else cell.source] if begun else []
        elif asked := re.search(r'^check\("(\w+)"', cell.source, re.MULTILINE):
            parts.append(_editor(asked[1], PUZZLES[asked[1]]))
    parts += [
        "## And seven more",
        "They are about Jacobians and CUDA kernels, and need NumPy and Numba: [notebook 02b](notebooks/"
        "02b_solve_kernel_puzzles.ipynb).",
    ]
    return "\n\n".join(parts) + "\n"


def _editor(name, puzzle):
    rows = puzzle.stub.count("\n") + 4
    hints = "".join(
        f"<details><summary>{title}</summary><p>{escape(hint)}</p></details>"
        for title, hint in zip(("A hint", "A second hint", "Nearly all of it"), puzzle.hints, strict=True)
    )
    return (
        f'<div class="puzzle" data-name="{name}"><label for="{name}">Your <code>{name}</code>, in Python</label>'
        f'<textarea id="{name}" rows="{rows}" spellcheck="false" autocapitalize="off" autocomplete="off">'
        f'{escape(puzzle.stub)}</textarea><div class="buttons"><button type="button">Check</button>'
        f'<button type="button">Start again</button></div>{hints}<div class="verdict" aria-live="polite"></div></div>'
    )


def write_worker(path):
    """Write what checks answers: Brython and the checker as one text, which a page makes a worker of.

    A worker can be stopped; and made of a text, it runs in a page that was opened from a file, too.
    """
    import brython

    data = Path(brython.__file__).parent / "data"
    engine, library = ((data / name).read_text(encoding="utf-8") for name in ("brython.js", "brython_stdlib.js"))
    _, _, library = library.partition("var scripts = ")
    library, _ = json.JSONDecoder().raw_decode(library)
    package = files.root() / "bppsa_nb"
    modules = {
        f"bppsa_nb.{name.replace('/', '.')}": (package / f"{name}.py").read_text(encoding="utf-8") for name in _MODULES
    }
    found = {name: library[name] for name in (*OFFERED, *_BEHIND)}
    found |= {name: [".py", text, []] for name, text in (_LIBRARY | modules).items()}
    found |= {name: [".py", "", [], 1] for name in _PACKAGES}
    # Brython wants to know where it came from, and has no need to.
    begin = 'self.window ??= self; self.__BRYTHON__ = { brython_path: "http://localhost/" };'
    judge = (Path(__file__).parent / "judge.js").read_text(encoding="utf-8").replace("OFFERED", ", ".join(OFFERED))
    whole = f"{begin}\n{engine}\n__BRYTHON__.loadBrythonPackage({json.dumps(found)});\n{judge}"
    path.write_text(f"self.puzzleWorker = {json.dumps(whole)};\n", encoding="utf-8")
