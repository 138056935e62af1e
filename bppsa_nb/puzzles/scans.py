"""Puzzles about scans, in pure Python: from running totals to Algorithm 1 for any length.

`operators` and `workers` have those that follow.
"""

from bppsa_nb.puzzles import checker, operators, workers
from bppsa_nb.puzzles.checker import IDENTITY, LENGTHS, LETTERS, Task, Word, Wrong, call, returned, told, words

PUZZLES = checker.Puzzles([*operators.PUZZLES.items(), *workers.PUZZLES.items()])


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
    "return items",
    "A loop with one variable, the total so far.",
    "Start with the first item. Every total is the one before it, joined with the next item.",
    "for item in items[1:]: found.append(op(found[-1], item))",
    learned="This is a scan. Python has it, too: list(itertools.accumulate(items, op)).",
    explained="Each total is the one before it, joined with one more item: n - 1 joins, one after the other.",
)
def _rule_totals(answer):
    last = None
    for n in LENGTHS:
        items, where = words(LETTERS[:n]), f"a list of {n}"
        op = checker.Join(items, "Begin with items[0]")
        found = call(answer, totals, items, op, where=where)
        if not isinstance(found, list) or len(found) != n:
            said = f"it returned {returned(found)} and should return a list of {n}, a total per item"
            raise Wrong(f"{where}: {said}{checker.slip(found, last)}")
        for place, word in enumerate(found):
            if not op.knows(word) or word.text != LETTERS[: place + 1]:
                raise Wrong(f"{where}, {told(place, word, LETTERS[: place + 1])}")
        last = found
    costs, said = [("joins", len(op.made), n - 1)], f"Right for every list of up to {n} items."
    return checker.Verdict(True, said, costs=costs, example=where, slack=1)


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
    "yield",
    "After a level, every block of 2, then 4, then 8 places has its whole word in its last place.",
    "On the level that makes blocks of 2 * half, the left half's word stands `half` places before the right one's.",
    "for r in range(2 * half - 1, len(a), 2 * half): a[r] = op(a[r - half], a[r])",
    learned="A tree takes log2(n) levels where the loop takes n - 1 turns, and no more joins than the loop.",
    explained="After each level, blocks are twice as long, and the last place of a block holds all of it. So the two "
    "words to join stand `half` places apart, the first pair's right one at place 2 * half - 1.",
)
def _rule_reduce(answer):
    tasks = []
    for n in (4, 8, 2, 1, 16, 32):
        start, wanted = words(LETTERS[:n]), {n - 1: LETTERS[:n]}
        tasks.append(Task(f"a list of {n}", start, wanted, n.bit_length() - 1))
        tasks[-1].also = _see_tree
    return checker.check_scan(answer, reduce, tasks)


def _see_tree(op, a):
    """See that each place was left what the way down needs: its block, or more before it."""
    for place, word in enumerate(a):
        block = LETTERS[place & (place + 1) : place + 1]
        if not op.knows(word) or not word.text.endswith(block):
            why = "store each joined word in the right one of its two places"
            mark = word if isinstance(word, Word) else None
            raise Wrong(f"place {place} holds {checker.shown(word)} and should hold {block!r}: {why}", mark)
    return ()


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
    "return letters[:r]",
    "Where does the block begin whose last place is r?",
    "At a multiple of its size, 2 ** (d + 1): the largest one that is not beyond r.",
    "r // size * size",
    learned="On the way down, the last place of a block holds everything before the block.",
    explained="Blocks begin at multiples of their size. The block of place r begins at the largest multiple that is "
    "not beyond r, and that is r // size * size, even where the last block is cut short.",
)
def _rule_before(answer):
    for letters in [text for n in LENGTHS[:17] for text in (LETTERS[:n], LETTERS[n - 1 :: -1])]:
        n = len(letters)
        for d in reversed(range((n - 1).bit_length())):
            for first in range(0, n, 2 ** (d + 1)):
                r = min(first + 2 ** (d + 1), n) - 1
                where, wanted = f"before({letters!r}, r={r}, d={d})", letters[:first]
                found = call(answer, before, letters, r, d, where=where)
                if isinstance(found, str) and found == wanted:
                    continue
                block = letters[first : r + 1]
                if not isinstance(found, str):
                    why = "a text, such as letters[:2]"
                elif found == block:
                    why = f"{block!r} is its own block, which it held before the way down"
                elif found == letters[:r]:
                    why = f"what stands in its own block, {block!r}, it does not know yet"
                elif found == letters[: r + 1]:
                    why = f"its own block, {block!r}, is not before it"
                else:
                    why = f"its block is {block!r}; what stands before that"
                raise Wrong(f"{where} is {returned(found)} and should be {wanted!r}: {why}")


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
    "for d in reversed(range(levels)):\n    for l, r in pairs(d):\n        pass\n    yield",
    "The left half needs what stands before the block; the right half needs that, followed by the left half.",
    "a[l] gets what stood at a[r]. a[r] gets both, joined. Which of them comes first in the list?",
    "a[l], a[r] = a[r], op(..., ...): both right sides are read before anything is written.",
    learned="This is the down-sweep of Algorithm 1. It works for every associative operation: sums, maxima, matrices.",
    explained="The left half begins where its block begins, so the same stands before it: a[l] gets a[r]. Before the "
    "right half stands that, and then the left half: op(a[r], a[l]), in this order.",
)
def _rule_down_sweep(answer):
    tasks = []
    for n in LENGTHS:
        a, levels = words(LETTERS[:n]), (n - 1).bit_length()
        op = checker.Join(a)
        for d in range(levels - 1):
            for l, r in pairs(n - 1, d):
                a[r] = op(a[l], a[r])
        for word in a:
            word.level = 0
        a[-1] = IDENTITY
        wanted = {place: LETTERS[:place] for place in range(n)}
        tasks.append(Task(f"a list of {n}", a, wanted, levels, lambda d, n=n: pairs(n - 1, d), levels))
        tasks[-1].begin = ("The last place holds the identity already: leave it as it is",)
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
    "return [(0, 1)]",
    "Blocks begin at 0, 2 * half, 4 * half ... For which of these is there a right half, so a place first + half?",
    "For first up to n - half. l is first + half - 1.",
    "r is first + 2 * half - 1, or n if that is less.",
    learned="Both sweeps meet the same pairs, and lists of any length need no padding.",
    explained="A block that begins at `first` has a right half if place first + half is there, so up to n. The right "
    "half ends where the block ends, at first + 2 * half - 1, or with the list.",
)
def _rule_pairs(answer):
    tasks, last = [], None
    for places in LENGTHS:
        n, levels = places - 1, (places - 1).bit_length()
        wanted = {place: LETTERS[:place] for place in range(places)}
        tasks.append(Task(f"a list of {places}", words(LETTERS[:places]), wanted, max(1, 2 * levels - 1)))
        for d in range(levels):
            found, right = call(answer, pairs, n, d, where=f"pairs({n}, {d})"), pairs(n, d)
            if not isinstance(found, list) or sorted(map(_pair, found)) != right:
                why = checker.slip(found, last) or _why_not(found, n, d, right)
                said = f"pairs({n}, {d}) is {returned(found)} and should be {right}{why}"
                drawn = checker.check_scan(sweeps_by(answer), sweeps_by(pairs), tasks[-1:])
                return checker.Verdict(False, said, drawn.yours, drawn.solution, drawn.marked)
            last = found
    return checker.check_scan(sweeps_by(answer), sweeps_by(pairs), tasks)


def _pair(pair):
    numbers = isinstance(pair, list | tuple) and all(hasattr(place, "__index__") for place in pair)  # NumPy's, too
    return tuple(map(int, pair)) if numbers else ()


def _why_not(found, n, d, wanted):
    """Say what is wrong with the pairs of a level."""
    if not isinstance(found, list):
        return ", a list"
    there, half = [pair for pair in map(_pair, found) if len(pair) == 2], 2**d
    if len(there) < len(found):
        divided = any(isinstance(place, float) for pair in found if isinstance(pair, list | tuple) for place in pair)
        return ": places are whole numbers, so divide with //" if divided else ": each of them is a pair (l, r)"
    if sorted(set(there)) == wanted:
        return ": each pair once"
    if sorted((r, l) for l, r in there) == wanted:
        return ": these are (r, l), and l comes first"
    missing = set(wanted) - set(there)
    if half > 1 and any((l - half + 1, r) in there or (l - half + 1, r - half + 1) in there for l, r in missing):
        return ": l is the last place of the left half, and not its first one"
    if missing and all(r - l < half for l, r in missing):
        return ": a block whose right half is cut short has a pair, too"
    if sorted(there) == pairs(n - 1, d):
        return f": n is the last place, so there are {n + 1}"
    if any(r > n for _, r in there):
        return f": there is no place after {n}"
    if any(l >= r for l, r in there):
        return ": a block without a right half has no pair"
    return f": blocks have {2 * half} places, the first one from 0 on"
