"""Answers kept, exported and graded: which puzzles are solved, when, and by what; no network, nothing unpickled."""

import ast
import functools
import inspect
import json
import linecache
import textwrap
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

from bppsa_nb.machine import files
from bppsa_nb.puzzles.contents import NAMES

# What notebooks 00 and 02b import, and what answers often do.
GIVEN = """
import functools, itertools, math, operator
import numpy as np
from numba import float32, float64
from bppsa_nb.machine.cuda_compiler import cuda
from bppsa_nb.puzzles import IDENTITY
from bppsa_nb.puzzles.kernels import H, left_of, right_of
"""


def path():
    """Return where answers are kept."""
    return files.cache_folder() / "answers.json"


def kept():
    """Return what is kept by puzzle: when it was solved first, and the answer; a CorruptFileError if it is damaged."""
    where = path()
    if not where.exists():
        return {}
    try:
        return read(where)
    except ValueError as error:
        raise files.CorruptFileError(f"{error}; delete it to begin anew") from error


def keep(name, answer):
    """Keep a right answer; the time is that of the first one."""
    known, now = kept(), datetime.now(UTC).isoformat(timespec="seconds")
    known[name] = {"solved": known.get(name, {}).get("solved") or now, "answer": source(answer)}
    path().parent.mkdir(parents=True, exist_ok=True)
    write(path(), known)


def write(where, known):
    """Write answers to a file."""
    files.write_json(where, {"puzzles": {name: known[name] for name in NAMES if name in known}})


def read(where):
    """Return the answers in a file that `write` or the page of puzzles wrote; a ValueError names what is wrong."""
    try:
        made = files.read_json(where)
    except files.CorruptFileError as error:
        raise ValueError(str(error)) from error
    known = made.get("puzzles") if isinstance(made, dict) else None
    if not isinstance(known, dict):
        raise ValueError(f"{where} is damaged: got {str(made)[:80]!r}, not answers to puzzles")
    for name, each in known.items():
        good = name in NAMES and isinstance(each, dict) and isinstance(each.get("answer"), str)
        if not good or not isinstance(each.get("solved"), str | None):
            raise ValueError(f"{where} is damaged: got {name!r}: {str(each)[:80]}, not a puzzle's time and answer")
    return known


def source(answer):
    """Return the source of a function or kernel, with all of its cell or module that it uses; "" if it has none."""
    texts, seen = [], set()

    def add(function):
        function = getattr(function, "py_func", function)
        for name, value in inspect.getclosurevars(function).globals.items() if inspect.isfunction(function) else ():
            if name in seen or _given().get(name) is value:
                continue
            seen.add(name)
            module = getattr(value, "__module__", None)
            if isinstance(value, ModuleType):
                texts.append(f"import {value.__name__} as {name}\n")
            elif hasattr(value, "__name__") and module == function.__module__:
                add(value)
            elif hasattr(value, "__name__") and module:
                texts.append(f"from {module} import {value.__name__} as {name}\n")
            elif isinstance(value, int | float | str | tuple | list | dict):
                texts.append(f"{name} = {value!r}\n")
        texts.append(textwrap.dedent(inspect.getsource(function)))

    try:
        add(answer)
    except (OSError, TypeError):  # typed in where nothing keeps it, or no function
        return ""
    return "\n".join(texts)


def functions(where):
    """Return the answers of a file by name, as functions: of exported ones, a notebook or a program.

    It runs what the file defines, but no calls: trust it, or run it where it can do no harm. What a part of the file
    raised is under None, as a text.
    """
    where = Path(where)
    if where.suffix == ".json":
        found = {}
        for name, each in read(where).items():
            made = _defined([each["answer"]], where)
            found |= {key: value for key, value in made.items() if key in (name, None)}
        return found
    text = where.read_text(encoding="utf-8")
    if where.suffix != ".ipynb":
        return _defined([text], where)
    try:
        cells = json.loads(text)["cells"]
        parts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{where} is no notebook: {error!r}") from error
    return _defined(parts, where)


@functools.cache
def _given():
    names = {}
    exec(GIVEN, names)
    return names


def _defined(parts, where):
    """Run the definitions of texts, one after the other; return those that are answers, and what was raised."""
    names, raised = {"__name__": "answers"} | _given(), []
    before = set(names)
    for number, text in enumerate(parts):
        file = f"{where.stem}_{number}.py"
        try:
            lines = text.splitlines(keepends=True)
            text = "".join("\n" if line.lstrip().startswith(("%", "!")) else line for line in lines)  # IPython's
            linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
            tree = ast.parse(text, file)
            tree.body = [each for each in tree.body if not isinstance(each, ast.Expr)]
            exec(compile(tree, file, "exec"), names)
        except Exception as error:
            raised.append(f"{type(error).__name__}: {error}")
    found = {name: names[name] for name in NAMES if name in names.keys() - before}
    return found | ({None: "; ".join(raised)} if raised else {})
