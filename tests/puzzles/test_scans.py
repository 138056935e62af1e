"""The puzzles about scans: answers are judged and told why, and no check is too kind."""

import ast
import copy
import inspect
import itertools
import random
import subprocess
import sys

import puzzle_answers
import pytest

from bppsa_nb import puzzles
from bppsa_nb.puzzles import scans
from bppsa_nb.puzzles.checker import LETTERS, Join, Word
from bppsa_nb.puzzles.operators import Terms
from bppsa_nb.scan import levels


@pytest.mark.parametrize("answer", [*puzzle_answers.read("scans")], ids=str)
def test_answers_are_judged(answer):
    answer.judge()


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
