"""Answers to the puzzles about scans: wrong ones, with what is said of each, and right ones that import.

A wrong answer is the solution with some of its text replaced, or with another body.
"""

import functools
import inspect
import itertools
import textwrap

from bppsa_nb.puzzles import scans, workers
from bppsa_nb.puzzles.checker import Word

USED = {"functools": functools, "itertools": itertools, "scans": scans, "workers": workers, "Word": Word}
LOOP = "for i in range(1, len(a)):\n    a[i] = op(a[i - 1], a[i])\n    yield"
SAID = {  # a body, or old and new texts in turn; last, what is said
    "diamond": [
        ("return a @ b", "diamond(A, B) is A B and should be B A: what is closer to the loss is applied first"),
        ("return a", "diamond(A, B) is A and should be B A: each once"),
        ("return None", "diamond(A, B) is None (is a return missing?) and should be B A"),
        ("return b * a", "TypeError on line 2 of yours: unsupported operand type"),
        ("return a @ 2", "TypeError on line 2 of yours: A @ 2: only matrices and vectors"),
        ("return [b @ a, a.terms.clear()][0]", "it changes a, which others still read; work on a copy, and leave a as"),
        ("return diamond(a, b)", "RecursionError on line 2 of yours"),
    ],
    "totals": [
        ("[items[0]]", '[Word("")]', "[1:]", "[:-1]", "a list of 4, place 0: the identity should be 'a': nothin"),
        ("op(found[-1], item)", "op(item, found[-1])", "a list of 4, place 1: 'ba' should be 'ab': right letters,"),
        ("found[-1], item", "items[len(found) - 1], item", "a list of 4, place 2: 'bc' should be 'abc': 'a' is mi"),
        ("return found", "return found[-1]", "a list of 4: it returned 'abcd' and should return a list of 4, a to"),
        ("[items[0]]", "[op(items[0], items[0])]", "a list of 4, place 0: 'aa' should be 'a': 'a' is in it twice."),
        ("return found", "return [*found[1:], found[-1]]", "a list of 4, place 0: 'ab' should be 'a': 'b' is one "),
        ("return [op(item, item.text) for item in items]", "op was given 'a' as its second; it joins what the list he"),
        ("found = [items[0]]", "found = items", "append", "insert", "op(", "0, op(", "it changes items, which"),
        ("op):", "op, found=[]):", "= [items", "+= [items", "a list of 5: it returned ['a', 'ab', 'abc', 'abcd'"),
        ("return itertools.accumulate(items, op)", "a list of 4: it returned <itertools.accumulate object at"),
    ],
    "reduce": [
        ("a[:] = itertools.accumulate(a, op)\nyield", "level 1 makes 'abc' of 'ab', which is made on that very level"),
        (
            "while len(a) > 1:\n    a = [op(a[i], a[i + 1]) for i in range(0, len(a), 2)]\n    yield",
            "a list of 4, op has joined, but the list is as it was: a = ... makes another list",
        ),
        (LOOP, "a list of 4, it takes 3 levels, and 2 are enough"),
        ("while half < len(a)", "while half < 2", "a list of 4, place 3: 'cd' should be 'abcd': 'ab' is missing"),
        ("        yield\n", "", "a list of 4, it returned None and never paused; write yield behind each level"),
        ("while True:\n    yield", "a list of 4, it paused 33 times and went on. Does every loop of yours end?"),
        ("half < len(a)", "half <= len(a)", "len(a), 2", "3 * half, 2", "a list of 4, IndexError on line 5 of y"),
        ("a[:] = [op(a[0], a[1]), op(a[2], a[3])]\nyield", "a list of 4, the list has 2 places at the end; it works"),
        ("a[-1].text = a[0].text\nyield", "a list of 4, a word stays as it is; op(x, y) makes another one"),
        ("a[-1] = functools.reduce(op, [a.sort(key=str), *a])\nyield", "a list of 4, op was given None as its first"),
    ],
    "before": [
        ("return letters[:r]", "before('abcd', r=3, d=1) is 'abc' and should be '': what stands in its own block, 'ab"),
        ("return letters[: r + 1]", "before('abcd', r=3, d=1) is 'abcd' and should be '': 'abcd' is its own block, wh"),
        ("2 ** (d + 1)", "2**d", "before('abcd', r=3, d=1) is 'ab' and should be '': its block is 'abcd'"),
        ("2 ** (d + 1)", "4 if d else 2", "before('abcde', r=4, d=2) is 'abcd' and should be '': what stands in i"),
        ("r // size * size", "max(0, r + 1 - size)", "before('abcde', r=4, d=1) is 'a' and should be 'abcd': its "),
        ("return None", "before('abcd', r=3, d=1) is None (is a return missing?) and should"),
        ("return letters[: r // size * size]", "return []", "before('abcd', r=3, d=1) is [] and should be ''"),
    ],
    "down_sweep": [
        ("a[l], a[r] = a[r],", "a[l] = a[r]; a[r] =", "place 1: the identity should be 'a': nothing has come there"),
        ("reversed(range(levels))", "range(levels)", "a list of 4, place 0: 'ab' should be the identity: nothing stan"),
        ("op(a[r], a[l])", "a[r] + a[l]", "words are joined by op(x, y), and not by +"),
        ("        yield\n", "    yield\n", "a list of 8, level 1 makes 'abcdefg' of 'abcdef'"),
        ("op(a[r], a[l])", "a[l]", "a list of 4, place 3: 'c' should be 'abc': 'ab' is missing"),
        ("        yield\n", "", "a list of 4, it returned None and never paused"),
        ("a[:] = [None] * len(a)\nyield", "a list of 4, place 0 holds None and should hold '', a word of the list or"),
        ("in pairs(d):", "in [p for p in pairs(d) if p[1] % 2]:", "a list of 5, place 0: 'abcd' should be the ident"),
    ],
    "pairs": [
        ("return [(0, 1)]", "pairs(3, 0) is [(0, 1)] and should be [(0, 1), (2, 3)]"),
        ("n - half + 1", "n - 2 * half + 2", "pairs(4, 2) is [] and should be [(3, 4)]: a block whose right half is"),
        ("n - half + 1", "n + 1", "- 1, n)", "- 1, 99)", "(4, 5)] and should be [(0, 1), (2, 3)]: there is no place"),
        ("n - half + 1", "n + 1", "pairs(4, 0) is [(0, 1), (2, 3), (4, 4)] and should be [(0, 1), (2, 3)]: a block wi"),
        ("n - half + 1", "n - half", "half - 1, n)", "half, n) - 1", "should be [(0, 1), (2, 3)]: n is the last place"),
        ("return [(i, i + 1) for i in range(n)]", "[(0, 1), (1, 2), (2, 3)] and should be [(0, 1), (2, 3)]: blocks"),
        ("return [(0, n)]", "pairs(3, 0) is [(0, 3)] and should be [(0, 1), (2, 3)]: blocks have 2"),
        ("return None", "pairs(3, 0) is None (is a return missing?) and should be [(0, 1), (2, 3)], a li"),
        ("return iter([(0, 1)])", "and should be [(0, 1), (2, 3)], a list"),
        ('return [3, "x"]', "pairs(3, 0) is [3, 'x'] and should be"),
        ("return [(0, 1 // d)]", "ZeroDivisionError on line 2 of yours"),
    ],
    "affine": [
        ("return A @ B, A @ q + p", "affine((A, p), (B, q)) has the matrix A B and should have B A: a gradient g beco"),
        ("return B @ A, B @ p", "affine((A, p), (B, q)) has the loss term B p and should have B p + q"),
        ("return B @ A, B @ (p + q)", "affine((A, p), (B, q)) has the loss term B p + B q and should have B p + q"),
        ("return B @ A", "affine((A, p), (B, q)) is B A and should be a matrix and a loss term"),
        ("return [B @ A, B @ p + q]", "affine((A, p), (B, q)) is [B A, B p + q] and should be a matrix and a loss ter"),
    ],
    "chunks": [
        (LOOP, "a list of 8 in chunks of 4, it takes 7 levels, and 6 are enough"),
        ("firsts[1:]", "[]", "a list of 8 in chunks of 4, place 4: 'e' should be 'abcde': 'abcd' is missing"),
        ("len(a)) - 1):", "len(a)) - (first + length <= len(a))):", "'abcdefabcdefgh' should be 'abcdefgh': 'a' is in"),
        ("op(a[first - 1], a[last])", "a[last]", "in chunks of 4, place 7: 'efgh' should be 'abcdefgh': 'abcd' is mis"),
        (" if first + s < len(a)", "", "a list of 8 in chunks of 3, IndexError on line 5 of yours"),
        ("yield from workers.chunks(a, op, 2)", "in chunks of 3, level 1 makes 'cd', which is of two chunks and be"),
        (
            """
            for s in range(1, length):
                for i in range(s, len(a), length):
                    a[i] = op(a[i - 1], a[i])
                yield
            for first in range(length, len(a), length):
                total = a[first - 1]
                for i in range(first, min(first + length, len(a))):
                    a[i] = op(total, a[i])
                yield
            """,
            "a list of 8 in chunks of 2, the busiest chunk joins 1 + 2 + 2 + 2 = 7 times, level by level, while others",
        ),
    ],
    "exscan": [
        ("yield total", "yield run[-1] if run else identity", "which has 'ab': it hands 'b' to Exscan, and should"),
        ("append(total)", "append(op(total, word))", "'ab', place 0: 'a' should be the identity: nothing stands bef"),
        ("return found", "return [before, *run][: len(run)]", "which has 'ab', place 0 holds None and should"),
        ("identity if before is None else before", "identity", "'cde', place 0: the identity should be 'ab': nothing"),
        ("op(total, word)\n    return", "op(word, total)\n    return", "'cab' should be 'abc': right letters"),
        ("yield total", "yield total if run else 0", "rank 1 of 3, which has '': it hands 0 to Exscan, and should"),
        ("return found", "return None", "rank 0 of 3, which has 'ab': it returned None (is a return missing?), and"),
        ("return run", "rank 0 of 3, which has 'ab': it returned ['a', 'b'] and never asked; write before = yield tot"),
        ("return found", "run.clear()\n    return found", "it changes run, which others still read; work on a copy"),
        ("= yield total", "= (yield total), (yield total)", "it asks a second time, with 'ab'; Exscan is called once"),
        ("identity\n    for word in run:", "run[0]\n    for word in run[1:]:", "'': IndexError on line 2 of yours"),
    ],
}


def _answer(name, *change):
    """Make an answer of what is changed in a solution."""
    head, _, rest = inspect.getsource(scans.PUZZLES[name].solution).partition('    """')
    source = head + rest.partition('"""\n')[2]
    if len(change) == 1:
        given = "(A, p), (B, q) = first, second\n" if name == "affine" else ""
        source = head + textwrap.indent(given + textwrap.dedent(change[0]).strip("\n"), "    ")
    for old, new in zip(change[:-1:2], change[1::2], strict=True):
        assert old in source, (name, old)
        source = source.replace(old, new)
    exec(compile(source, f"a wrong {name}", "exec"), names := dict(USED))
    return names[name]


WRONG = [(name, _answer(name, *change), message) for name, rows in SAID.items() for *change, message in rows]

_TOTALS = "import itertools\n{}\n\n\ndef totals(items, op):\n    return {}\n"
_ALL = "list(itertools.accumulate(items, op))"
RIGHT = [  # with all that the page can import: name and source
    ("totals", _TOTALS.format("import math", f"{_ALL}[: math.floor(99.5)]")),
    ("totals", _TOTALS.format("import copy, string", f"{_ALL} if string.digits else copy.copy(items)")),
    ("totals", _TOTALS.format("import bisect, heapq\nfrom collections import deque", f"[*deque({_ALL})]")),
    ("totals", _TOTALS.format("from collections.abc import Callable", _ALL)),
    ("totals", _TOTALS.format("from functools import *", "[reduce(op, items[: i + 1]) for i in range(len(items))]")),
    ("totals", _TOTALS.format("from functools import partial", "[*partial(itertools.accumulate, func=op)(items)]")),
    ("totals", _TOTALS.format("from itertools import *", "[*accumulate(items, op)]")),
    ("diamond", "import functools, operator\ndiamond = lambda a, b: functools.reduce(operator.matmul, (b, a))"),
    ("affine", "from operator import *\naffine = lambda f, s: (matmul(s[0], f[0]), add(matmul(s[0], f[1]), s[1]))"),
    ("before", "import math\nbefore = lambda letters, r, d: letters[: math.floor(r / 2 ** (d + 1)) * 2 ** (d + 1)]"),
]
