"""The command `bppsa-nb puzzles`: which puzzles are solved; answers as one file; points for the answers in files."""

from bppsa_nb import puzzles
from bppsa_nb.machine import files

DESCRIPTION = """\
Show which puzzles are solved; export all right answers to one file, with times; or grade the answers in files. Graded
are what export wrote, what the page of puzzles saved, notebooks and programs. They are run, but for calls at the top
level: grade strangers' answers where they can do no harm. The exit status of grade is 0 if all puzzles that are asked
are solved, and 1 if not. Nothing is sent anywhere."""


def add_options(add):
    """Add the options of the command, by `add`, a parser's `add_argument`."""
    add("action", nargs="?", choices=("progress", "export", "grade"), default="progress", help="(%(default)s)")
    add("files", nargs="*", metavar="FILE", help="to export to (answers.json), or to grade: .json, .ipynb or .py")
    add("--only", nargs="+", metavar="NAME", choices=puzzles.NAMES, default=puzzles.NAMES, help="grade these puzzles")
    add("--json", metavar="FILE", help="write points here, too, as Gradescope reads them")


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
    grades, tests = puzzles.grade(*arguments.files, only=arguments.only), []
    for name, (points, most, said) in grades.items():
        print(f"{points} of {most}  {name:<18} {said.splitlines()[0]}")
        passed = "passed" if points else "failed"
        tests.append({"name": name, "score": points, "max_score": most, "status": passed, "output": said})
    score, most = (sum(test[key] for test in tests) for key in ("score", "max_score"))
    print(f"{score} of {most} points")
    if arguments.json:
        files.write_json(arguments.json, {"score": score, "tests": tests})
    return int(any(not points for points, _, _ in grades.values()))
