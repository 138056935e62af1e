"""The puzzles in the order in which to solve them: what they are called, their points, stubs, hints and other words."""

import tomllib
from pathlib import Path

_TABLES = tomllib.loads(Path(__file__).with_name("puzzles.toml").read_text(encoding="utf-8"))
# The first need nothing but Python: notebook 00, and a page of the book; then NumPy, too, and a CUDA compiler: 02b.
SCANS, ARRAYS, KERNELS = (_TABLES[needs] for needs in ("scans", "arrays", "kernels"))
ALL = SCANS | ARRAYS | KERNELS
NAMES = tuple(ALL)
POINTS = {name: words["points"] for name, words in ALL.items()}


def title(name):
    """Return number and title of a puzzle: "2. A tree"."""
    return f"{NAMES.index(name) + 1}. {ALL[name]['title']}"


def following(name):
    """Return the puzzle after a puzzle, or None after the last one."""
    place = NAMES.index(name) + 1
    return NAMES[place] if place < len(NAMES) else None
