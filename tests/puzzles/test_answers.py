"""Answers: what is kept of them, and that a file of them is graded as they were judged."""

import json
import linecache
import re
from functools import partial

import pytest

from bppsa_nb import puzzles
from bppsa_nb.machine import files
from bppsa_nb.puzzles import answers


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BPPSA_NB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "answers.json"


def session(*cells):
    """Run cells one after the other, as a notebook does."""
    names = {"__name__": "__main__"}
    for number, cell in enumerate(cells):
        file = f"<cell {number}>"
        linecache.cache[file] = len(cell), None, cell.splitlines(keepends=True), file
        exec(compile(cell, file, "exec"), names)
    return names


def notebook(path, *cells):
    cells = [{"cell_type": "code", "metadata": {}, "source": cell.splitlines(keepends=True)} for cell in cells]
    path.write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": ["# 1"]}, *cells]}), encoding="utf-8")
    return path


JOIN = "def diamond(a, b):\n    return "
RNN = "def rnn_jacobian(W, h):\n    return "
# Cells that define an answer to "rnn_jacobian", by what it needs of others.
CELLS = {
    "nothing": (RNN + "W.T * (1 - h**2)",),
    "imports": ("import numpy.linalg as la\nfrom operator import mul", RNN + "mul(W.T, 1 - h**2) + 0 * la.norm(h)"),
    "what is given": (RNN + "functools.reduce(np.multiply, [W.T, 1 - h**2]) * float64(1) * math.exp(0)",),
    "a helper": ("def slope(h):\n    return 1 - h**2", RNN + "W.T * slope(h)"),
    "helpers of helpers": ("two = 2", "def square(x):\n    return x**two", "def slope(h):\n    return 1 - square(h)",
                           RNN + "W.T * slope(h)"),
    "itself": (RNN + "W.T * (1 - h**2) if len(W) else rnn_jacobian(W, h)",),
    "a helper in a comprehension": ("slope = lambda x: 1 - x**2", RNN + "W.T * np.array([slope(x) for x in h])"),
    "a default of a helper's": ("N = 2", "def slope(h, n=N):\n    return 1 - h**n", RNN + "W.T * slope(h)"),
    "a helper that is decorated": ("@functools.cache\ndef two(n):\n    return 2 * n", RNN + "W.T * (1 - h**two(1))"),
    "two names of a helper": ("def f(x):\n    return 1 - x**2", "g = f", RNN + "W.T * g(h) + 0 * f(h)"),
    "numbers, and None": ("TWO, NONE = 2.0, None", RNN + "W.T * (1 - h**TWO) if NONE is None else 0"),
    "an array": ("ONE = np.ones((1, 1))", RNN + "W.T * (ONE[0] - h**2)"),
    "a set, and bytes": ("S, B = {1}, b'2'", RNN + "W.T * (len(S) - h ** int(B))"),
    "a type of Numba's": ("f8 = float64", RNN + "W.T * (f8(1) - h**2)"),
    "a decorator": ("def plain(f):\n    return f", f"@plain\n{RNN}W.T * (1 - h**2)"),
    "another name": ("def mine(W, h):\n    return W.T * (1 - h**2)",),
    "no name": ("mine = lambda W, h: W.T * (1 - h**2)",),
    "no name, in a call": ("mine = (lambda f, g: g)(lambda W, h: W, lambda W, h: W.T * (1 - h**2))",),
}  # fmt: skip
IMPORTS = "import functools, math\nimport numpy as np\nfrom numba import float64\n"


@pytest.mark.parametrize("needs", CELLS)
def test_what_is_kept_is_right_again(needs, tmp_path):
    made = session(IMPORTS, *CELLS[needs])
    assert puzzles.check("rnn_jacobian", made.get("rnn_jacobian", made.get("mine")))
    assert puzzles.export(tmp_path / "mine.json") == 1
    grades = puzzles.grade(tmp_path / "mine.json", only=["rnn_jacobian", "reduce"])
    assert grades["rnn_jacobian"][:2] == (1, 1) and "✓ Right" in grades["rnn_jacobian"][2], answers.kept()
    assert grades["reduce"] == (0, 2, "✗ not answered")


def test_kernels_are_kept_with_what_they_call(tmp_path):
    pytest.importorskip("numba_cuda", reason="needs a CUDA compiler: the gpu extra")
    add = "@cuda.jit(device=True)\ndef add(total, x):\n    cuda.atomic.add(total, PLACE, x)"
    both = "    @cuda.jit\n    def one(a, b):\n        b[0] += a[cuda.threadIdx.x]\n    @cuda.jit\n    def two(a, b):\n"
    race = f"def race():\n{both}        add(b, a[cuda.threadIdx.x])\n    return one, two"
    text, name = puzzles.puzzle("warp_sum").text(), "warp_sum"
    made = session("from numba import cuda", "PLACE = 0", add, race, text)
    assert puzzles.check("race", made["race"]) and puzzles.check(name, made[name])
    puzzles.export(tmp_path / "mine.json")
    assert [each[0] for each in puzzles.grade(tmp_path / "mine.json", only=["race", name]).values()] == [2, 3]
    cells = "from numba import cuda", "PLACE = 0", add + "\nadd?", "%%time\n" + race, f"{text}\ncheck('{name}', {name})"
    grades = puzzles.grade(notebook(tmp_path / "a.ipynb", *cells), only=["race", name])
    assert [each[0] for each in grades.values()] == [2, 3]


def test_the_first_time_stays(cache):
    for answer in ("b @ a", "(b @ a)"):
        assert puzzles.check("diamond", session(JOIN + answer)["diamond"])
        known = files.read_json(cache)["puzzles"]["diamond"]
        assert known["answer"] == JOIN + answer and (answer == "b @ a" or known["solved"] == "long ago")
        cache.write_text(cache.read_text().replace(known["solved"], "long ago"))


def test_what_has_no_source_is_solved_all_the_same(tmp_path):
    exec("def diamond(a, b): return b @ a", names := {})

    class Join:
        def __call__(self, a, b):
            return b @ a

    for answer in (names["diamond"], Join(), partial(lambda a, b: b @ a)):
        assert puzzles.check("diamond", answer) and answers.kept()["diamond"]["answer"] == ""
    assert puzzles.progress().solved == ["diamond"]
    puzzles.export(tmp_path / "mine.json")
    told = puzzles.grade(tmp_path / "mine.json", only=["diamond"])["diamond"]
    assert told == (0, 1, "✗ solved, but the file has no source of it")


REDUCE = puzzles.puzzle("reduce").text()
# Parts of a program or a notebook, what they are graded for "diamond" and "reduce", and what is said of the first.
PARTS = [
    ([JOIN + "b @ a", REDUCE], 1, 2, "✓ Right"),
    ([f"from bppsa_nb.puzzles import check\n{JOIN}b @ a\nx = check('diamond', diamond)", REDUCE], 1, 2, "✓ Right"),
    ([f"import sys\nx = sys.exit(3)\nexit()\n{JOIN}b @ a", f"while True: pass\n{REDUCE}"], 1, 2, "✓ Right"),
    ([f"x = 1 / 0\n{JOIN}b @ a\ny = x", REDUCE], 1, 2, "✓ Right"),
    ([f"if __name__ == '__main__':\n    raise SystemExit\nassert False\n{JOIN}b @ a", REDUCE], 1, 2, "✓ Right"),
    (["try:\n    import none as o\nexcept ImportError:\n    import operator as o", JOIN + "o.matmul(b, a)"], 1, 0, "✓"),
    ([f"name = input('?')\nfrom operator import matmul\n{JOIN}matmul(b, a)"], 1, 0, "✓ Right"),
    ([f"{JOIN}(a @ b if 4\n    % 4 else b @ a)", REDUCE], 1, 2, "✓ Right"),
    ([f"class Two:\n    n: int = 2\nn: int = Two.n\n{JOIN}b @ a if Two.n == n else a"], 1, 0, "✓ Right"),
    ([JOIN + "a @ b", REDUCE], 0, 2, "✗ "), ([JOIN + "times(b, a)", REDUCE], 0, 2, "✗ "),
    ([JOIN + "b @ a", JOIN + "a @ b"], 0, 0, "✗ "),
    (["diamond = 3", REDUCE], 0, 2, "✗ the answer is a function, and not 3"),
    (["from bppsa_nb.puzzles.operators import *", REDUCE], 0, 2, "line 1, ImportError: bppsa_nb.puzzles.operators.* l"),
    ([f"{JOIN}o.diamond(a, b)\nimport bppsa_nb.puzzles.operators as o", REDUCE], 0, 2, "line 3, ImportError: bppsa_nb"),
    ([JOIN + "__import__('bppsa_nb').puzzles.operators.diamond(a, b)", REDUCE], 0, 2, "ImportError: bppsa_nb leads to"),
    (["from functools import reduce", "diamond = None"], 0, 0, "✗ not answered"), (["x = 3"], 0, 0, "✗ not answered"),
    (["def diamond(a, b:\n    return b @ a", REDUCE], 0, 2, "line 1, SyntaxError: '(' was never closed"),
    ([f'"""Of\nAda."""\ndef reduce(a, op)\n    yield\n{JOIN}b @ a', REDUCE], 1, 2, "✓ Right"),
    ([JOIN + "a @ b", "@cuda.jit(\n)\ndef reduce(a, op):\nyield"], 0, 0, "✗ diamond(A, B) is A B and should be B A"),
    ([f"@nothing\n{JOIN}b @ a", REDUCE], 0, 2, "NameError: name 'nothing' is not defined"),
    (["raise ValueError(3)\nx = 1 / 0", REDUCE], 0, 2, "line 2, ZeroDivisionError: division by zero"),
    (["def diamond(a, b):\n    while True: pass", REDUCE], 0, 2, "✗ still running after 0.2 seconds. Does every loop"),
    (["def f():\n    while True: pass\nx = f()", REDUCE], 0, 2, "line 3, TooLong: still running after 0.2 seconds"),
    (["def diamond(a, b):\n    raise SystemExit", REDUCE], 0, 2, "✗ "), (["", REDUCE], 0, 2, "✗ not answered"),
]  # fmt: skip


@pytest.mark.parametrize("suffix", [".py", ".ipynb", ".json"])
@pytest.mark.parametrize("row", range(len(PARTS)))
def test_files_are_graded(row, suffix, tmp_path, monkeypatch):
    parts, *points, said = PARTS[row]
    for module in (puzzles, answers) if "0.2 seconds" in said else ():
        monkeypatch.setattr(module, "SECONDS", 0.2)
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("somebody is asked"))
    path = tmp_path / f"handed_in{suffix}"
    if suffix == ".ipynb":
        notebook(path, "%matplotlib inline\n!ls", *parts)
    elif suffix == ".py":
        path.write_text("\n".join(parts), encoding="utf-8")
    else:
        known = {"diamond": {"answer": "\n".join(parts)}, "reduce": {"answer": parts[-1], "solved": None}}
        path.write_text(json.dumps({"puzzles": known}), encoding="utf-8")
    grades = puzzles.grade(path, only=["diamond", "reduce"])
    if suffix == ".json":  # which has what was solved
        said = said.replace("not answered", "solved, but the file has no source of it")
    assert [each[0] for each in grades.values()] == points and said in grades["diamond"][2], grades
    assert "handed_in_" not in str(grades) and ("SyntaxError" in said or "SyntaxError" not in grades["diamond"][2])
    assert not answers.path().exists()  # no check was run, and nothing is kept of who is graded


def test_files_can_be_graded_together(tmp_path):
    (tmp_path / "one.py").write_text(JOIN + "a @ b", encoding="utf-8")
    (tmp_path / "two.py").write_text(REDUCE, encoding="utf-8")
    three = notebook(tmp_path / "three.ipynb", JOIN + "b @ a")
    grades = puzzles.grade(tmp_path / "one.py", str(tmp_path / "two.py"), three)
    assert list(grades) == list(puzzles.NAMES) and sum(points for points, *_ in grades.values()) == 3
    assert sum(most for _, most, _ in grades.values()) == 48


DAMAGED = [
    ("a.json", b"[]", "a.json is damaged: got '[]', not answers to puzzles"),
    ("a.json", b'{"puzzles": {"reduce": {"answer": 3}}}', "'reduce': {'answer': 3}, not a puzzle's time and answer"),
    ("a.ipynb", b"{", "a.ipynb is no notebook"), ("a.ipynb", b"[]", "a.ipynb is no notebook"),
    ("a.ipynb", b'{"cells": [{"cell_type": "code"}]}', "a.ipynb is no notebook: KeyError('source')"),
    ("a.ipynb", b'{"cells": [3]}', "is no notebook"), ("a.ipynb", b"\xff", "a.ipynb is damaged: 'utf-8' codec"),
    ("a.py", b"\xff", "a.py is damaged: 'utf-8' codec"),
]  # fmt: skip


@pytest.mark.parametrize("name, content, message", DAMAGED)
def test_damaged_files_are_named(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(message)):
        puzzles.grade(tmp_path / name)
