"""Puzzles that answer back: `check` tells at once whether an answer is right, and if it is not, what is wrong."""

import difflib
import inspect
from html import escape

from bppsa_nb.machine import files
from bppsa_nb.puzzles.checker import IDENTITY, TooLong, Verdict, Watched, Wrong
from bppsa_nb.puzzles.limits import within

__all__ = ["IDENTITY", "NAMES", "check", "hint", "progress", "show", "solution"]

_SCANS = ("totals", "reduce", "before", "down_sweep", "pairs", "diamond", "affine", "chunks", "exscan")
_ARRAYS = ("rnn_jacobian", "gru_jacobian", "weight_gradient", "sparse_product")
_KERNELS = ("up_level", "down_level", "up_level_of_batch")
NAMES = (*_SCANS, *_ARRAYS, *_KERNELS)  # in the order in which to solve them
SECONDS = 10  # that an answer may take, with all Python that it calls; kernels have a limit of their own


def puzzle(name):
    """Return a `bppsa_nb.puzzles.checker.Puzzle`; a ValueError lists all there are if there is none of that name."""
    if not isinstance(name, str) or name not in NAMES:
        close = difflib.get_close_matches(str(name), NAMES, 1)
        meant = f"; did you mean {close[0]}?" if close else ""
        raise ValueError(f"name must be a puzzle, one of {', '.join(NAMES)}; got {name!r}{meant}")
    if name in _SCANS:
        from bppsa_nb.puzzles.scans import PUZZLES
    elif name in _ARRAYS:
        from bppsa_nb.puzzles.arrays import PUZZLES
    else:
        from bppsa_nb.puzzles.kernels import PUZZLES
    return PUZZLES[name]


def check(name, yours):
    """Say whether an answer to a puzzle is right.

    Parameters
    ----------
    name : str
        Of the puzzle, which is also what the answer is called.
    yours : callable
        The answer.

    Returns
    -------
    Verdict
        True if it is right. As the last line of a cell it says what is wrong, and draws both, yours and the right one.

    Raises
    ------
    ValueError
        If there is no such puzzle.
    """
    asked = puzzle(name)
    try:
        verdict = asked.check(yours) if name in _KERNELS else within(SECONDS, lambda: asked.check(yours))
    except (TooLong, Wrong) as wrong:
        verdict = Verdict(False, str(wrong))
    if verdict:
        try:
            _keep(name)
        except (OSError, files.CorruptFileError) as error:
            verdict.message += f" But that cannot be kept for `progress()`: {error}"
    return verdict


def show(scan, letters, *more):
    """Run a scan of one's own over letters.

    Parameters
    ----------
    scan : callable
        A generator ``scan(a, op, ...)``: works on a list in place, and pauses after each level. ``op(a, b)`` joins two.
    letters : str
    *more
        What else the scan takes, such as `IDENTITY`.

    Returns
    -------
    Watched
        As the last line of a cell, it draws what the list held before the scan and after each level.

    Raises
    ------
    ValueError, TypeError, TimeoutError
        If letters are none, or no text; if the scan does not pause; if it takes longer than `SECONDS`.
    """
    if not isinstance(letters, str) or not letters:
        raise ValueError(f'letters must be a text such as "abcd", got {letters!r}')
    try:
        return within(SECONDS, lambda: Watched(scan, letters, *more))
    except TooLong as error:
        raise TimeoutError(str(error)) from None


def hint(name, depth=1):
    """Print a hint: the first, the second, which says more, or the third, which says nearly all."""
    hints = puzzle(name).hints
    if type(depth) is not int or not 1 <= depth <= len(hints):
        raise ValueError(f"depth must be from 1 to {len(hints)}, got {depth!r}")
    print(hints[depth - 1])


def solution(name):
    """Print the solution of a puzzle."""
    solved = puzzle(name).solution
    text = inspect.getsource(getattr(solved, "py_func", solved))
    before, _, rest = text.partition('"""')
    print(before.rstrip() + rest.partition('"""')[2].rstrip())  # without its docstring, which is the question


def progress():
    """Return which puzzles are solved, to be shown as the last line of a cell."""
    return Progress(_solved())


class Progress:
    """Which puzzles were solved, `solved`, of `NAMES`."""

    def __init__(self, solved):
        self.solved = [name for name in NAMES if name in solved]

    def __repr__(self):
        marks = ("●" if name in self.solved else "○" for name in NAMES)
        return f"{len(self.solved)} of {len(NAMES)}\n" + "\n".join(map(" ".join, zip(marks, NAMES, strict=True)))

    def _repr_html_(self):
        side, cells = 132, []
        for i, name in enumerate(NAMES):
            done, x, y = name in self.solved, side * (i % 6) + 4, 44 * (i // 6) + 4
            box = f'x="{x}" y="{y}" width="{side - 8}" height="34" rx="5" stroke="#00795a"'
            text = f'x="{x + side / 2 - 4}" y="{y + 21}" font-size="12" text-anchor="middle"'
            cells.append(
                f"<g><title>{escape(puzzle(name).title)}</title>"
                f'<rect {box} fill="{"#00795a" if done else "none"}"/>'
                f'<text {text} fill="{"#ffffff" if done else "currentColor"}">{"✓ " * done}{name}</text></g>'
            )
        said, rows = f"{len(self.solved)} of {len(NAMES)} puzzles solved", -(-len(NAMES) // 6)
        seen = f'style="max-width:{6 * side}px" role="img" aria-label="{said}: {", ".join(self.solved) or "none yet"}"'
        body = "".join(cells)
        return f'<p>{said}</p><svg viewBox="0 0 {6 * side} {44 * rows}" {seen} font-family="sans-serif">{body}</svg>'


def _file():
    return files.cache_folder() / "puzzles.json"


def _solved():
    path = _file()
    if not path.exists():
        return []
    try:
        kept = files.read_json(path)
    except files.CorruptFileError as error:
        raise files.CorruptFileError(f"{error}; delete it to begin anew") from error
    if not isinstance(kept, list) or not all(name in NAMES for name in kept):
        raise files.CorruptFileError(f"{path} is damaged: got {kept!r}, not a list of puzzles; delete it to begin anew")
    return kept


def _keep(name):
    kept = _solved()
    if name not in kept:
        _file().parent.mkdir(parents=True, exist_ok=True)
        files.write_json(_file(), [*kept, name])
