"""Answers: what is kept of them, and that a file of them is graded as they were judged."""

import json
import linecache
import re
from functools import partial

import pytest
from texts import beside

from bppsa_nb import puzzles
from bppsa_nb.machine import files
from bppsa_nb.puzzles import answers

pytestmark = pytest.mark.usefixtures("cache")
CELLS, PARTS, DAMAGED = (beside(__file__)[name] for name in ("cells", "parts", "damaged"))


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
    kept = cache / "answers.json"
    for answer in ("b @ a", "(b @ a)"):
        assert puzzles.check("diamond", session(JOIN + answer)["diamond"])
        known = files.read_json(kept)["puzzles"]["diamond"]
        assert known["answer"] == JOIN + answer and (answer == "b @ a" or known["solved"] == "long ago")
        kept.write_text(kept.read_text().replace(known["solved"], "long ago"))


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


@pytest.mark.parametrize("suffix", [".py", ".ipynb", ".json"])
@pytest.mark.parametrize("row", range(len(PARTS)))
def test_files_are_graded(row, suffix, tmp_path, monkeypatch):
    parts, *points, said = PARTS[row]
    parts = [part.replace("REDUCE", REDUCE) for part in parts]
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


@pytest.mark.parametrize("name, content, message", DAMAGED)
def test_damaged_files_are_named(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=re.escape(message)):
        puzzles.grade(tmp_path / name)
