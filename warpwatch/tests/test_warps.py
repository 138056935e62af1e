"""Warps in parts: random kernels with masks, against a model in plain Python that goes from thread to thread."""

import itertools
import operator
from functools import reduce

import numpy as np
import pytest
from helpers import beside, more

import warpwatch

TEXT = beside(__file__)["TEXT"]
# What PTX is for a lane, of what the lanes of a mask bring.
LANES = {
    "bits": lambda got: sum(1 << lane for lane, value in got.items() if value & 1),
    "same": lambda got, lane: sum(1 << n for n, value in got.items() if (value ^ got[lane]) & 1 == 0),
    "reduced": lambda how, got: reduce(how, got.values()) & 0xFFFFFFFF, "operator": operator,
}  # fmt: skip
ASKED = {asked: eval(f"lambda got, lane: {text}", LANES) for asked, text in beside(__file__)["asked"].items()}


def draw(rng, table, active, stores, count=12, depth=0):
    """Draw statements for lanes that are active, in each warp the same; a row of the table has a mask for each lane."""
    made, kinds = [], ["get", "wait", "wait", "wait", "ask", "if", "if", "loop", "block", "part", "part"]
    for _ in range(count):
        kind, row = rng.choice(kinds + ["set"] * stores), len(table)
        if kind in ("wait", "ask"):
            labels = rng.integers(0, 4, 32) if rng.random() < 0.3 else np.arange(32) // rng.choice([2, 4, 8, 16, 32])
            table.append([sum(1 << n for n in active if labels[n] == labels[lane]) for lane in range(32)])
        if kind in ("set", "get"):
            keep = 127 if kind == "set" else int(rng.choice([127, 124, 112, 96, 0]))  # several read one place
            made.append((kind, keep, int(rng.choice([0, 1, 2, 8, 16, 32, 64]))))
        elif kind in ("wait", "ask"):
            made.append((kind, row, str(rng.choice(list(ASKED)))))
        elif kind == "if" and depth < 2:
            cut = rng.random(32) < 0.5 if rng.random() < 0.5 else np.arange(32) < rng.integers(33)
            table.append(cut.astype(int))
            parts = [[n for n in active if cut[n] == yes] for yes in (False, True)]
            made.append((kind, row, *(draw(rng, table, part, stores, 3, depth + 1) for part in parts)))
        elif kind == "loop" and depth < 2:
            made.append((kind, draw(rng, table, active, stores, 3, depth + 1)))
        elif kind in ("block", "part") and depth == 0:
            made.append((kind, int(rng.integers(1, 3))))
    return made


def write(statements, labels):
    """Return a program as lines of PTX."""
    for kind, first, *args in statements:
        n, row = next(labels), f"[%rd1+{128 * first}]" if kind in ("wait", "ask", "if") else ""
        if kind in ("set", "get"):
            yield f"and.b32 %r4, %r1, {first}; xor.b32 %r4, %r4, {args[0]}; mov.u32 %r5, s;"
            get = "ld.shared.u32 %r4, [%r5]; mad.lo.u32 %r3, %r3, 3, %r4;"
            yield f"mad.lo.u32 %r5, %r4, 4, %r5; {get if kind == 'get' else 'st.shared.u32 [%r5], %r3;'}"
        elif kind == "wait":  # two places, which meet
            yield f"ld.global.u32 %r5, {row}; and.b32 %r4, %r2, {n % 2}; setp.ne.u32 %p1, %r4, 0;"
            yield "@%p1 bar.warp.sync %r5; @!%p1 bar.warp.sync %r5;"
        elif kind == "ask":
            yield f"ld.global.u32 %r5, {row}; and.b32 %r4, %r3, 1; setp.ne.u32 %p1, %r4, 0; {args[0]};"
            yield "selp.b32 %r6, 1, 0, %p2;" * ("%p2" in args[0]) + "mad.lo.u32 %r3, %r3, 5, %r6;"
        elif kind == "if":
            yield f"ld.global.u32 %r4, {row}; setp.ne.u32 %p1, %r4, 0; @%p1 bra YES{n};"
            yield from [*write(args[0], labels), f"bra AFTER{n};\nYES{n}:", *write(args[1], labels), f"AFTER{n}:"]
        elif kind == "loop":
            yield f".reg .b32 %k{n}; .reg .pred %q{n}; mov.u32 %k{n}, 0;\nLOOP{n}:"
            yield from write(first, labels)
            yield f"add.u32 %k{n}, %k{n}, 1; setp.lt.u32 %q{n}, %k{n}, 2; @%q{n} bra LOOP{n};"
        elif kind == "block":
            yield "bar.sync 0;"
        else:  # of four warps two wait for each other, and the other two
            yield "shr.u32 %r4, %r1, 5;"
            for warp in range(4):
                yield f"setp.eq.u32 %p1, %r4, {warp}; @%p1 bar.sync {2 * first + (warp & first > 0)}, 64;"


class Thread:
    """A thread of the model: its value, and in its clock how much of each thread comes before what it does now."""

    def __init__(self, t, threads):
        self.t, self.value, self.asks, self.clock = t, t, None, [int(n == t) for n in range(threads)]

    def run(self, statements, table, memory, accesses, where=()):
        """Do statements; yield who waits for each other there, and for what: a kind, its place, threads, PTX."""
        for n, (kind, first, *args) in enumerate(statements):
            more, lane = (table, memory, accesses, (*where, n)), self.t % 32
            if kind in ("set", "get"):
                place = self.t & first ^ args[0]
                accesses.append((place, self.t, kind, self.clock[:]))
                if kind == "set":
                    memory[place] = self.value
                else:
                    self.value = self.value * 3 + memory[place] & 0xFFFFFFFF
            elif kind in ("wait", "ask"):
                who = [self.t - lane + n for n in range(32) if table[first][lane] >> n & 1]
                yield kind, more[3] * (kind == "ask"), who, args[0] * (kind == "ask")
            elif kind == "if":
                yield from self.run(args[table[first][lane]], *more)
            elif kind == "loop":
                for turn in range(2):
                    yield from self.run(first, *more[:3], (*more[3], turn))
            else:
                yield kind, first, [t for t in range(128) if kind == "block" or (t ^ self.t) // 32 & first == 0], ""


def model(program, threads, there, table):
    """Run a program, thread by thread; return what they have, and which accesses race: a place and two threads."""
    memory, accesses = [0xABABABAB] * 128, []
    all_of = [Thread(t, threads) for t in range(threads)]
    runs = {t: all_of[t].run(program, table, memory, accesses) for t in range(there)}
    while runs:
        for t in [t for t in runs if all_of[t].asks is None]:
            if (asks := next(runs[t], None)) is None:
                del runs[t]
            all_of[t].asks = asks
        for t in runs:
            team = [all_of[n] for n in all_of[t].asks[2] if n in runs] if all_of[t].asks else [Thread(t, threads)]
            if all(thread.asks == team[0].asks and thread.asks for thread in team):
                kind, *_, asked = team[0].asks
                got = {thread.t % 32: thread.value for thread in team}
                known = [max(times) for times in zip(*(thread.clock for thread in team), strict=True)]
                for thread in team:
                    thread.asks = None
                    if kind == "ask":
                        thread.value = thread.value * 5 + int(ASKED[asked](got, thread.t % 32)) & 0xFFFFFFFF
                    else:
                        thread.clock = [time + (n == thread.t) for n, time in enumerate(known)]
    races = set()
    for (place, t, kind, clock), (other, u, did, later) in itertools.combinations(accesses, 2):
        if place == other and t != u and "set" in (kind, did) and later[t] < clock[t]:
            races |= {(place, t, u), (place, u, t)}
    return [thread.value for thread in all_of], races


@pytest.mark.parametrize("seed", [n if n < 60 else more(n) for n in range(300)])
def test_random_kernels_do_what_the_model_does(seed):
    rng, table = np.random.default_rng(seed), []
    threads = int(rng.choice([32, 64, 128]))
    there = threads if rng.random() < 0.7 else int(rng.integers(1, threads))  # the others have returned
    program = draw(rng, table, list(range(32)), int(rng.random() < 0.3))
    program = [each for each in program if each[0] != "part" or threads == there == 128]
    program.append(("if", len(table), [], [("set", 127, int(rng.choice([0, 1, 8, 32])))]))
    table.append([int(lane == 0) for lane in range(32)])
    text = f"setp.ge.u32 %p1, %r1, {there}; @%p1 ret;\n" + "\n".join(write(program, itertools.count()))
    out = np.zeros(threads, "u4")
    report = warpwatch.run(TEXT.replace("BODY", text), 1, threads, out, np.array(table, "u4"))
    wanted, races = model(program, threads, there, table)
    found = [each for each in report.findings if each.kind == "race"]
    assert {each.kind for each in report.findings} <= {"race", "uninitialized"}, report
    assert bool(found) == bool(races), (program, report)
    assert all((each.place, each.thread, each.other[1]) in races for each in found), report
    if not races:
        assert out[:there].tolist() == wanted[:there]


@pytest.mark.parametrize("count, other, races", [(64, 31, False), (64, 127, True), (32, 33, True), (128, 127, False)])
def test_a_barrier_opens_for_as_many_threads_as_it_counts(count, other, races):
    body = f"""mul.lo.u32 %r4, %r1, 4; mov.u32 %r5, s; add.u32 %r6, %r4, %r5; st.shared.u32 [%r6], %r1;
bar.sync 1, {count}; xor.b32 %r4, %r1, {other}; mad.lo.u32 %r6, %r4, 4, %r5; ld.shared.u32 %r3, [%r6];"""
    report = warpwatch.run(TEXT.replace("BODY", body), 1, 128, np.zeros(128, "u4"), np.zeros(1, "u4"))
    assert [each.kind for each in report.findings] == ["race"] * races and report.counters["barriers"] == 128 // count


@pytest.mark.parametrize("half, mask, wait", [(32, -1, "bar.sync 0"), (16, 0xFFFF0000, "bar.warp.sync -1")])
def test_what_threads_did_that_have_returned_comes_before_a_barrier(half, mask, wait):
    body = f"""shl.b32 %r4, %r1, 2; mov.u32 %r5, s; add.u32 %r6, %r4, %r5; setp.lt.u32 %p1, %r1, {half}; @%p1 bra STAY;
bar.warp.sync {mask}; bar.warp.sync {mask}; st.shared.u32 [%r6], %r1; ret;
STAY: {wait}; ld.shared.u32 %r3, [%r6+{4 * half}];"""
    out = np.zeros(2 * half, "u4")
    assert warpwatch.run(TEXT.replace("BODY", body), 1, 2 * half, out, np.zeros(1, "u4")).findings == []
    assert out[:half].tolist() == list(range(half, 2 * half))
