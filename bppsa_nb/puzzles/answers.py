"""Answers kept, exported and graded: which puzzles are solved, when, and by what; no network, nothing unpickled."""

import ast
import functools
import inspect
import json
import linecache
import re
import symtable
import sys
import textwrap
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

from bppsa_nb.machine import files
from bppsa_nb.puzzles.checker import TooLong
from bppsa_nb.puzzles.contents import NAMES
from bppsa_nb.puzzles.limits import within

SECONDS = 10  # that a definition may take
CHECKS = {"check", "export", "grade", "hint", "input", "progress", "show", "solution"}  # are not run in what is graded

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
    known[name] = {"solved": known.get(name, {}).get("solved") or now, "answer": source(answer, name)}
    path().parent.mkdir(parents=True, exist_ok=True)
    write(path(), known)


def write(where, known):
    """Write answers to a file."""
    files.write_json(where, {"puzzles": {name: known[name] for name in NAMES if name in known}})


def read(where):
    """Return the answers in a file that `write` or the page of puzzles wrote; a ValueError names what is wrong."""
    try:
        made = json.loads(Path(where).read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is damaged: {error}") from error
    known = made.get("puzzles") if isinstance(made, dict) else None
    if not isinstance(known, dict):
        raise ValueError(f"{where} is damaged: got {str(made)[:80]!r}, not answers to puzzles")
    for name, each in known.items():
        good = name in NAMES and isinstance(each, dict) and isinstance(each.get("answer"), str)
        if not good or not isinstance(each.get("solved"), str | None):
            raise ValueError(f"{where} is damaged: got {name!r}: {str(each)[:80]}, not a puzzle's time and answer")
    return known


def source(answer, name):
    """Return source that defines an answer under a name, with what it uses of its cell or module; "" without any."""
    texts = []
    try:
        _add(texts, {name}, answer, name)
    except Exception:  # whatever stands where Python looks for source
        return ""
    return "\n".join(texts)


def _add(texts, seen, function, name):
    """Add to texts what defines a function under a name; before it, what else it uses, but names that were seen."""
    function = inspect.unwrap(getattr(function, "py_func", function))
    text, called = textwrap.dedent(inspect.getsource(function)), function.__name__
    if called == "<lambda>":
        text, called = f"{name} = {_lambda(text, function)}\n", name
    for each in sorted(_uses(text) & function.__globals__.keys() - seen):
        value = function.__globals__[each]
        own = inspect.unwrap(getattr(value, "py_func", value))
        seen.add(each)
        if each in _given() and _given()[each] is value or own is function:
            continue
        if inspect.isfunction(own) and own.__module__ == function.__module__:
            _add(texts, seen, value, each)
        else:
            texts.append(_defines(each, value))
    texts.append(text if called == name else f"{text}\n{name} = {called}\n")


def _defines(name, value):
    """Return a line that gives a value a name, or "" if no line can."""
    given = [each for each, known in _given().items() if known is value]
    if given:
        return f"{name} = {given[0]}\n"
    if isinstance(value, ModuleType):
        return f"import {value.__name__} as {name}\n"
    if type(value).__name__ == "ndarray":
        return f"{name} = np.array({value.tolist()!r}, {value.dtype.str!r})\n"
    module, called = (getattr(value, each, None) for each in ("__module__", "__name__"))
    if module and called and getattr(sys.modules.get(module), called, None) is value and module != "__main__":
        return f"from {module} import {called} as {name}\n"
    try:
        eval(repr(value), dict(_given()))
    except Exception:
        return ""
    return f"{name} = {value!r}\n"


def _uses(text):
    """Return the names that a text uses and does not define: in its functions, their defaults and decorators."""
    tables, found = [symtable.symtable(text, "an answer", "exec")], set()
    for table in tables:
        tables += table.get_children()
        whole = table.get_type() == "module"
        found |= {each.get_name() for each in table.get_symbols() if each.is_global() or whole and each.is_referenced()}
    return found


def _lambda(text, function):
    """Return a lambda's own part of the lines that it stands in."""
    found = [node for node in ast.walk(ast.parse(text.strip())) if isinstance(node, ast.Lambda)]
    made = [compile(ast.Expression(node), "", "eval").co_consts[0].co_code for node in found]
    return ast.unparse(found[made.index(function.__code__.co_code)])


def functions(where):
    """Return the answers of a file by name: functions, or texts where there is none; of a notebook, a program, or JSON.

    It runs what the file defines, but no calls at the top level: trust it, or run it where it can do no harm. What
    statements raised is under None: the words that each begins with, and a text.
    """
    where = Path(where)
    if where.suffix.lower() not in (".json", ".ipynb", ".py"):
        raise ValueError(f"{where} is no file of answers: these end in .json, .ipynb or .py")
    if where.suffix.lower() == ".json":
        found = {None: []}
        for name, each in read(where).items():
            made = _defined([each["answer"]], where)
            found[None] += [([name], said) for _, said in made.get(None, ())]
            found[name] = made.get(name, "not answered" if None in made else "solved, but the file has no source of it")
        return found
    try:
        text = where.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where} is damaged: {error}") from error
    if where.suffix.lower() != ".ipynb":
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
    before = dict(names)
    for number, text in enumerate(parts):
        file, cell = f"{where.stem}_{number}.py", f"code cell {number + 1}, " * (where.suffix.lower() == ".ipynb")
        for each in _definitions(text, file):
            try:
                if isinstance(each, Exception):
                    raise each
                _see_own(each)
                within(SECONDS, functools.partial(exec, compile(ast.Module([each], []), file, "exec"), names))
            except (Exception, SystemExit, TooLong) as error:
                head = re.match(r"(@.*\n)*([^(=:]*)", each.text if each is error else ast.unparse(each))[2]
                said = getattr(error, "msg", error)  # of syntax, without the name of a file that is none
                raised.append((re.findall(r"\w+", head), f"{cell}line {each.lineno}, {type(error).__name__}: {said}"))
    found = {name: names[name] for name in NAMES if name in names and names[name] is not before.get(name)}
    return found | ({None: raised} if raised else {})


def _definitions(text, file):
    """Return the statements of a text that define something, also imports; what is no Python is an exception there."""
    lines = text.splitlines(keepends=True)
    try:
        body = ast.parse(text, file).body
    except Exception:  # of syntax, nearly always; without what is IPython's alone, and texts at the left
        text = re.sub(r"(?ms)^(\"\"\"|''').*?\1", lambda found: "\n" * found[0].count("\n"), text)
        lines = ["\n" if re.match(r"\s*[%!]|.*\?$", line) else line for line in text.splitlines(keepends=True)]
        body = _one_by_one("".join(lines))
    linecache.cache[file] = len(text), None, lines, file
    kinds = ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign, ast.Try
    return [each for each in body if isinstance(each, Exception) or isinstance(each, kinds) and not _checks(each)]


def _one_by_one(text):
    first, found = r"(?m)^(?:@(?:.*\n)+?)?(?!else|elif|except|finally)[^\s#)\]}@].*", []  # a line, after decorators
    begins = sorted({0, *(each.start() for each in re.finditer(first, text))})
    for begin, end in zip(begins, [*begins[1:], len(text)], strict=True):
        above, source = text.count("\n", 0, begin), text[begin:end]
        try:
            found += ast.parse("\n" * above + source).body
        except Exception as error:
            error.text, error.lineno = source, getattr(error, "lineno", None) or above + 1
            found.append(error)
    return found


def _see_own(statement):
    """Raise an ImportError if a statement names what of this package has the solutions, or leads there."""
    for node in ast.walk(statement):
        begin = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        imported = [begin + each.name for each in getattr(node, "names", ()) if isinstance(each, ast.alias)]
        for name in [*imported, str(getattr(node, "value", "")), getattr(node, "id", "")]:  # importlib takes texts
            if re.fullmatch(r"bppsa_nb(\.[\w*]+)*", name) and {*_given(), *CHECKS}.isdisjoint(name.split(".")):
                raise ImportError(f"{name} leads to the solutions; answers import what notebooks 00 and 02b do")


def _checks(statement):
    """Tell whether a statement calls, outside of functions, what puzzles offer."""
    calls = [node.func for node in ast.walk(statement) if isinstance(node, ast.Call)]
    named = {getattr(each, "id", getattr(each, "attr", None)) for each in calls}
    return not isinstance(statement, ast.FunctionDef | ast.ClassDef) and bool(named & CHECKS)
