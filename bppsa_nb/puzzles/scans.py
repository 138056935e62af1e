"""Puzzles about scans, in pure Python: from ⋄ to Algorithm 1 for any length; `workers` has those that follow."""

from bppsa_nb.puzzles import checker, workers
from bppsa_nb.puzzles.checker import IDENTITY, LENGTHS, LETTERS, Task, Word, Wrong, call, shown, told, words

PUZZLES = checker.Puzzles(workers.PUZZLES)


def diamond(a, b):
    """Return a ⋄ b, of two matrices. `a` is the one closer to the loss. You have ``@``."""
    return b @ a


@PUZZLES.rule_of(
    diamond,
    "Multiplication in reverse",
    "return a @ b",
    "The gradient g at the end comes first in the list, then the matrix A of the last step. What is the "
    "gradient one step earlier?",
    "It is A g. So g ⋄ A = A g.",
    "A ⋄ B = B A, for any two.",
)
def _rule_diamond(answer):
    A, B, g = checker.Terms("A"), checker.Terms("B"), checker.Terms("g")
    for a, b in ((A, B), (g, A), (B @ A, B)):
        found, wanted = call(answer, diamond, a, b), b @ a
        if not isinstance(found, checker.Terms) or found != wanted:
            swapped = isinstance(found, checker.Terms) and found == a @ b
            why = "what is closer to the loss is applied first, so it stands on the right" if swapped else "each once"
            raise Wrong(f"diamond({a}, {b}) is {found} and should be {wanted}: {why}")
    return "Right: multiplication in reverse. g ⋄ A ⋄ B is B A g, whichever ⋄ comes first."


def totals(items, op):
    """Return the running totals of a list: the first item, the first two joined, the first three, and so on.

    ``op(a, b)`` joins two, a before b; here it writes one word behind the other.
    """
    found = [items[0]]
    for item in items[1:]:
        found.append(op(found[-1], item))
    return found


@PUZZLES.rule_of(
    totals,
    "Running totals",
    "return items",
    "A loop with one variable, the total so far.",
    "Start with the first item. Every total is the one before it, joined with the next item.",
    "for item in items[1:]: found.append(op(found[-1], item))",
)
def _rule_totals(answer):
    for n in LENGTHS:
        found = call(answer, totals, words(LETTERS[:n]), checker.Join(n * n))
        if not isinstance(found, list) or len(found) != n:
            raise Wrong(f"a list of {n}: it returned {shown(found)} and should return a list of {n}, a total per item")
        for place, word in enumerate(found):
            if not isinstance(word, Word) or word.text != LETTERS[: place + 1]:
                raise Wrong(f"a list of {n}, {told(place, word, LETTERS[: place + 1])}")
    return f"Right for every list of up to {max(LENGTHS)}. Python has it, too: list(itertools.accumulate(items, op))."


def reduce(a, op):
    """Join the whole list into its last place, by a tree.

    Neighbors are joined first, then neighboring pairs, then fours: half as many joins on every level. It works in
    place, and pauses with ``yield`` after each level. The joins of a level run at once: none may need what another
    one makes. The list has 1, 2, 4, 8 or so on places.
    """
    half = 1
    while half < len(a):
        for r in range(2 * half - 1, len(a), 2 * half):
            a[r] = op(a[r - half], a[r])
        yield
        half *= 2


@PUZZLES.rule_of(
    reduce,
    "A tree",
    "yield",
    "After a level, every block of 2, then 4, then 8 places has its whole word in its last place.",
    "On the level that makes blocks of 2 * half, the left half's word stands `half` places before the right one's.",
    "for r in range(2 * half - 1, len(a), 2 * half): a[r] = op(a[r - half], a[r])",
)
def _rule_reduce(answer):
    tasks = []
    for n in (4, 8, 2, 1, 16, 32):
        start, wanted = words(LETTERS[:n]), {n - 1: LETTERS[:n]}
        tasks.append(Task(f"a list of {n}", start, wanted, n.bit_length() - 1, n - 1))
    return checker.check_scan(answer, reduce, tasks)


def before(letters, r, d):
    """Return what a place holds on the way down.

    The way down makes of that tree what stands *before* each place. Before its level d, blocks have ``2 ** (d + 1)``
    places, the last one perhaps fewer; and the last place of each block, `r`, holds everything before the block.
    `letters` is what the list began with, as a text.
    """
    size = 2 ** (d + 1)
    return letters[: r // size * size]


@PUZZLES.rule_of(
    before,
    "What a place knows on the way down",
    "return letters[:r]",
    "Where does the block begin whose last place is r?",
    "At a multiple of its size, 2 ** (d + 1): the largest one that is not beyond r.",
    "r // size * size",
)
def _rule_before(answer):
    for letters in [text for n in LENGTHS[:17] for text in (LETTERS[:n], LETTERS[n - 1 :: -1])]:
        n = len(letters)
        for d in reversed(range((n - 1).bit_length())):
            for first in range(0, n, 2 ** (d + 1)):
                r = min(first + 2 ** (d + 1), n) - 1
                found, wanted = call(answer, before, letters, r, d), letters[:first]
                if found == wanted:
                    continue
                block = letters[first : r + 1]
                if found == block:
                    why = f"{block!r} is its own block, which it held before the way down"
                elif found == letters[:r]:
                    why = f"what stands in its own block, {block!r}, it does not know yet"
                elif found == letters[: r + 1]:
                    why = f"its own block, {block!r}, is not before it"
                else:
                    why = f"its block is {block!r}; what stands before that"
                raise Wrong(f"before({letters!r}, r={r}, d={d}) is {shown(found)} and should be {wanted!r}: {why}")
    return "Right: on the way down, the last place of a block holds everything before the block."


def down_sweep(a, op, pairs, levels):
    """Hand down what stands before each place.

    The tree has been joined, and its last place now holds the identity. Level by level, from ``levels - 1`` down to 0,
    ``pairs(d)`` lists (l, r), the last places of a block's two halves: at r stands everything before the block, at l
    the left half. Hand each half what it needs, so that place i ends with everything before it. Pause after each level.
    """
    for d in reversed(range(levels)):
        for l, r in pairs(d):
            a[l], a[r] = a[r], op(a[r], a[l])
        yield


@PUZZLES.rule_of(
    down_sweep,
    "The way down",
    "for d in reversed(range(levels)):\n    for l, r in pairs(d):\n        pass\n    yield",
    "The left half needs what stands before the block; the right half needs that, followed by the left half.",
    "a[l] gets what stood at a[r]. a[r] gets both, joined. Which of them comes first in the list?",
    "a[l], a[r] = a[r], op(..., ...): both right sides are read before anything is written.",
)
def _rule_down_sweep(answer):
    tasks = []
    for n in LENGTHS:
        a, op, levels = words(LETTERS[:n]), checker.Join(n), (n - 1).bit_length()
        for d in range(levels - 1):
            for l, r in pairs(n - 1, d):
                a[r] = op(a[l], a[r])
        for word in a:
            word.level = 0
        a[-1] = IDENTITY
        wanted = {place: LETTERS[:place] for place in range(n)}
        tasks.append(Task(f"a list of {n}", a, wanted, levels, n, lambda d, n=n: pairs(n - 1, d), levels))
    return checker.check_scan(answer, down_sweep, tasks)


def pairs(n, d):
    """List the pairs (l, r) of level d, for places 0 to n.

    l is the last place of a block's left half, of ``2 ** d`` places; r is the last place of the block, which has twice
    as many, or ends at n. A block without a right half has no pair. ``pairs(4, 0)`` is ``[(0, 1), (2, 3)]``, for place
    4 is alone; ``pairs(4, 2)`` is ``[(3, 4)]``. The way up and the way down use it.
    """
    half, found = 2**d, []
    for first in range(0, n - half + 1, 2 * half):
        found.append((first + half - 1, min(first + 2 * half - 1, n)))
    return found


def sweeps_by(pairs):
    """Make Algorithm 1 of what lists the pairs of a level."""

    def sweeps(a, op):
        n = len(a) - 1
        levels = n.bit_length()
        for d in range(levels - 1):
            for l, r in pairs(n, d):
                a[r] = op(a[l], a[r])
            yield
        a[n] = IDENTITY
        for d in reversed(range(levels)):
            for l, r in pairs(n, d):
                a[l], a[r] = a[r], op(a[r], a[l])
            yield

    return sweeps


@PUZZLES.rule_of(
    pairs,
    "Any length",
    "return [(0, 1)]",
    "Blocks begin at 0, 2 * half, 4 * half ... For which of these is there a right half, so a place first + half?",
    "For first up to n - half. l is first + half - 1.",
    "r is first + 2 * half - 1, or n if that is less.",
)
def _rule_pairs(answer):
    tasks = []
    for places in LENGTHS:
        n, levels = places - 1, (places - 1).bit_length()
        wanted = {place: LETTERS[:place] for place in range(places)}
        tasks.append(Task(f"a list of {places}", words(LETTERS[:places]), wanted, max(1, 2 * levels - 1), 2 * places))
        for d in range(levels):
            found, right = call(answer, pairs, n, d), pairs(n, d)
            if not isinstance(found, list) or sorted(map(_pair, found)) != right:
                drawn = checker.check_scan(sweeps_by(answer), sweeps_by(pairs), tasks[-1:])
                said = f"pairs({n}, {d}) is {shown(found)} and should be {right}{_why_not(found, n, d, right)}"
                return checker.Verdict(False, said, drawn.yours, drawn.solution, drawn.marked)
    return checker.check_scan(sweeps_by(answer), sweeps_by(pairs), tasks)


def _pair(pair):
    numbers = isinstance(pair, list | tuple) and all(hasattr(place, "__index__") for place in pair)  # NumPy's, too
    return tuple(map(int, pair)) if numbers else ()


def _why_not(found, n, d, wanted):
    """Say what is wrong with the pairs of a level."""
    if not isinstance(found, list):
        return ", a list"
    there = [pair for pair in map(_pair, found) if len(pair) == 2]
    missing = set(wanted) - set(there)
    if missing and all(r - l < 2**d for l, r in missing):
        return ": a block whose right half is cut short has a pair, too"
    if sorted(there) == pairs(n - 1, d):
        return f": n is the last place, so there are {n + 1}"
    if any(r > n for _, r in there):
        return f": there is no place after {n}"
    if any(l >= r for l, r in there):
        return ": a block without a right half has no pair"
    return f": blocks have {2 ** (d + 1)} places, the first one from 0 on"


def affine(first, second):
    """Return what two steps back do together, where each adds a loss term.

    `first` is (A, p): it takes a gradient g to A g + p. `second` is (B, q), and takes that to B (A g + p) + q. Return a
    matrix and a loss term again.
    """
    (A, p), (B, q) = first, second
    return B @ A, B @ p + q


@PUZZLES.rule_of(
    affine,
    "A loss at every step",
    "(A, p), (B, q) = first, second\nreturn A, p",
    "Multiply out B (A g + p) + q.",
    "What is multiplied with g is the matrix, the rest is the loss term.",
    "The loss term is B p + q.",
)
def _rule_affine(answer):
    A, p, B, q = map(checker.Terms, "ApBq")
    found, call_ = call(answer, affine, (A, p), (B, q)), "affine((A, p), (B, q))"
    if not isinstance(found, tuple) or len(found) != 2:
        raise Wrong(f"{call_} is {shown(found)} and should be a matrix and a loss term, as what it is given")
    matrix, offset = found
    for name, what, wanted in (("matrix", matrix, B @ A), ("loss term", offset, B @ p + q)):
        if not isinstance(what, checker.Terms) or what != wanted:
            why = "a gradient g becomes A g + p, and then B (A g + p) + q"
            raise Wrong(f"{call_} has the {name} {what} and should have {wanted}: {why}")
    return "Right: maps g -> A g + p can be scanned as matrices can. So a loss at every step costs a sum, and no level."
