"""Puzzles that answer back: `check` tells at once whether an answer is right, and if it is not, what is wrong."""

import difflib
import re
import textwrap
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any

from bppsa_nb.machine import files
from bppsa_nb.puzzles import answers, checker, contents
from bppsa_nb.puzzles.checker import IDENTITY, TooLong, Verdict, Wrong
from bppsa_nb.puzzles.contents import NAMES, POINTS
from bppsa_nb.puzzles.limits import within

__all__ = ["IDENTITY", "NAMES", "check", "export", "grade", "hint", "progress", "show", "solution"]

SECONDS = 10  # that an answer may take, with all Python that it calls; kernels have a limit of their own


def puzzle(name):
    """Return a `bppsa_nb.puzzles.checker.Puzzle`; a ValueError lists all there are if there is none of that name."""
    if not isinstance(name, str) or name not in NAMES:
        close = difflib.get_close_matches(str(name), NAMES, 1)
        meant = f"; did you mean {close[0]}?" if close else ""
        raise ValueError(f"name must be a puzzle, one of {', '.join(NAMES)}; got {name!r}{meant}")
    if name in contents.SCANS:
        from bppsa_nb.puzzles.scans import PUZZLES
    elif name in contents.ARRAYS:
        from bppsa_nb.puzzles.arrays import PUZZLES
    else:
        from bppsa_nb.puzzles.kernels import PUZZLES
    return PUZZLES[name]


def check(name: str, yours: Any) -> Verdict:
    """Say whether an answer to a puzzle is right.

    Parameters
    ----------
    name
        The puzzle's name, which is also what the answer is called.
    yours
        The answer, a function.

    Returns
    -------
    Verdict
        True if it is right. As the last line of a cell it says what is wrong, and draws both, yours and the right one.
    """
    verdict = _judge(name, yours)
    if verdict:
        try:
            answers.keep(name, yours)
        except (OSError, files.CorruptFileError) as error:
            verdict.message += f" But that cannot be kept for `progress()`: {error}"
    return verdict


def _judge(name, yours):
    asked = puzzle(name)
    try:
        if name in contents.KERNELS and hasattr(yours, "py_func"):
            return asked.check(yours)
        return within(SECONDS, lambda: asked.check(yours))
    except (TooLong, Wrong) as wrong:
        return Verdict(False, str(wrong))


def export(path: str | PathLike[str] = "answers.json") -> int:
    """Write all right answers to one file, with the times at which puzzles were solved first.

    Parameters
    ----------
    path
        A file of JSON, as `grade` reads it, and as the page of puzzles saves it.

    Returns
    -------
    int
        How many answers it has.

    Raises
    ------
    CorruptFileError, OSError
        If what was kept is damaged, or the file cannot be written.
    """
    known = answers.kept()
    answers.write(path, known)
    return len(known)


def grade(*paths: str | PathLike[str], only: Sequence[str] = NAMES) -> dict[str, tuple[int, int, str]]:
    """Judge the answers in files, and count their points.

    Parameters
    ----------
    *paths
        One person's files: what `export` or the page of puzzles wrote; notebooks (.ipynb) or programs (.py) that define
        the answers. Their imports, functions, classes and assignments are run, here: trust them, or grade them where
        they can do no harm. Of two answers to a puzzle, the last one counts.
    only
        The puzzles that are asked.

    Returns
    -------
    dict
        By puzzle: (points, points that it is worth, what is said of the answer).
    """
    single = isinstance(only, str) or not hasattr(only, "__iter__") or getattr(only, "shape", None) == ()
    if single or not set(map(str, only)) <= set(NAMES):
        raise ValueError(f"only must be puzzles, some of {', '.join(NAMES)}; got {only!r}")
    found, raised = {}, []
    for path in paths:
        made = answers.functions(path)
        raised += [({*words}, f"{path} raised {said}") for words, said in made.pop(None, ())]
        found |= made
    grades = {}
    for name in only:
        answer = found.get(name, "not answered")
        verdict = Verdict(False, answer) if isinstance(answer, str) else _judge(name, answer)
        missing = {name, *re.findall(r"name '(\w+)'", verdict.message)}
        why = [said for words, said in raised if words & missing or name not in found and not words & {*NAMES}]
        verdict.message += f" ({'; '.join(why[:3])}{'; ...' * (len(why) > 3)})" * (not verdict and bool(why))
        grades[name] = POINTS[name] if verdict else 0, POINTS[name], str(verdict)
    return grades


def show(scan: Callable[..., Any], letters: str, *more: Any) -> "Watched":
    """Run a scan of one's own over letters.

    Parameters
    ----------
    scan
        A generator ``scan(a, op, ...)``: works on a list in place, and pauses after each level. ``op(a, b)`` joins two.
    letters
        What the list holds, such as "abcd".
    *more
        What else the scan takes, such as `IDENTITY`.

    Returns
    -------
    Watched
        As the last line of a cell, it draws what the list held before the scan and after each level.

    Raises
    ------
    TypeError, TimeoutError
        If the scan does not pause; if it takes longer than `SECONDS`.
    """
    if not isinstance(letters, str) or not letters:
        raise ValueError(f'letters must be a text such as "abcd", got {letters!r}')
    try:
        return within(SECONDS, lambda: Watched(scan, letters, *more))
    except TooLong as error:
        raise TimeoutError(str(error)) from None


class Watched:
    """A scan over letters, level by level: `rows` are what the list held."""

    def __init__(self, scan, letters, *more):
        a = checker.words(letters)
        op = checker.Join(a)
        self.rows = [list(a)]
        pauses = scan(a, op, *more)
        if not hasattr(pauses, "__next__"):
            raise TypeError(f"a scan pauses after each level, by yield; this one returned {checker.shown(pauses)}")
        for _ in pauses:
            checker.keep(self.rows, a)
        checker.keep(self.rows, a)

    def __repr__(self):
        return "\n".join(" ".join(word.text or "I" for word in row) for row in self.rows)

    def _repr_html_(self):
        from bppsa_nb.puzzles.drawing import watched

        return watched(self)


def hint(name: str, depth: int = 1) -> None:
    """Print a hint on the puzzle `name`, of `depth` 1, or 2, which says more, or 3, which says nearly all."""
    hints = puzzle(name).hints
    if type(depth) is not int or not 1 <= depth <= len(hints):
        raise ValueError(f"depth must be from 1 to {len(hints)}, got {depth!r}")
    print(hints[depth - 1])


def solution(name: str) -> None:
    """Print a solution of the puzzle `name`, and why it is as it is."""
    asked = puzzle(name)
    print(f"{asked.text()}\n\n{textwrap.fill(asked.explained, 88)}")


def progress() -> "Progress":
    """Return which puzzles are solved, to be shown as the last line of a cell."""
    return Progress(answers.kept())


class Progress:
    """Which puzzles were solved, `solved`, of `NAMES`."""

    def __init__(self, solved):
        self.solved = [name for name in NAMES if name in solved]

    def __repr__(self):
        points, most = sum(POINTS[name] for name in self.solved), sum(POINTS.values())
        said = f"{len(self.solved)} of {len(NAMES)} puzzles solved: {points} of {most} points"
        rows = (f"{'●' if name in self.solved else '○'} {i:2} {name}" for i, name in enumerate(NAMES, 1))
        return "\n".join([said, *rows])
