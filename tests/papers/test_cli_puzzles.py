"""The command that exports and grades answers: its exit status, what it prints, what it writes."""

import json

import pytest

from bppsa_nb import puzzles
from bppsa_nb.machine import files
from bppsa_nb.papers import cli

PROGRAM = """
import itertools

def totals(items, op):
    return list(itertools.accumulate(items, op))

def diamond(a, b):
    return a @ b

check("totals", totals)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("BPPSA_NB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words):
    return cli.main(["puzzles", *words])


def test_answers_are_exported_and_graded(folder, capsys):
    for name in ("totals", "affine"):
        assert puzzles.check(name, puzzles.puzzle(name).solution)
    assert run() == 0 and capsys.readouterr().out.startswith("2 of 24 puzzles solved: 2 of 48 points\n●  1 totals\n○")
    assert run("export") == 0 and capsys.readouterr().out == "wrote 2 answers to answers.json\n"
    assert list(files.read_json("answers.json")["puzzles"]) == ["totals", "affine"]
    assert run("grade", "answers.json", "--only", "totals", "affine") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 of 2 points"
    assert run("grade", "answers.json", "--only", "totals", "reduce") == 1
    assert capsys.readouterr().out.splitlines()[1:] == ["0 of 2  reduce             ✗ not answered", "1 of 3 points"]


def test_points_are_written_as_gradescope_reads_them(folder, capsys):
    (folder / "mine.py").write_text(PROGRAM)
    assert run("grade", "mine.py", "--only", "totals", "diamond", "--json", "results.json") == 1
    found = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert found["score"] == 1 and [test["status"] for test in found["tests"]] == ["passed", "failed"]
    assert found["tests"][1]["max_score"] == 1 and "should be B A" in found["tests"][1]["output"]
    assert not (folder / "cache").exists()  # graded answers are nobody's progress


@pytest.mark.parametrize(
    "words, message",
    [
        (["grade"], "grade needs a file with answers: .json, .ipynb or .py"),
        (["grade", "none.json"], "No such file or directory: 'none.json'"),
        (["export", "a", "b"], "export writes one file, got a b"),
        (["progress", "a"], "progress takes no files, got a"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(words, message, capsys):
    assert run(*words) == 1
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
