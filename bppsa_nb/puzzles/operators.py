"""Puzzles about what is scanned, in pure Python: matrices, affine maps, lists that begin anew; their uses."""

from bppsa_nb.puzzles import checker
from bppsa_nb.puzzles.checker import LETTERS, Word, Wrong, call, returned, told, words

PUZZLES = checker.Puzzles()


def diamond(a, b):
    """Return a ⋄ b, of two matrices. `a` is the one closer to the loss. You have ``@``."""
    return b @ a


@PUZZLES.rule_of(diamond)
def _rule_diamond(answer):
    A, B, g = Terms("A"), Terms("B"), Terms("g")
    for a, b in ((A, B), (g, A), (B @ A, B)):
        where, wanted = f"diamond({a}, {b})", b @ a
        found = call(answer, diamond, a, b, where=where)
        if not isinstance(found, Terms) or found != wanted:
            if not isinstance(found, Terms):
                why = "one product, made by @"
            elif found == a @ b:
                why = "what is closer to the loss is applied first, so it stands on the right"
            else:
                why = "each once" if len(found.terms) == 1 else "a product of two is no sum"
            raise Wrong(f"{where} is {returned(found)} and should be {wanted}: {why}")


def affine(first, second):
    """Return what two steps back do together, where each adds a loss term."""
    (A, p), (B, q) = first, second
    return B @ A, B @ p + q


@PUZZLES.rule_of(affine)
def _rule_affine(answer):
    A, p, B, q = map(Terms, "ApBq")
    call_ = "affine((A, p), (B, q))"
    found = call(answer, affine, (A, p), (B, q), where=call_)
    _pair(call_, found, "a matrix and a loss term")
    matrix, offset = found
    if isinstance(matrix, Terms) and (offset, matrix) == (B @ A, B @ p + q):
        raise Wrong(f"{call_} is {found}: the matrix comes first, then the loss term")
    for name, what, wanted in (("matrix", matrix, B @ A), ("loss term", offset, B @ p + q)):
        if not isinstance(what, Terms) or what != wanted:
            why = "a gradient g becomes A g + p, and then B (A g + p) + q"
            raise Wrong(f"{call_} has the {name} {what} and should have {wanted}: {why}")


def _pair(what, found, wanted):
    """See that an answer returned a tuple of two."""
    if not isinstance(found, tuple) or len(found) != 2:
        listed = isinstance(found, list) and len(found) == 2
        slip = "; a list is no pair: write round brackets, or none" if listed else ""
        raise Wrong(f"{what} is {returned(found)} and should be {wanted}, as what it is given{slip}")


def segmented(first, second, op):
    """Join two words of a list in which new lists begin."""
    (begins, x), (begins_too, y) = first, second
    return begins or begins_too, y if begins_too else op(x, y)


@PUZZLES.rule_of(segmented)
def _rule_segmented(answer):
    for one in (False, True):
        for two in (False, True):
            first, second = (one, Word("ab")), (two, Word("c"))
            call_ = f"segmented(({one}, 'ab'), ({two}, 'c'))"
            found = _joined(answer, first, second, call_)
            wanted = "c" if two else "abc"
            if not isinstance(found[1], Word) or found[1].text != wanted:
                why = "the second begins anew, so nothing before it counts" if two else "no list begins in the second"
                if isinstance(found[0], Word):
                    why = "the pair is (begins, word), and not (word, begins)"
                elif not isinstance(found[1], Word):
                    why = "a word of the pairs, or of op"
                elif found[1].text == "cab":
                    why = "the first word stands before the second"
                raise Wrong(f"{call_} has the word {returned(found[1])} and should have {wanted!r}: {why}")
            if bool(found[0]) != (one or two):
                why = "in neither of them a list begins" if not one and not two else "a list begins in one of them"
                raise Wrong(f"{call_} has begins = {returned(found[0])} and should have {one or two}: {why}")
    for n in range(1, 12):  # running totals by a tree: the operation is associative, or this shows that it is not
        for begin in range(n):
            items = [(place in (begin, 2 * begin), word) for place, word in enumerate(words(LETTERS[:n]))]
            half, where = 1, f"a list of {n} in which new ones begin at places {begin} and {2 * begin}"
            while half < n:
                joined = [_joined(answer, items[i - half], items[i], where) for i in range(half, n)]
                items, half = items[:half] + joined, 2 * half
            for place, (_, word) in enumerate(items):
                since = max(each for each in (0, begin, 2 * begin) if each <= place)
                if not isinstance(word, Word) or word.text != LETTERS[since : place + 1]:
                    raise Wrong(f"{where}, {told(place, word, LETTERS[since : place + 1])}")


def _joined(answer, first, second, where):
    """Return what an answer makes of two pairs, a pair of a flag and what is joined of them."""
    op = checker.Join([first[1], second[1]], "Its words are first[1] and second[1]")
    found = call(answer, segmented, first, second, op, where=where)
    _pair(where, found, "a pair (begins, word)")
    if isinstance(found[1], Word) and not op.knows(found[1]):
        raise Wrong(f"{where} has the word {found[1]}, {checker.STRANGE}")
    return found


def left_out(shrink, n, levels):
    """Return the largest error of a scan that stops early."""
    return sum(shrink**steps for steps in range(2**levels, n))


@PUZZLES.rule_of(left_out)
def _rule_left_out(answer):
    cases = ((0.5, 8, 1), (0.5, 8, 3), (0.9, 1000, 6), (0.0, 4, 1), (1.0, 8, 2), (1.5, 6, 1), (0.25, 5, 2), (0.5, 1, 0))
    for shrink, n, levels in (*cases, (0.5, 5, 3), (1.0, 3, 2), (0.5, 3, 0)):
        call_, wanted = f"left_out(shrink={shrink}, n={n}, levels={levels})", left_out(shrink, n, levels)
        made = call(answer, left_out, shrink, n, levels, where=call_)
        found = _number(made)
        if found is None:
            raise Wrong(f"{call_} is {returned(made)} and should be a number, {wanted:.6g}")
        if abs(found - wanted) <= 1e-9 * max(1, wanted):
            continue
        joined = 2**levels
        mistakes = [
            (sum(shrink**s for s in range(joined)), "that is what it has joined; the rest is left out"),
            (sum(shrink**s for s in range(joined + 1, n)), "a place has joined 2 ** levels items, its own included"),
            (sum(shrink**s for s in range(joined - 1, n)), "a place has joined 2 ** levels items, its own included"),
            (sum(shrink**s for s in range(joined, n + 1)), "a list of n has steps 0 to n - 1 before its last place"),
            (sum(shrink**s for s in range(2 * levels, n)), "each level doubles: 2 ** levels, and not 2 * levels"),
            (shrink**joined, "that is the largest term that is left out; add up all of them"),
            (max(0, n - joined), "that many are left out; but they have shrunk on their way"),
        ]
        if shrink < 1:
            mistakes.append((shrink**joined / (1 - shrink), "the list ends: there are n steps, and no more"))
        whys = [why for wrong, why in mistakes if abs(found - wrong) <= 1e-9 * max(1, wanted)]
        all_ = f"add up shrink ** s for s from {joined} to {n - 1}" if joined < n else f"all {n} steps have been joined"
        raise Wrong(f"{call_} is {found:.6g} and should be {wanted:.6g}: {whys[0] if whys else all_}")


def _number(value):
    """Return a number as a float, or None if it is something else."""
    try:
        return None if isinstance(value, str) else float(value)
    except Exception:
        return None


def newton_step(states, step, slope, scan):
    """Return better guesses of the states of a loop, all at once: a step of Newton's method."""
    maps = [(slope(h), step(h) - slope(h) * h) for h in states[:-1]]
    return [states[0], *(A * states[0] + p for A, p in scan(maps))]


@PUZZLES.rule_of(newton_step)
def _rule_newton_step(answer):
    # Slopes of 3 and -1, so that numbers stay small, and floats and NumPy's integers are as good as Python's.
    step, slope, called, times = lambda h: abs(2 * h - 5) + h, lambda h: 4 * (h > 2.5) - 1, [], 1

    def scan(maps):
        called.append(maps)
        pairs = isinstance(maps, list) and all(isinstance(each, tuple) and len(each) == 2 for each in maps)
        if not pairs or any(_number(each) is None for pair in maps for each in pair):
            given = f"scan was given {checker.shown(maps)}"
            raise Wrong(f"{given}; it takes a list of pairs (A, p), numbers in round brackets")
        totals = maps[:1]
        for B, q in maps[1:]:
            A, p = totals[-1]
            totals.append((B * A, B * p + q))
        return [(times * A, times * p) for A, p in totals]

    for start, n in ((2, 4), (-1, 1), (0, 3), (5, 6)):
        right = [start]
        for _ in range(n):
            right.append(step(right[-1]))
        guess = [start, *range(n, 0, -1)]
        for done in range(1, n + 1):
            called.clear()
            what = f"newton_step({guess}, ...)"
            found = call(answer, newton_step, list(guess), step, slope, scan, where=what)
            scanned, wanted = list(called), newton_step(guess, step, slope, scan)
            if not isinstance(found, list) or len(found) != n + 1:
                said = f"{what} is {returned(found)} and should be a list of {n + 1}, the first state included"
                raise Wrong(said + checker.slip(found))
            if (new := list(map(_number, found))) != wanted:
                raise Wrong(f"{what} is {found} and should be {wanted}{_why_not(new, guess, step, slope, called)}")
            times = 2
            twice, times = call(answer, newton_step, list(guess), step, slope, scan, where=what), 1
            if max(map(len, scanned), default=0) < n or twice == found:  # whatever scan returns
                why = "the numbers are right, but it goes one step after the other: scan joins all maps in few levels"
                raise Wrong(f"{what}: {why}")
            guess = wanted
            if guess[: done + 1] != right[: done + 1]:
                raise Wrong(f"{what} is {found}, and its first {done + 1} should be {right[: done + 1]}")
    costs = [("maps that are scanned", sum(map(len, scanned)), n)]
    return checker.Verdict(True, "Right.", costs=costs, example=f"{n} steps", slack=1)


def _why_not(found, guess, step, slope, called):
    """Say what is wrong with the states after a step of Newton's method; `called`: what was scanned, the right maps."""
    if None in found:
        return ": a state is a number, and A * states[0] + p makes one of a map"
    start, loop, whole, (*scanned, right) = guess[0], guess[:1], guess[:1], called
    for h in guess[:-1]:
        loop.append(step(loop[-1]))
        whole.append(slope(h) * whole[-1] + step(h))
    mistakes = [
        (guess, "these are the guesses as they came"),
        (whole, "p is step(h) - slope(h) * h; if new is h, the map gives step(h)"),
        (loop, "that is the loop itself; make a map of each guess, and scan the maps"),
        ([start, *map(step, guess[:-1])], "that is one step from each guess; the slopes say how it moves if the state "
         "before it does"),
        ([start, *(A * start + p for A, p in right)], "these are the maps one by one; scan(maps) gives their totals"),
    ]
    whys = [why for wrong, why in mistakes if found == wrong]
    if found[0] != start and not whys:
        whys = ["the first state is right, and stays"]
    elif right in [maps[: len(right)] for maps in scanned] and not whys:
        whys = ["the maps are right; the total of the first t takes the first state to state t, A * states[0] + p"]
    if whys:
        return f": {whys[0]}"
    differ = [i for i, (one, other) in enumerate(zip([*scanned, []][0], right, strict=False)) if one != other]
    h, (A, p) = [(guess[i], right[i]) for i in (*differ, 0)][0]
    return f": from the guess {h} the map is {A} new {'-' if p < 0 else '+'} {abs(p)}"


class Terms:
    """Matrices and vectors without numbers: a sum of products of letters. It prints as one would write it."""

    def __init__(self, *terms):
        self.terms = sorted(terms)

    def __matmul__(self, other):
        return Terms(*(a + b for a in self.terms for b in _terms(self, "@", other)))

    def __mul__(self, other):
        raise Wrong("matrices are multiplied by @, and not by *")

    def __add__(self, other):
        return Terms(*self.terms, *_terms(self, "+", other))

    def __eq__(self, other):
        return isinstance(other, Terms) and self.terms == other.terms

    def __repr__(self):
        return " + ".join(" ".join(term) for term in self.terms) or "0"


def _terms(left, sign, right):
    if not isinstance(right, Terms):
        raise TypeError(f"{left} {sign} {right!r}: only matrices and vectors can be multiplied and added here")
    return right.terms
