"""Puzzles about scans by few workers, in pure Python: chunks, and ranks."""

from bppsa_nb.puzzles import checker
from bppsa_nb.puzzles.checker import IDENTITY, LETTERS, Given, Task, Wrong, call, name, returned, shown, told, words

PUZZLES = checker.Puzzles()


def chunks(a, op, length):
    """Scan with few workers, each with a chunk of `length` places; the last one may have fewer.

    First, all chunks at once make running totals of their own, a place after the other: their second places on one
    level, their third ones on the next. Then the totals at their ends are joined, a chunk after the other. Last, on one
    level, every other place joins what stands before its chunk. Place i ends with the total up to i, itself included.
    Pause after each level.
    """
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


@PUZZLES.rule_of(
    chunks,
    "yield",
    "In (1), step s is about the places s, length + s, 2 * length + s ...: each joins the place before it.",
    "In (2), the end of a chunk is joined with the end of the chunk before it, which is right by then.",
    "In (3), a[i] = op(a[first - 1], a[i]) for all places of a chunk but its last, where `first` is its first place.",
    learned="With p workers, chunks wait for about 2 n / p + p joins: less than a tree with as few workers.",
    explained="While chunks make their own totals, and while they repair them, all workers are busy. Only the ends of "
    "chunks wait for each other, and there are few of them.",
)
def _rule_chunks(answer):
    tasks = []
    for n in (8, 7, 4, 3, 2, 1, 16, 33):
        for length in (4, 3, 2, 1, 5, n):
            what, count = f"a list of {n} in chunks of {length}", -(-n // length)
            wanted = {place: LETTERS[: place + 1] for place in range(n)}
            tasks.append(Task(what, words(LETTERS[:n]), wanted, length + count - 1, length))
            tasks[-1].spare = 1
            tasks[-1].also = lambda op, a, length=length, most=2 * length + count - 2: _see_chunks(op, length, most)
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
    """Scan over machines: what one rank does that has a run of the list, perhaps an empty one.

    MPI's Exscan takes a word from every rank, and gives each what those of all ranks before it are, joined:
    ``before = yield total`` calls it. Return a list: for each place of the run, what stands before it in the whole
    list. On rank 0, MPI leaves undefined what Exscan gives; here it is None.
    """
    total = identity
    for word in run:
        total = op(total, word)
    before = yield total
    found = [identity if before is None else before]
    for word in run[:-1]:
        found.append(op(found[-1], word))
    return found[: len(run)]


@PUZZLES.rule_of(
    exscan,
    "before = yield identity\nreturn run",
    "Which word must others know of this run?",
    "All of it, joined. Then go through the run once more, from `before` on.",
    "On rank 0, begin with the identity. Put the total into the list before you join the place's own word.",
    learned="Machines scan one word each, by one message; the rest is two passes over a rank's own run.",
    explained="The first pass makes what others must know of this run. The second begins with what stands before it, "
    "and each place takes that total before its own word is joined; the last word is joined to none.",
)
def _rule_exscan(answer):
    joins = []
    for runs in (["ab", "cde", "fg"], ["abcd"], ["a", "", "bcd"], ["", "ab"], list("abcd")):
        before = ""
        for rank, run in enumerate(runs):
            where, own, others = f"rank {rank} of {len(runs)}, which has {run!r}", words(run), checker.Word(before)
            op = checker.Join([*own, others], "Where nothing stands before, begin with identity")
            given, steps = Given(exscan, [own]), call(answer, exscan, own, op, IDENTITY, where=where)
            if not hasattr(steps, "send"):
                raise Wrong(f"{where}: it returned {returned(steps)} and never asked; write before = yield total")
            total = checker.go_on(answer, steps, None, where)
            if not op.knows(total) or total.text != run:
                raise Wrong(f"{where}: it hands {shown(total)} to Exscan, and should hand {name(run)}, all that it has")
            gives = where if rank else f"{where}, where Exscan gives None"  # it is undefined there
            found = checker.go_on(answer, steps, others if rank else None, gives)
            given.check()
            if not isinstance(found, checker.Returned):
                raise Wrong(f"{where}: it asks a second time, with {shown(found)}; Exscan is called once")
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
