"""The puzzles about scans: solutions pass, wrong answers fail and are told why, and no check is too kind."""

import ast
import copy
import inspect
import itertools
import random
import subprocess
import sys
from html import unescape

import numpy as np
import pytest
import styles
from wrong_scans import MORE, ONLY_HERE, RIGHT, WRONG

from bppsa_nb import puzzles
from bppsa_nb.puzzles import scans
from bppsa_nb.puzzles.checker import LETTERS, Join, Word
from bppsa_nb.puzzles.operators import Terms
from bppsa_nb.scan import levels


@pytest.mark.parametrize("name", scans.PUZZLES)
def test_solutions_are_right_and_stubs_are_not(name):
    puzzle, names = scans.PUZZLES[name], {}
    assert puzzle.check(puzzle.solution).right and puzzle.solution.__name__ == name and len(puzzle.hints) == 3
    exec(puzzle.stub, names)
    assert not puzzle.check(names[name]).right
    assert not puzzle.check(None).right and not puzzle.check(lambda *_: None).right


@pytest.mark.parametrize(("name", "answer", "message"), WRONG)
def test_wrong_answers_are_told_why(name, answer, message):
    verdict = scans.PUZZLES[name].check(answer)
    assert not verdict and message in verdict.message and message[:40] in unescape(verdict._repr_html_())


def test_right_answers_that_take_more_than_they_must_are_told_how_many():
    for name, source, said in MORE:
        exec(source, names := {})
        verdict = scans.PUZZLES[name].check(names[name])
        assert verdict and f"It takes more than it must: {said}" in verdict.message, verdict


@pytest.mark.parametrize(("name", "source"), ONLY_HERE)
def test_right_answers_may_use_what_the_page_has_not(name, source):
    exec(source, names := {})
    assert scans.PUZZLES[name].check(names[name])


def chunks_by_totals(a, op, length):
    """Keep totals elsewhere, and repair the ends with the rest."""
    n = len(a)
    for s in range(1, length):
        for i in (i for i in range(n) if i % length == s):
            a[i] = op(a[i - 1], a[i])
        yield
    totals = [a[min(first + length, n) - 1] for first in range(0, n, length)]
    for c in range(1, len(totals)):
        totals[c] = op(totals[c - 1], totals[c])
        yield
    a[length:] = [op(totals[i // length - 1], a[i]) for i in range(length, n)]
    yield


def test_right_answers_import_what_they_like_or_are_written_otherwise():
    chunks = inspect.getsource(chunks_by_totals).replace("_by_totals", "")
    for name, source in [*RIGHT, *styles.RIGHT, ("chunks", chunks)]:
        exec(source, names := {})
        assert (verdict := scans.PUZZLES[name].check(names[name])), verdict


class Mute(Exception):
    def __str__(self):
        raise RuntimeError

    __repr__ = __str__


def test_what_cannot_be_printed_or_is_long_is_told_in_a_sentence():
    def raises(items, op):
        raise Mute

    for answer, said in ((raises, "Mute on line 2 of yours: without words"), (lambda items, op: Mute(), "a Mute")):
        assert said in puzzles.check("totals", answer).message
    assert len(puzzles.check("totals", lambda items, op: 10**6 * ["x"]).message) < 1000


def test_letters_are_those_that_it_is_given():
    answer = lambda letters, r, d: scans.LETTERS[: r >> (d + 1) << (d + 1)]  # noqa: E731
    assert not puzzles.check("before", answer)


def test_places_may_be_numpy_s():
    def pairs(n, d):
        return [(l, min(l + 2**d, n)) for l in np.arange(2**d - 1, n, 2 * 2**d)]

    assert puzzles.check("pairs", pairs)


def test_places_are_those_of_the_package():
    for n in range(40):
        for d in range(7):
            assert scans.pairs(n, d) == levels.pairs(n, d)


def test_it_needs_nothing_but_python():
    program = "import sys; from bppsa_nb.puzzles.scans import PUZZLES; "
    program += "print([each.check(each.solution).right for each in PUZZLES.values()]"
    program += ", {'numpy', 'scipy', 'numba', 'IPython'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{[True] * len(scans.PUZZLES)} set()"


def loop(name, answer):
    """Whether an answer does what a loop over letters does, for longer lists than the check tries."""
    letters = LETTERS + "".join(map(chr, range(0x3B1, 0x3B1 + 15)))
    op = lambda a, b: Word(a.text + b.text)  # noqa: E731
    for n in range(1, 41):
        a, last, wanted = [Word(letter) for letter in letters[:n]], n - 1, [letters[:i] for i in range(n)]
        if name == "reduce":
            if n & last:
                continue
            steps, wanted = answer(a, op), [None] * last + [letters[:n]]
        elif name == "chunks":
            steps, wanted = answer(a, op, 1 + n // 3), [letters[: i + 1] for i in range(n)]
        elif name == "down_sweep":
            for d in range(levels.up_levels(last)):
                for l, r in levels.pairs(last, d):
                    a[r] = op(a[l], a[r])
            a[-1] = Word("")
            steps = answer(a, op, lambda d, n=last: levels.pairs(n, d), levels.down_levels(last))
        else:
            steps = scans.sweeps_by(answer)(a, op)
        list(itertools.islice(steps, 999))
        if len(a) != n or any(w is not None and x.text != w for x, w in zip(a, wanted, strict=True)):
            return False
    return True


class Mutation(ast.NodeTransformer):
    """Change one thing of a program: a number, a name, an operator, an order."""

    def __init__(self, at, rng):
        self.at, self.rng, self.seen = at, rng, -1

    def generic_visit(self, node):
        node = super().generic_visit(node)
        fits = isinstance(node, (ast.Constant, ast.Name, ast.BinOp, ast.Call, ast.Tuple, ast.Compare))
        if not fits or not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            return node
        self.seen += 1
        return self.change(copy.deepcopy(node)) if self.seen == self.at else node

    def change(self, node):
        if isinstance(node, ast.Constant) and type(node.value) is int:
            node.value += self.rng.choice((-1, 1))
        elif isinstance(node, ast.Name):
            names = ("l", "r", "d", "n", "half", "first", "i", "last", "s")
            node.id = self.rng.choice([name for name in names if name != node.id])
        elif isinstance(node, ast.BinOp):
            node.op = self.rng.choice((ast.Add(), ast.Sub(), ast.Mult(), ast.FloorDiv()))
        elif isinstance(node, ast.Compare):
            node.ops = [self.rng.choice((ast.LtE(), ast.Lt(), ast.Gt(), ast.NotEq()))]
        elif isinstance(node, (ast.Call, ast.Tuple)):
            (node.args if isinstance(node, ast.Call) else node.elts).reverse()
        return node


@pytest.mark.parametrize("name", ["reduce", "down_sweep", "pairs", "chunks"])
def test_what_the_loop_refuses_is_never_accepted(name):
    source, rng, found = ast.parse(inspect.getsource(scans.PUZZLES[name].solution)), random.Random(0), [0, 0]
    counter = Mutation(-2, rng)
    counter.visit(copy.deepcopy(source))
    for mutant in range(150):
        tree = copy.deepcopy(source)
        for _ in range(1 + mutant % 2):
            tree = ast.fix_missing_locations(Mutation(rng.randrange(counter.seen + 1), rng).visit(tree))
        names = {}
        try:
            exec(compile(tree, "mutant", "exec"), names)
            answer = names[name]
            accepted = scans.PUZZLES[name].check(answer).right
        except (SyntaxError, TypeError, KeyError):
            continue
        found[accepted] += 1
        if accepted:
            assert loop(name, answer), ast.unparse(tree)
    assert found[False] >= 60


def test_the_check_sees_what_was_made_too_early():
    a, b, c = map(Word, "abc")
    op = Join([a, b, c])
    ab = op(a, b)
    assert op.early is None and (ab.text, ab.level) == ("ab", 1)
    op.level = 2
    assert op(ab, c).text == "abc" and op.early is None
    op(op(ab, c), Word(""))
    op(op(a, c), c)
    assert op.early.text == "acc"
    op = Join([a, b, c])
    op(a, op(b, c))
    assert op.early.text == "abc"


def test_terms_are_free():
    A, B, p = map(Terms, "ABp")
    assert (A + B) @ p == A @ p + B @ p == B @ p + A @ p
    assert A @ B != B @ A and repr(A @ B @ p + p) == "A B p + p" and (A @ B) @ p == A @ (B @ p)
