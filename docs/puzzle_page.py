"""The page of puzzles: those of notebook 00, checked in the page by the same Python, which Brython runs.

`docs/book.py` makes it a page of the book. This program, `make puzzles`, makes it one file that stands alone, and opens
it. That needs Python's library, Brython and mistune, and nothing else that the book or the package needs.
"""

import ast
import json
import re
import sys
import webbrowser
from html import escape
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from bppsa_nb.machine import files  # noqa: E402
from bppsa_nb.puzzles import NAMES, contents  # noqa: E402
from bppsa_nb.puzzles.scans import PUZZLES  # noqa: E402

PAGE = HERE.parent / "build/puzzles.html"

# What answers can import of Python's library, and what that is made of.
OFFERED = (
    *("abc", "array", "bisect", "cmath", "collections", "contextlib", "copy", "dataclasses", "datetime", "decimal"),
    *("enum", "fractions", "functools", "heapq", "inspect", "io", "itertools", "json", "logging", "math", "numbers"),
    *("operator", "os", "pprint", "queue", "random", "re", "statistics", "string", "struct", "sys", "textwrap"),
    *("threading", "time", "timeit", "traceback", "types", "typing", "warnings", "weakref"),
)
_BEHIND = (
    *("__future__", "_ast", "_codecs", "_collections", "_collections_abc", "_colorize", "_contextvars", "_functools"),
    *("_frozen_importlib", "_imp", "_io", "_io_classes", "_json", "_locale", "_operator", "_py_abc", "_py_warnings"),
    *("_pydatetime", "_pydecimal", "_queue", "_random", "_string", "_struct", "_thread", "_tokenize", "_typing"),
    *("_weakref", "_weakrefset", "annotationlib", "ast", "atexit", "codecs", "codeop", "contextvars", "copyreg", "dis"),
    *("encodings", "encodings.aliases", "errno", "gc", "genericpath", "importlib", "importlib._abc"),
    *("importlib._bootstrap", "importlib._bootstrap_external", "importlib.machinery", "importlib.util"),
    *("json.encoder", "keyword", "linecache", "locale", "marshal", "posix", "posixpath", "python_re", "reprlib"),
    *("stat", "token", "tokenize"),
)
# What is wrong in Brython's library, written anew; of sources, those of functions that stand in no other one.
_MENDED = {
    "functools": """
def reduce(function, iterable, *initial):
    items = [*initial, *iterable]  # of a range that is empty, iter() never ends
    if not items:
        raise TypeError("reduce() of empty iterable with no initial value")
    total = items[0]
    for item in items[1:]:
        total = function(total, item)
    return total
""",
    "inspect": """
def getsource(function):
    code = function.__code__
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]
    ends = (n for n, line in enumerate(lines) if n and line.strip() and line[0] not in " )")
    return "".join(lines[: next(ends, None)])
""",
    "itertools": """
def accumulate(iterable, func=operator.add, *, initial=None):
    items = iter(iterable) if initial is None else chain([initial], iterable)
    for total in islice(items, 1):
        yield total
        for item in items:
            total = func(total, item)
            yield total

def pairwise(iterable):
    first, second = tee(iterable)
    next(second, None)
    return zip(first, second)
""",
    "time": """
def sleep(seconds):
    end = perf_counter() + seconds
    while perf_counter() < end:
        pass
""",
}
# Stand-ins for the little that the check takes from modules that need more.
_LIBRARY = {
    "html": """def escape(text):
    for sign, name in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("'", "&#x27;")):
        text = text.replace(sign, name)
    return text
""",
    "tomllib": f"""def loads(text):  # of puzzles.toml
    return {dict(scans=contents.SCANS, arrays=contents.ARRAYS, kernels=contents.KERNELS)!r}
""",
    "pathlib": """class Path:  # of scan.css and scan.js, which the page has already, and of puzzles.toml
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
_UNASKED = "check = hint = show = solution = progress = lambda *_, **__: None\n"  # a cell that was copied has them


def text():
    """Compose the page, as MyST Markdown: notebook 00 without its cells, which are in the page."""
    begun, asked, parts = False, [], []
    for cell in json.loads((files.root() / "notebooks" / NOTEBOOK).read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown" and "## What you have solved" not in source:
            _, begins, rest = source.partition("## 1.")  # before it the notebook speaks of itself
            begun = begun or bool(begins)
            parts += [begins + rest if begins else source] if begun else []
        elif found := re.search(r'^check\("(\w+)"', source, re.MULTILINE):
            asked.append(found[1])
            before, _, question = parts.pop().rpartition("## ")
            parts += [before, f'<span id="puzzle-{asked[-1]}"></span>', f"## {question}", _editor(PUZZLES[asked[-1]])]
    parts += [
        f"## And {len(NAMES) - len(asked)} more",
        "They are about Jacobians and CUDA kernels, and need NumPy and Numba: [notebook 02b](notebooks/"
        "02b_solve_kernel_puzzles.ipynb).",
    ]
    return "\n\n".join([_BEGIN.format(len(asked), ", ".join(OFFERED)), *parts]) + "\n"


_BEGIN = """# Scan puzzles

Here are {} puzzles, from running totals to the scan that back-propagates, and on from there. Write the function that is
asked for, and press **Check** (or Shift + Enter): your Python runs here, in this page, and you are told at once
whether it is right. A scan that works in place is drawn, a row per level, what is wrong in red, and with it the right
scan. A right answer is told what it costs, and what the best answer that we know costs.

Nothing is sent anywhere, and what you write stays in this browser; *Save my answers* makes one file of it. Do not
change what you are given, unless the puzzle says *in place*.

<details><summary>What an answer may import</summary><p>Of Python's library, {}. Not NumPy: the notebook has that, and
the rest of the library.</p></details>

<p id="keys">Keys in a box: Enter keeps the indentation, Backspace takes four spaces of it back, Tab goes on to the
buttons, and Shift + Enter checks.</p>

<div class="answers"><p id="solved"></p><div class="buttons"><button type="button" id="save">Save my
answers</button><button type="button" id="load">Load answers</button><input type="file" accept=".json" hidden></div>
<p id="kept" role="status"></p></div>

Here, lists hold letters, and the one thing that can be done with two of them is to **join** them: `op("ab", "c")` is
`"abc"`. A joined word spells how it was made.

<p id="told" class="unseen" role="status"></p>"""


def _editor(puzzle):
    name = puzzle.name
    of = f'<span class="unseen"> {name}</span>'  # tells one button from the other, where they are listed
    hints = "".join(
        f'<details><summary>{title}<span class="unseen"> for {name}</span></summary><p>{escape(hint)}</p></details>'
        for title, hint in zip(("A hint", "A second hint", "Nearly all of it"), puzzle.hints, strict=True)
    )
    return (
        f'<div class="puzzle" data-name="{name}"><label for="{name}">Your <code>{name}</code>, in Python<b></b></label>'
        f'<textarea id="{name}" rows="{puzzle.stub.count(chr(10)) + 3}" aria-describedby="keys" spellcheck="false" '
        f'autocapitalize="off" autocomplete="off" autocorrect="off">{escape(puzzle.stub)}</textarea>'
        f'<div class="buttons"><button type="button">Check{of}</button><button type="button">Start again{of}</button>'
        f'</div><div class="verdict"></div>{hints}</div>'
    )


def worker():
    """Return what checks answers, a script: Brython and the checker as one text, which a page makes a worker of.

    A worker can be stopped; and made of a text, it runs in a page that was opened from a file, too.
    """
    import brython

    data = Path(brython.__file__).parent / "data"
    engine, library = ((data / name).read_text(encoding="utf-8") for name in ("brython.js", "brython_stdlib.js"))
    _, _, library = library.partition("var scripts = ")
    library, _ = json.JSONDecoder().raw_decode(library)
    modules = {"judge": (HERE / "judge.py").read_text(encoding="utf-8")} | _modules("puzzles/scans", "puzzles/drawing")
    found = {name: library[name] for name in (*OFFERED, *_BEHIND)}
    for name, text in _MENDED.items():
        found[name][1] += text
    found |= {name: [".py", text, []] for name, text in (_LIBRARY | modules).items()}
    found |= {name: [".py", _UNASKED if name == "bppsa_nb.puzzles" else "", [], 1] for name in _PACKAGES}
    # Brython is written for strict mode, and wants to know where it came from, which it has no need to.
    begin = '"use strict"; self.window ??= self; self.__BRYTHON__ = { brython_path: "http://localhost/" };'
    judge = (HERE / "judge.js").read_text(encoding="utf-8")
    whole = f"{begin}\n{engine}\n__BRYTHON__.loadBrythonPackage({json.dumps(found)});\n{judge}"
    return f"self.puzzleWorker = {json.dumps(whole)};\n"


def _modules(*paths):
    """Return the package's modules at some paths, and what these import of it, as texts by name."""
    found, package = {}, files.root() / "bppsa_nb"
    while paths:
        path, *paths = paths
        if (name := f"bppsa_nb.{path.replace('/', '.')}") in found or not (package / f"{path}.py").is_file():
            continue
        found[name] = (package / f"{path}.py").read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(found[name])):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("bppsa_nb"):
                room = node.module.removeprefix("bppsa_nb").removeprefix(".").replace(".", "/")
                paths += [room, *(f"{room}/{each.name}".removeprefix("/") for each in node.names)]
    return found


def alone():
    """Return the page as one HTML file that needs no other."""
    import mistune

    class Renderer(mistune.HTMLRenderer):
        def link(self, text, url, title=None):  # the file may be anywhere
            return f"{text} (<code>{url}</code>)"

    body = mistune.create_markdown(renderer=Renderer(escape=False))(text())
    paths = [HERE.parent / "bppsa_nb/schedule/scan.css", HERE / "_static/book.css", HERE / "puzzle_page.css"]
    styles = "".join(path.read_text(encoding="utf-8") for path in paths)
    judged = worker().replace("<", "\\u003c")  # Brython has </script> in its texts
    script = (HERE / "_static/puzzles.js").read_text(encoding="utf-8")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Scan puzzles</title>
<style>{styles}</style>
</head>
<body data-theme="auto">
<article>
{body}</article>
<script>{judged}</script>
<script>{script}</script>
</body>
</html>
"""


def main():
    """Write the page that stands alone, say where it is, and open it."""
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(alone(), encoding="utf-8")
    print(f"The puzzles are in {PAGE}", flush=True)
    if not webbrowser.open(PAGE.as_uri()):
        print("No browser was found here. That one file is all that a browser needs, on any machine.")


if __name__ == "__main__":
    main()
