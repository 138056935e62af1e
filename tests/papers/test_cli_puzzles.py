"""The command that exports and grades answers: its exit status, what it prints, what it writes."""

import re
from fnmatch import fnmatch

import pytest
from texts import beside

from bppsa_nb import puzzles
from bppsa_nb.machine import files
from bppsa_nb.papers import cli, cli_puzzles

REFUSED, PROGRAM = beside(__file__).values()


@pytest.fixture(autouse=True)
def folder(cache, tmp_path, monkeypatch):
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
    assert run("grade", "answers.json", "--only", "1", "7") == 0 and capsys.readouterr().out.endswith("2 of 2 points\n")
    assert run("grade", "answers.json", "--only", "totals", "reduce") == 1
    assert capsys.readouterr().out.splitlines()[1:] == ["0 of 2  reduce             ✗ not answered", "1 of 3 points"]


def test_points_are_written_as_gradescope_reads_them(folder, capsys):
    (folder / "mine.py").write_text(PROGRAM)
    assert run("grade", "mine.py", "--only", "totals", "diamond", "--json", "results.json") == 1
    assert (found := files.read_json("results.json"))["score"] == 1 and found["tests"][0]["status"] == "passed"
    assert found["tests"][1]["max_score"] == 1 and "should be B A" in found["tests"][1]["output"]
    assert not (folder / "cache").exists()  # graded answers are nobody's progress


@pytest.mark.outer
def test_what_ends_python_or_hangs_is_no_pass(folder, monkeypatch, capsys):
    monkeypatch.setattr(cli_puzzles, "SECONDS", 8)
    answers = "import os\nreduce = lambda *_: os._exit(0)\ndiamond = lambda a, b: b @ a\n"
    (folder / "mine.py").write_text(answers + "before = lambda *_: sum(range(10**13))\n")
    assert run("grade", "mine.py", "--only", "reduce", "before", "diamond", "--json", "results.json") == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "0 of 2  reduce             ✗ it ends Python, or does not end, and neither can be graded"
    assert said[1].startswith("0 of 1  before             ✗ it ends Python") and said[2].startswith("1 of 1  diamond")
    assert files.read_json("results.json")["score"] == 1


def test_puzzles_are_asked_by_number_and_files_may_begin_with_a_mark(folder, capsys):
    (folder / "MINE.PY").write_text(PROGRAM, encoding="utf-8-sig")
    assert run("grade", "MINE.PY", "--only", "1", "6-7") == 1
    assert [line.split()[3] for line in capsys.readouterr().out.splitlines()[:3]] == ["totals", "diamond", "affine"]


@pytest.mark.parametrize("words", [["--only", "25"], ["--only", "3-1"], ["--only", "total"], ["--json", ""]])
def test_wrong_options_are_usage(words, capsys):
    with pytest.raises(SystemExit):
        run("grade", "mine.py", *words)
    assert "is no puzzle; there are 1-24: totals, " in (err := capsys.readouterr().err) or "is missing" in err


def test_the_loop_that_teachers_copy_grades_no_results():
    text = (files.root() / "notebooks" / "TEACH.md").read_text(encoding="utf-8")
    (graded,) = re.findall(r"for file in (\S+); do", text)
    assert [each for each in re.findall(r"--json (\S+\.json)", text) if fnmatch(each, graded)] == []


def test_what_else_is_raised_is_told(monkeypatch, capsys):  # as where there is no compiler for kernels
    monkeypatch.setattr(cli_puzzles, "_CHILD", cli_puzzles._CHILD.replace("puzzles.grade", "nothing"))
    assert run("grade", "mine.py") == 1 and "name 'nothing' is not defined" in capsys.readouterr().err


def test_a_damaged_file_has_results_that_say_so(folder):
    (folder / "mine.json").write_text("[1]")
    assert run("grade", "mine.json", "--json", "results.json") == 1
    assert (found := files.read_json("results.json"))["score"] == 0 and "mine.json is damaged" in found["output"]


@pytest.mark.parametrize("words, message", REFUSED)
def test_what_is_wrong_is_told_in_a_line(words, message, capsys):
    assert run(*words.split()) == 1
    assert message in (said := capsys.readouterr().err) and said.count("\n") == 1
