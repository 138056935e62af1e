"""Answers to puzzles, right and wrong ones, as learners write them: the rows of `tests/puzzles/*.toml`."""

import linecache
import re
import textwrap
import tomllib
from html import unescape
from pathlib import Path
from typing import NamedTuple

from bppsa_nb import puzzles


class Answer(NamedTuple):
    """An answer's source, and what is said of it: why it is wrong, or what it takes more than it must."""

    name: str
    source: str
    right: bool
    said: str

    def __str__(self):
        return self.name

    def judge(self):
        """See that it is judged as it should be."""
        verdict = puzzles.puzzle(self.name).check(made(self.name, self.source))
        assert bool(verdict) == self.right and self.said in verdict.message, verdict
        assert verdict.message[:40] in unescape(verdict._repr_html_())


def read(file):
    """Yield the answers in a file; of those that are wrong or take `more`, the last text of a row is what is said."""
    path = Path(__file__).with_name("puzzles") / f"{file}.toml"
    for name, kinds in tomllib.loads(path.read_text(encoding="utf-8")).items():
        for kind, rows in kinds.items():
            for row in rows:
                *change, said = row if kind != "right" else [*row, ""]
                yield Answer(name, source(name, *change), kind != "wrong", said)


def source(name, *change):
    """Return an answer: a program, a body, or the solution with old and new texts in turn replaced."""
    text = puzzles.puzzle(name).text() + "\n"
    if len(change) == 1:
        own = re.search(rf"^(def {name}\(|{name} = )", change[0], re.MULTILINE)
        text = change[0] if own else text.partition(":\n")[0] + ":\n" + textwrap.indent(change[0], "    ")
    for old, new in zip(change[:-1:2], change[1::2], strict=True):
        assert old in text, (name, old)
        text = text.replace(old, new)
    return f"import functools, itertools\n{text}"


def made(name, source):
    """Run source as a notebook's cell, with what answers may use; return the answer."""
    path, source = "/folder/ipykernel_1/23.py", f"\n\n{source}"
    exec(puzzles.answers.GIVEN, names := {})
    exec(compile(source, path, "exec"), names)
    linecache.cache[path] = len(source), None, source.splitlines(True), path
    return names[name]
