"""The command `bppsa-nb puzzles`: which puzzles are solved; answers as one file; points for the answers in files."""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from bppsa_nb import puzzles
from bppsa_nb.machine import files
from bppsa_nb.puzzles import NAMES, POINTS

DESCRIPTION = """\
Show which puzzles are solved; export all right answers to one file, with times; or grade the answers in files, of one
person. Graded are what export wrote, what the page of puzzles saved, notebooks and programs. Their imports, functions,
classes and assignments are run: grade strangers' answers where they can do no harm. The exit status of grade is 0 if
all puzzles that are asked are solved, and 1 if not. Nothing is sent anywhere."""
SECONDS = 40  # that the grading of one puzzle may take, with the start of Python
# Grades in a process of its own, which an answer may end or stop.
_CHILD = """
import json, sys
from bppsa_nb import puzzles
from bppsa_nb.machine import files
paths, only, where = json.loads(sys.argv[1])
try:
    found = puzzles.grade(*paths, only=only)
except Exception as error:  # of files, or where there is no CUDA compiler
    found = str(error) or repr(error)
files.write_json(where, found)
"""


def add_options(add):
    """Add the options of the command, by `add`, a parser's `add_argument`."""
    add("action", nargs="?", choices=("progress", "export", "grade"), default="progress", help="(%(default)s)")
    add("files", nargs="*", metavar="FILE", help="to export to (answers.json), or to grade: .json, .ipynb or .py")
    add("--only", nargs="+", type=_asked, metavar="PUZZLE", default=[NAMES],
        help="grade these puzzles, by name or number, such as 1-12; files come before it")  # fmt: skip
    add("--json", metavar="FILE", type=_file, help="write points here, too, as Gradescope reads them")


def _asked(text):
    """Return the puzzles of a name, a number or two: "totals", "3", "1-12"."""
    if text in NAMES:
        return (text,)
    first, _, last = text.partition("-")
    last = last or first
    if first.isdigit() and last.isdigit() and 0 < int(first) <= int(last) <= len(NAMES):
        return NAMES[int(first) - 1 : int(last)]
    raise argparse.ArgumentTypeError(f"{text!r} is no puzzle; there are 1-{len(NAMES)}: {', '.join(NAMES)}")


def _file(text):
    if not text:
        raise argparse.ArgumentTypeError("the name of a file is missing")
    return Path(text)


def run(arguments):
    """Do what the command line says; return the exit status."""
    if arguments.action == "grade":
        return _grade(arguments)
    if arguments.action == "progress" and arguments.files:
        raise ValueError(f"progress takes no files, got {' '.join(arguments.files)}")
    if len(arguments.files) > 1:
        raise ValueError(f"export writes one file, got {' '.join(arguments.files)}")
    if arguments.action == "progress":
        print(puzzles.progress())
        return 0
    path = (arguments.files or ["answers.json"])[0]
    print(f"wrote {puzzles.export(path)} answers to {path}")
    return 0


def _grade(arguments):
    if not arguments.files:
        raise ValueError("grade needs a file with answers: .json, .ipynb or .py")
    only = list(dict.fromkeys(name for names in arguments.only for name in names))
    grades, tests = _grades(arguments.files, only), []
    if isinstance(grades, str):
        if arguments.json:
            files.write_json(arguments.json, {"score": 0, "output": grades, "tests": []})
        raise ValueError(grades)
    for name, (points, most, said) in grades.items():
        print(f"{points} of {most}  {name:<18} {said.splitlines()[0]}")
        passed = "passed" if points else "failed"
        tests.append({"name": name, "score": points, "max_score": most, "status": passed, "output": said})
    score, most = (sum(test[key] for test in tests) for key in ("score", "max_score"))
    print(f"{score} of {most} points")
    if arguments.json:
        files.write_json(arguments.json, {"score": score, "tests": tests})
    return int(any(not points for points, _, _ in grades.values()))


def _grades(paths, only):
    """Return the grades of puzzles, as `puzzles.grade` does, or what is wrong with the files."""
    grades = _in_a_child(paths, only, SECONDS * (1 + len(only) // 3))
    if grades is not None:
        return grades
    grades, lost = {}, 0  # something ended it, or did not end: which of them?
    for name in only:
        found = _in_a_child(paths, [name], SECONDS) if lost < 3 else None
        lost = lost + 1 if found is None else 0
        said = "✗ it ends Python, or does not end, and neither can be graded"
        grades |= {name: (0, POINTS[name], said)} if found is None else found
    return grades


def _in_a_child(paths, only, seconds):
    """Grade in another process; return what it found, or None if it was ended, or took too long."""
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder) / "grades.json"
        command = [sys.executable, "-P", "-c", _CHILD, json.dumps([paths, only, str(where)])]
        silent = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        try:
            subprocess.run(command, timeout=seconds, check=False, **silent)
        except subprocess.TimeoutExpired:
            return None
        return files.read_json(where) if where.exists() else None
