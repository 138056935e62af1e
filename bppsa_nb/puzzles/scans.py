"""Puzzles about scans, in pure Python: from running totals to Algorithm 1 for any length, and to few workers.

`operators` has those about what is scanned, which this module's `PUZZLES` have, too.
"""

from bppsa_nb.puzzles import checker, operators
from bppsa_nb.puzzles.checker import IDENTITY, LENGTHS, LETTERS, Task, Word, Wrong, call, returned, told, words

PUZZLES = checker.Puzzles(operators.PUZZLES)


def totals(items, op):
    """Return the running totals of a list: the first item, the first two joined, the first three, and so on."""
    found = [items[0]]
    for item in items[1:]:
        found.append(op(found[-1], item))
    return found


@PUZZLES.rule_of(totals)
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
    """Join the whole list into its last place, by a tree."""
    half = 1
    while half < len(a):
        for r in range(2 * half - 1, len(a), 2 * half):
            a[r] = op(a[r - half], a[r])
        yield
        half *= 2


@PUZZLES.rule_of(reduce)
def _rule_reduce(answer):
    tasks = []
    for n in (4, 8, 2, 1, 16, 32):
        start, wanted = words(LETTERS[:n]), {n - 1: LETTERS[:n]}
        tasks.append(Task(f"a list of {n}", start, wanted, n.bit_length() - 1, also=_see_tree))
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
    """Return what a place holds on the way down."""
    size = 2 ** (d + 1)
    return letters[: r // size * size]


@PUZZLES.rule_of(before)
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
    """Hand down what stands before each place."""
    for d in reversed(range(levels)):
        for l, r in pairs(d):
            a[l], a[r] = a[r], op(a[r], a[l])
        yield


@PUZZLES.rule_of(down_sweep)
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
        begin = ("The last place holds the identity already: leave it as it is",)
        tasks.append(Task(f"a list of {n}", a, wanted, levels, lambda d, n=n: pairs(n - 1, d), levels, begin=begin))
    return checker.check_scan(answer, down_sweep, tasks)


def pairs(n, d):
    """List the pairs (l, r) of level d, for places 0 to n."""
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


@PUZZLES.rule_of(pairs)
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


def chunks(a, op, length):
    """Scan with few workers, each with a chunk of `length` places; the last one may have fewer."""
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
        for i in range(first, min(first + length, len(a)) - 1):
            a[i] = op(a[first - 1], a[i])
    yield


@PUZZLES.rule_of(chunks)
def _rule_chunks(answer):
    tasks = []
    for n in (8, 7, 4, 3, 2, 1, 16, 33):
        for length in (4, 3, 2, 1, 5, n):
            what, count = f"a list of {n} in chunks of {length}", -(-n // length)
            wanted = {place: LETTERS[: place + 1] for place in range(n)}
            also = lambda op, a, length=length, most=2 * length + count - 2: _see_chunks(op, length, most)  # noqa: E731
            tasks.append(Task(what, words(LETTERS[:n]), wanted, length + count - 1, length, also=also, spare=1))
    return checker.check_scan(answer, chunks, tasks)


def _see_chunks(op, length, most):
    """See that words are made chunk by chunk, and no chunk has others wait for long; return what the busiest joins."""
    joins = {}  # by level, and then by the chunk that has the place: what they make
    for word in op.made:
        first, last = (LETTERS.index(letter) for letter in (word.text[0], word.text[-1]))
        if first % length and first // length != last // length:
            raise Wrong(
                f"level {word.level} makes {word}, which is of two chunks and begins within one; they begin at the "
                f"places 0, {length}, {2 * length} ..., as `length` says",
                word,
            )
        level = joins.setdefault(word.level, {})
        level.setdefault(last // length, []).append(word.text)
    busiest = [max(len(set(made)) for made in level.values()) for _, level in sorted(joins.items())]
    if sum(busiest) > most:
        raise Wrong(
            f"the busiest chunk joins {' + '.join(map(str, busiest))} = {sum(busiest)} times, level by level, while "
            f"others wait, and {most} are enough: join the ends of chunks only, and then, on one level, all the rest"
        )
    took = sum(max(map(len, level.values())) for level in joins.values())  # with those that are made twice
    return [("joins of the busiest chunk, level by level", took)]


def exscan(run, op, identity):
    """Scan over machines: what one rank does that has a run of the list, perhaps an empty one."""
    total = identity
    for word in run:
        total = op(total, word)
    before = yield total
    found = [identity if before is None else before]
    for word in run[:-1]:
        found.append(op(found[-1], word))
    return found[: len(run)]


@PUZZLES.rule_of(exscan)
def _rule_exscan(answer):
    joins = []
    for runs in (["ab", "cde", "fg"], ["abcd"], ["a", "", "bcd"], ["", "ab"], list("abcd")):
        before = ""
        for rank, run in enumerate(runs):
            where, own, others = f"rank {rank} of {len(runs)}, which has {run!r}", words(run), Word(before)
            op = checker.Join([*own, others], "Where nothing stands before, begin with identity")
            given, steps = checker.Given(exscan, [own]), call(answer, exscan, own, op, IDENTITY, where=where)
            if not hasattr(steps, "send"):
                raise Wrong(f"{where}: it returned {returned(steps)} and never asked; write before = yield total")
            total = checker.go_on(answer, steps, None, where)
            if not op.knows(total) or total.text != run:
                should = f"should hand {checker.name(run)}, all that it has"
                raise Wrong(f"{where}: it hands {checker.shown(total)} to Exscan, and {should}")
            gives = where if rank else f"{where}, where Exscan gives None"  # it is undefined there
            found = checker.go_on(answer, steps, others if rank else None, gives)
            given.check()
            if not isinstance(found, checker.Returned):
                raise Wrong(f"{where}: it asks a second time, with {checker.shown(found)}; Exscan is called once")
            if not isinstance(found.value, list) or len(found.value) != len(run):
                said = f"it returned {returned(found.value)} and should return a list of {len(run)}"
                raise Wrong(f"{where}: {said}{checker.slip(found.value)}")
            for place, word in enumerate(found.value):
                if not op.knows(word) or word.text != before + run[:place]:
                    raise Wrong(f"{where}, {told(place, word, before + run[:place])}")
            before += run
            joins.append(len(op.made))
    costs, example = [("joins", joins[1], 4)], "rank 1 of 3, which has 'cde'"
    return checker.Verdict(True, "Right, for empty runs, too.", costs=costs, example=example, slack=1)
