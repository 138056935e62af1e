"""Answers to the puzzles about scans: wrong ones, with what is said of each, and right ones that import."""

import functools
import itertools

from bppsa_nb.puzzles import scans, workers

WRONG = []


def told(name, message):
    def keep(answer):
        WRONG.append((name, answer, message))
        return answer

    return keep


told("diamond", "diamond(A, B) is A B and should be B A: what is closer to the loss is applied first")(
    lambda a, b: a @ b
)
told("diamond", "diamond(A, B) is A and should be B A: each once")(lambda a, b: a)
told("diamond", "diamond(A, B) is A B + B A and should be B A: each once")(lambda a, b: a @ b + b @ a)
told("diamond", "diamond(A, B) is B A A and should be B A: each once")(lambda a, b: b @ a @ a)
told("diamond", "diamond(A, B) is None and should be B A")(lambda a, b: None)
told("diamond", "TypeError on line 1 of yours: unsupported operand type")(lambda a, b: b * a)
told("diamond", "TypeError on line 1 of yours: A @ 2: only matrices and vectors")(lambda a, b: a @ 2)


@told("totals", "a list of 4, place 0: the identity should be 'a': nothing has come there, or it was over")
def exclusive(items, op):
    from bppsa_nb.puzzles.checker import Word

    found = [Word("")]
    for item in items[:-1]:
        found.append(op(found[-1], item))
    return found


@told("totals", "a list of 4, place 1: 'ba' should be 'ab': right letters, wrong order.")
def from_the_right(items, op):
    found = [items[0]]
    for item in items[1:]:
        found.append(op(item, found[-1]))
    return found


@told("totals", "a list of 4, place 2: 'bc' should be 'abc': 'a' is missing")
def neighbors(items, op):
    return [items[0], *(op(a, b) for a, b in zip(items, items[1:], strict=False))]


@told("totals", "a list of 4: it returned 'abcd' and should return a list of 4, a total per item")
def only_the_last(items, op):
    total = items[0]
    for item in items[1:]:
        total = op(total, item)
    return total


@told("totals", "a list of 4, place 0: 'aa' should be 'a': 'a' is in it twice.")
def first_twice(items, op):
    found, total = [], items[0]
    for item in items:
        total = op(total, item)
        found.append(total)
    return found


@told("totals", "a list of 4, place 0: 'ab' should be 'a': 'b' is one too far.")
def one_too_far(items, op):
    found, total = [], items[0]
    for item in items[1:]:
        total = op(total, item)
        found.append(total)
    return [*found, total]


@told("totals", "op was given 'a' as its second; it joins what the list held and what op returned")
def texts(items, op):
    return [op(item, item.text) for item in items]


@told("reduce", "a list of 4, level 1 makes 'abc' of 'ab', which is made on that very level")
def one_after_the_other(a, op):
    for i in range(1, len(a)):
        a[i] = op(a[i - 1], a[i])
    yield


@told("reduce", "a list of 4, op has joined, but the list is as it was: a = ... makes another list")
def another_list(a, op):
    while len(a) > 1:
        a = [op(a[i], a[i + 1]) for i in range(0, len(a), 2)]
        yield


@told("reduce", "a list of 4, it takes 3 levels, and 2 are enough")
def a_level_each(a, op):
    for i in range(1, len(a)):
        a[i] = op(a[i - 1], a[i])
        yield


@told("reduce", "a list of 4, place 3: 'dcba' should be 'abcd': right letters, wrong order.")
def reversed_tree(a, op):
    half = 1
    while half < len(a):
        for r in range(2 * half - 1, len(a), 2 * half):
            a[r] = op(a[r], a[r - half])
        yield
        half *= 2


@told("reduce", "a list of 4, place 3: 'cd' should be 'abcd': 'ab' is missing")
def first_level_only(a, op):
    for r in range(1, len(a), 2):
        a[r] = op(a[r - 1], a[r])
    yield


@told("reduce", "a list of 4, it returned None and never paused; write yield behind each level")
def never_pauses(a, op):
    half = 1
    while half < len(a):
        for r in range(2 * half - 1, len(a), 2 * half):
            a[r] = op(a[r - half], a[r])
        half *= 2


@told("reduce", "a list of 4, it joins 4 times, and 3 are enough")
def everywhere(a, op):
    half = 1
    while half < len(a):
        before = list(a)
        for r in range(half, len(a)):
            if (r + 1) % half == 0:
                a[r] = op(before[r - half], before[r])
        yield
        half *= 2


@told("reduce", "a list of 4, it paused 33 times and went on. Does every loop of yours end?")
def no_end(a, op):
    while True:
        yield


@told("reduce", "a list of 4, IndexError on line 5 of yours: list index out of range")
def out_of_range(a, op):
    half = 1
    while half <= len(a):
        a[2 * half - 1] = op(a[half - 1], a[2 * half - 1])
        yield
        half *= 2


@told("reduce", "a list of 4, the list has 2 places at the end; it works in place, and leaves them 4")
def shorter(a, op):
    a[:] = [op(a[i], a[i + 1]) for i in range(0, len(a) - 1, 2)]
    yield


told("before", "before('abcd', r=3, d=1) is 'abc' and should be '': what stands in its own block, 'abcd', it does not")(
    lambda letters, r, d: letters[:r]
)
told("before", "before('abcd', r=3, d=1) is 'abcd' and should be '': 'abcd' is its own block, which it held before")(
    lambda letters, r, d: letters[: r + 1]
)
told("before", "before('abcd', r=3, d=1) is 'ab' and should be '': its block is 'abcd'")(
    lambda letters, r, d: letters[: r // 2**d * 2**d]
)
told("before", "before('abcde', r=4, d=2) is 'abcd' and should be '': what stands in its own block, 'abcde'")(
    lambda letters, r, d: letters[: r // 4 * 4] if d else letters[: r // 2 * 2]
)
told("before", "before('abcd', r=1, d=0) is 'ab' and should be '': 'ab' is its own block")(
    lambda letters, r, d: letters[: (r + 1) // 2 ** (d + 1) * 2 ** (d + 1)] if d == 0 else ""
)
told("before", "before('abcde', r=4, d=1) is 'a' and should be 'abcd': its block is 'e'")(
    lambda letters, r, d: letters[: max(0, r + 1 - 2 ** (d + 1))]
)
told("before", "before('abcd', r=3, d=1) is None and should be ''")(lambda letters, r, d: None)


@told("down_sweep", "a list of 4, place 3: 'cab' should be 'abc': right letters, wrong order. Which of the two comes")
def blellochs_own(a, op, pairs, levels):
    for d in reversed(range(levels)):
        for l, r in pairs(d):
            a[l], a[r] = a[r], op(a[l], a[r])
        yield


@told("down_sweep", "a list of 4, place 1: the identity should be 'a': nothing has come there, or it was over")
def overwritten(a, op, pairs, levels):
    for d in reversed(range(levels)):
        for l, r in pairs(d):
            a[l] = a[r]
            a[r] = op(a[r], a[l])
        yield


@told("down_sweep", "a list of 4, place 0: 'a' should be the identity: nothing stands before it")
def one_level_less(a, op, pairs, levels):
    for d in reversed(range(1, levels)):
        for l, r in pairs(d):
            a[l], a[r] = a[r], op(a[r], a[l])
        yield


@told("down_sweep", "a list of 4, place 0: 'ab' should be the identity: nothing stands before it")
def from_below(a, op, pairs, levels):
    for d in range(levels):
        for l, r in pairs(d):
            a[l], a[r] = a[r], op(a[r], a[l])
        yield


@told("down_sweep", "a list of 4, place 0: 'a' should be the identity: nothing stands before it")
def left_half_forgotten(a, op, pairs, levels):
    for d in reversed(range(levels)):
        for l, r in pairs(d):
            a[r] = op(a[r], a[l])
        yield


@told("down_sweep", "words are joined by op(x, y), and not by +")
def by_plus(a, op, pairs, levels):
    for d in reversed(range(levels)):
        for l, r in pairs(d):
            a[l], a[r] = a[r], a[r] + a[l]
        yield


@told("down_sweep", "a list of 8, level 1 makes 'abcdefg' of 'abcdef'")
def one_pause(a, op, pairs, levels):
    for d in reversed(range(levels)):
        for l, r in pairs(d):
            a[l], a[r] = a[r], op(a[r], a[l])
    yield


@told("down_sweep", "a list of 4, place 3: 'c' should be 'abc': 'ab' is missing")
def right_half_not_joined(a, op, pairs, levels):
    for d in reversed(range(levels)):
        for l, r in pairs(d):
            a[l], a[r] = a[r], a[l]
        yield


@told("down_sweep", "a list of 4, it returned None and never paused")
def no_generator(a, op, pairs, levels):
    for d in reversed(range(levels)):
        for l, r in pairs(d):
            a[l], a[r] = a[r], op(a[r], a[l])


@told("down_sweep", "a list of 4, place 0 holds None and should hold '', a word of the list or of op")
def forgets(a, op, pairs, levels):
    a[:] = [None] * len(a)
    yield


told("pairs", "pairs(3, 0) is [(0, 1)] and should be [(0, 1), (2, 3)]")(lambda n, d: [(0, 1)])
told("pairs", "pairs(4, 2) is [] and should be [(3, 4)]: a block whose right half is cut short has a pair, too")(
    lambda n, d: [(i + 2**d - 1, i + 2 ** (d + 1) - 1) for i in range(0, n - 2 ** (d + 1) + 2, 2 ** (d + 1))]
)
told("pairs", "pairs(4, 0) is [(0, 1), (2, 3), (4, 5)] and should be [(0, 1), (2, 3)]: there is no place after 4")(
    lambda n, d: [(i + 2**d - 1, i + 2 ** (d + 1) - 1) for i in range(0, n + 1, 2 ** (d + 1))]
)
told("pairs", "pairs(4, 0) is [(0, 1), (2, 3), (4, 4)] and should be [(0, 1), (2, 3)]: a block without a right half")(
    lambda n, d: [(i + 2**d - 1, min(i + 2 ** (d + 1) - 1, n)) for i in range(0, n + 1, 2 ** (d + 1))]
)
told("pairs", "pairs(3, 0) is [(0, 1)] and should be [(0, 1), (2, 3)]: n is the last place, so there are 4")(
    lambda n, d: [(i + 2**d - 1, min(i + 2 ** (d + 1), n) - 1) for i in range(0, n - 2**d, 2 ** (d + 1))]
)
told("pairs", "pairs(3, 0) is [(0, 1), (1, 2), (2, 3)] and should be [(0, 1), (2, 3)]: blocks have 2 places")(
    lambda n, d: [(i, i + 1) for i in range(n)]
)
told("pairs", "pairs(3, 0) is [(0, 3)] and should be [(0, 1), (2, 3)]: blocks have 2")(lambda n, d: [(0, n)])
told("pairs", "pairs(3, 0) is None and should be [(0, 1), (2, 3)], a list")(lambda n, d: None)
told("pairs", "and should be [(0, 1), (2, 3)], a list")(lambda n, d: iter([(0, 1)]))
told("pairs", "pairs(3, 0) is [3, 'x'] and should be")(lambda n, d: [3, "x"])
told("pairs", "ZeroDivisionError on line 1 of yours")(lambda n, d: [(0, 1 // d)])

told("affine", "affine((A, p), (B, q)) has the matrix A B and should have B A: a gradient g becomes A g + p")(
    lambda first, second: (first[0] @ second[0], first[0] @ second[1] + first[1])
)
told("affine", "affine((A, p), (B, q)) has the loss term B p and should have B p + q")(
    lambda first, second: (second[0] @ first[0], second[0] @ first[1])
)
told("affine", "affine((A, p), (B, q)) has the loss term p + q and should have B p + q")(
    lambda first, second: (second[0] @ first[0], first[1] + second[1])
)
told("affine", "affine((A, p), (B, q)) has the loss term A q + p and should have B p + q")(
    lambda first, second: (second[0] @ first[0], first[0] @ second[1] + first[1])
)
told("affine", "affine((A, p), (B, q)) has the loss term B p + B q and should have B p + q")(
    lambda first, second: (second[0] @ first[0], second[0] @ (first[1] + second[1]))
)
told("affine", "affine((A, p), (B, q)) is B A and should be a matrix and a loss term")(
    lambda first, second: second[0] @ first[0]
)


@told("chunks", "a list of 8 in chunks of 4, it takes 7 levels, and 6 are enough")
def one_at_a_time(a, op, length):
    for i in range(1, len(a)):
        a[i] = op(a[i - 1], a[i])
        yield


@told("chunks", "a list of 8 in chunks of 4, place 4: 'e' should be 'abcde': 'abcd' is missing")
def chunks_alone(a, op, length):
    for s in range(1, length):
        for i in range(s, len(a), length):
            a[i] = op(a[i - 1], a[i])
        yield


@told("chunks", "a list of 8 in chunks of 3, place 7: 'abcdefabcdefgh' should be 'abcdefgh': 'a' is in it twice.")
def last_place_twice(a, op, length):
    firsts = range(0, len(a), length)
    for s in range(1, length):
        for i in (first + s for first in firsts if first + s < len(a)):
            a[i] = op(a[i - 1], a[i])
        yield
    for first in firsts[1:]:
        last = min(first + length, len(a)) - 1
        a[last] = op(a[first - 1], a[last])
        yield
    for first in firsts[1:]:
        for i in range(first, min(first + length, len(a)) - (first + length <= len(a))):
            a[i] = op(a[first - 1], a[i])
    yield


@told("chunks", "a list of 8 in chunks of 3, place 6: 'defg' should be 'abcdefg': 'abc' is missing")
def ends_not_joined(a, op, length):
    firsts = range(0, len(a), length)
    for s in range(1, length):
        for i in (first + s for first in firsts if first + s < len(a)):
            a[i] = op(a[i - 1], a[i])
        yield
    totals = [a[first - 1] for first in firsts]
    for first, total in list(zip(firsts, totals, strict=True))[1:]:
        for i in range(first, min(first + length, len(a))):
            a[i] = op(total, a[i])
    yield


@told("chunks", "a list of 8 in chunks of 4, place 4: 'eabcd' should be 'abcde': right letters, wrong order.")
def behind(a, op, length):
    firsts = range(0, len(a), length)
    for s in range(1, length):
        for i in (first + s for first in firsts if first + s < len(a)):
            a[i] = op(a[i - 1], a[i])
        yield
    for first in firsts[1:]:
        for i in range(first, min(first + length, len(a))):
            a[i] = op(a[i], a[first - 1])
        yield


@told("chunks", "a list of 8 in chunks of 3, IndexError on line 5 of yours")
def no_short_chunk(a, op, length):
    for s in range(1, length):
        for first in range(0, len(a), length):
            a[first + s] = op(a[first + s - 1], a[first + s])
        yield
    for first in range(length, len(a), length):
        for i in range(first, first + length - 1):
            a[i] = op(a[first - 1], a[i])
        a[first + length - 1] = op(a[first - 1], a[first + length - 1])
        yield


@told(
    "chunks", "a list of 8 in chunks of 3, level 1 makes 'cd', which is of two chunks and begins within one; they begin"
)
def ignores_length(a, op, length):
    yield from workers.chunks(a, op, 2)


@told(
    "chunks", "a list of 8 in chunks of 3, level 1 makes 'cd', which is of two chunks and begins within one; they begin"
)
def a_tree(a, op, length):
    half = 1
    while half < len(a):
        for r in range(2 * half - 1, len(a), 2 * half):
            a[r] = op(a[r - half], a[r])
        yield
        half *= 2
    while half := half // 2:
        for r in range(3 * half - 1, len(a), 2 * half):
            a[r] = op(a[r - half], a[r])
        yield


@told(
    "chunks",
    "a list of 8 in chunks of 2, the busiest chunk joins 1 + 2 + 2 + 2 = 7 times, level by level, while others",
)
def repairs_one_whole_chunk_after_the_other(a, op, length):
    for s in range(1, length):
        for i in range(s, len(a), length):
            a[i] = op(a[i - 1], a[i])
        yield
    for first in range(length, len(a), length):
        total = a[first - 1]
        for i in range(first, min(first + length, len(a))):
            a[i] = op(total, a[i])
        yield


@told("reduce", "a list of 4, it takes 4 levels, and 2 are enough")
def behind_the_list(a, op):
    total = a[0]
    for word in a[1:]:
        total = op(total, word)
        yield
    a[-1] = total


def _from(total, run, op):
    found = []
    for word in run:
        found.append(total)
        total = op(total, word)
    return found


def exscan_by(total_of, results_of):
    def exscan(run, op, identity):
        total = identity
        for word in run:
            total = op(total, word)
        before = yield total_of(run, total, identity)
        return results_of(before, run, op, identity)

    return exscan


def inclusive(before, run, op, identity):
    total, found = identity if before is None else before, []
    for word in run:
        total = op(total, word)
        found.append(total)
    return found


def right(before, run, op, identity):
    return _from(identity if before is None else before, run, op)


def total(run, total, identity):
    return total


told("exscan", "rank 0 of 3, which has 'ab': it hands 'b' to Exscan, and should hand 'ab', all that it has")(
    exscan_by(lambda run, total, identity: run[-1] if run else identity, right)
)
told("exscan", "rank 0 of 3, which has 'ab', place 0: 'a' should be the identity: nothing stands before it")(
    exscan_by(total, inclusive)
)
told("exscan", "rank 0 of 3, which has 'ab', place 0 holds None and should hold ''")(
    exscan_by(total, lambda before, run, op, identity: [before, *run][: len(run)])
)
told("exscan", "rank 1 of 3, which has 'cde', place 0: the identity should be 'ab': nothing has come")(
    exscan_by(total, lambda before, run, op, identity: _from(identity, run, op))
)
told("exscan", "rank 1 of 3, which has 'cde', place 1: 'cab' should be 'abc': right letters, wrong order.")(
    exscan_by(total, lambda before, run, op, identity: right(before, run, lambda a, b: op(b, a), identity))
)
told("exscan", "rank 1 of 3, which has '': it hands 0 to Exscan, and should hand ''")(
    exscan_by(lambda run, total, identity: total if run else 0, right)
)
told("exscan", "rank 0 of 3, which has 'ab': it returned None, and should return a list of 2")(
    exscan_by(total, lambda before, run, op, identity: None)
)
told("exscan", "rank 0 of 3, which has 'ab': it returned ['a', 'b'] and never asked; write before = yield total")(
    lambda run, op, identity: run
)


@told("exscan", "it changes run, which others still read; work on a copy, and leave run as it is")
def in_place(run, op, identity):
    for i in range(1, len(run)):
        run[i] = op(run[i - 1], run[i])
    before = yield run[-1] if run else identity
    before = identity if before is None else before
    return [before, *(op(before, word) for word in run[:-1])][: len(run)]


@told("totals", "it changes items, which others still read; work on a copy, and leave items as it is")
def totals_in_place(items, op):
    for i in range(1, len(items)):
        items[i] = op(items[i - 1], items[i])
    return items


@told("reduce", "a list of 4, a word stays as it is; op(x, y) makes another one")
def letters_changed(a, op):
    for word in a[:-1]:
        a[-1].text = word.text + a[-1].text
    yield


told("diamond", "it changes a, which others still read; work on a copy, and leave a as it is")(
    lambda a, b: [b @ a, a.terms.clear()][0]
)


@told("exscan", "rank 0 of 3, which has 'ab': it asks a second time, with 'ab'; Exscan is called once")
def asks_twice(run, op, identity):
    word = op(run[0], run[1]) if len(run) == 2 else identity
    yield word
    yield word


@told("exscan", "rank 1 of 3, which has '': IndexError on line 3 of yours: list index out of range")
def needs_a_word(run, op, identity):
    total = run[0]
    for word in run[1:]:
        total = op(total, word)
    before = yield total
    return right(before, run, op, identity)


@told(
    "totals",
    "a list of 5: it returned ['a', 'ab', 'abc', 'abcd', 'a', 'ab', 'abc', 'abcd', 'abcde'] and should return a list",
)
def remembers(items, op, found=[]):  # noqa: B006
    found += itertools.accumulate(items, op)
    return found


told("totals", "a list of 4: it returned <itertools.accumulate object at")(itertools.accumulate)
told("before", "before('abcd', r=3, d=1) is [] and should be ''")(
    lambda letters, r, d: list(letters[: r // 2 ** (d + 1) * 2 ** (d + 1)])
)
told("affine", "affine((A, p), (B, q)) is [B A, B p + q] and should be a matrix and a loss term")(
    lambda first, second: [second[0] @ first[0], second[0] @ first[1] + second[1]]
)
told("diamond", "RecursionError on line 1 of yours")(lambda a, b: (again := lambda: again())())


@told("reduce", "a list of 4, op was given None as its first")
def reduce_of_what_sort_returns(a, op):
    a[-1] = functools.reduce(op, [a.sort(key=str), *a])
    yield


@told("down_sweep", "a list of 5, place 0: 'abcd' should be the identity: nothing stands before it")
def powers_of_two_only(a, op, pairs, levels):
    for d in reversed(range(levels)):
        for r in range(2 ** (d + 1) - 1, len(a), 2 ** (d + 1)):
            a[r - 2**d], a[r] = a[r], op(a[r], a[r - 2**d])
        yield


@told("reduce", "a list of 4, it joins 4 times, and 3 are enough")
def joins_for_nothing(a, op):
    op(a[0], a[-1])
    yield from scans.reduce(a, op)


_TOTALS = "{}\n\n\ndef totals(items, op):\n    return {}\n"
_ALL = "list(itertools.accumulate(items, op))"
RIGHT = [  # with all that the page can import: name and source
    ("totals", _TOTALS.format("import itertools, math", f"{_ALL}[: math.floor(99.5)]")),
    ("totals", _TOTALS.format("import copy, itertools, string", f"{_ALL} if string.digits else copy.copy(items)")),
    ("totals", _TOTALS.format("import bisect, heapq, itertools\nfrom collections import deque", f"[*deque({_ALL})]")),
    ("totals", _TOTALS.format("import itertools\nfrom collections.abc import Callable", _ALL)),
    ("totals", _TOTALS.format("from functools import *", "[reduce(op, items[: i + 1]) for i in range(len(items))]")),
    (
        "totals",
        _TOTALS.format(
            "from itertools import *\nfrom functools import partial", "[*partial(accumulate, func=op)(items)]"
        ),
    ),
    ("diamond", "import functools, operator\ndiamond = lambda a, b: functools.reduce(operator.matmul, (b, a))"),
    (
        "affine",
        "from operator import add, matmul as m\naffine = lambda f, s: (m(s[0], f[0]), add(m(s[0], f[1]), s[1]))",
    ),
    ("before", "import math\nbefore = lambda letters, r, d: letters[: math.floor(r / 2 ** (d + 1)) * 2 ** (d + 1)]"),
]
