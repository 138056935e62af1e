"""Order by fences, against vector clocks that loops keep: random programs, and what ran of them, event by event."""

import numpy as np
import pytest
from helpers import more

import warpwatch
from warpwatch.fences import Fences
from warpwatch.machine import Machine
from warpwatch.memory import GlobalSpace

HEAD = """.version 8.3
.target sm_90
.address_size 64
.visible .entry agree(.param .u64 memory, .param .u64 who) {
.reg .pred %p; .reg .b32 %r<9>; .reg .b64 %rd<9>;
ld.param.u64 %rd1, [memory]; ld.param.u64 %rd2, [who];
mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mad.lo.u32 %r4, %r2, %r3, %r1;
mul.wide.u32 %rd3, %r4, 4; add.s64 %rd2, %rd2, %rd3;
"""
STEPS = {"load": "ld.global.u32 %r6, [%rd1+{0}];", "store": "st.global.u32 [%rd1+{0}], %r4;",
         "update": "atom.global.add.u32 %r7, [%rd1+{1}], 1;", "release": "st.volatile.global.u32 [%rd1+{1}], %r4;",
         "ask": "ld.volatile.global.u32 %r7, [%rd1+{1}];", "far": "membar.gl;", "near": "membar.cta;",
         "block": "bar.sync 0;", "warp": "bar.warp.sync 0xffffffff;",
         "out": "st.release.gpu.global.u32 [%rd1+{1}], %r4;", "in": "ld.acquire.gpu.global.u32 %r7, [%rd1+{1}];",
         "both": "atom.acq_rel.gpu.global.add.u32 %r7, [%rd1+{1}], 1;"}  # fmt: skip
OFTEN = [0.12, 0.1, 0.26, 0.04, 0.05, 0.12, 0.08, 0.04, 0.04, 0.04, 0.06, 0.05]


def program(rng, steps, threads, blocks):
    """Make a text, in which each step is done by some threads, and the table of these."""
    text, who = HEAD, np.zeros((steps, threads * blocks), "i4")
    for n in range(steps):
        step, some = rng.choice(list(STEPS), p=OFTEN), rng.random()
        one, place = rng.integers(threads * blocks), 4 * rng.integers(6)
        if some < 0.75:
            who[n, one] = 1
        else:
            every = np.arange(threads * blocks)
            who[n] = rng.random(every.size) < 0.2 if some < 0.85 else every // threads == one % blocks
        if step not in ("block", "warp"):
            text += f"ld.global.nc.u32 %r5, [%rd2+{4 * n * who.shape[1]}]; setp.ne.s32 %p, %r5, 0; @!%p bra $L{n};\n"
        text += f".loc 1 {n + 1} 0\n{STEPS[step].format(place, 64 + place % 16)}\n$L{n}:\n"
    return text + "ret;\n}\n", who


@pytest.fixture
def events(monkeypatch):
    """Note what threads do, by their numbers in the launch: (what, thread or threads, place or reach)."""
    made, first = [], lambda m: m.first * m.threads

    def noted(owner, name, note):
        before = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda self, *args: (note(self, *args), before(self, *args))[1])

    def access(space, what, at, address, *_):
        i, start = space.machine.program.instructions[at], space.regions[0].start
        if "nc" not in i.mods:
            what = f"strong {what}" if what == "atomic" or {"volatile", "acquire", "release"} & {*i.mods} else what
            lanes = (space.machine.lanes() + first(space.machine)).tolist()
            made.extend((what, lane, place) for lane, place in zip(lanes, (address - start).tolist(), strict=True))

    def meet(fences, lanes, whole=None):
        made.append(("meet", (lanes + first(fences.machine)).tolist(), None))

    def each(what, m, lanes, *how):
        made.extend((what, n, how) for n in (lanes + first(m)).tolist())

    noted(GlobalSpace, "access", access)
    noted(Fences, "meet", meet)
    noted(Machine, "fence", lambda m, far: each("fence", m, m.lanes(), far, True, True))
    noted(Fences, "hold", lambda f, lanes, far, releases: each("hold", f.machine, lanes, far, False, releases))
    noted(Fences, "free", lambda f, held, far, acquires: each("free", f.machine, held[0], far, acquires, False))
    return made


def joined(*clocks):
    return {key: max(each.get(key, 0) for each in clocks) for key in set().union(*clocks)}


def places_of_races(events, threads, total):
    """Return places where two accesses meet that no barrier orders, and no fences with atomic operations."""
    knows, fenced, read = [{n: 1} for n in range(total)], [({}, {}) for _ in range(total)], [{} for _ in range(total)]
    chains, touched, racy, held = {}, {}, set(), {}  # a chain is a list of (block, what it fenced near, and far)
    for what, who, where in events:
        if what == "meet":
            clock = joined(*(knows[n] for n in who))
            near, far = (joined(*(fenced[n][each] for n in who)) for each in (0, 1))
            asked = {}
            for n in who:
                asked |= {key: each for key, each in read[n].items() if len(each) > len(asked.get(key, ()))}
            for n in who:
                knows[n], fenced[n], read[n] = clock | {n: clock[n] + 1}, (near, far), dict(asked)
        elif what in ("fence", "hold", "free"):  # an operation that orders by itself does so by what it has read itself
            reach, acquires, releases = where
            if what == "hold":
                held[who], read[who] = (fenced[who], read[who]), {}
            for block, near, far in sum(read[who].values(), []) if acquires else ():
                same = block == who // threads
                knows[who] = joined(knows[who], near if same else far if reach else {})
            read[who] = {} if acquires and reach else read[who]
            if releases:
                fenced[who] = (dict(knows[who]), dict(knows[who]) if reach else fenced[who][1])
                knows[who][who] += 1
            if what == "free":
                fenced[who], read[who] = held[who][0], held[who][1] | read[who]
        else:
            strong, writes = what.startswith("strong"), "load" not in what
            for other, at, others_strong, wrote in touched.setdefault(where, []):
                if not (strong and others_strong) and (writes or wrote) and knows[who].get(other, 0) < at:
                    racy.add(where // 4)
            touched[where].append((who, knows[who][who], strong, writes))
            if strong and "store" not in what and where in chains:
                read[who][id(chains[where])] = list(chains[where])
            if strong and writes:
                chain = [] if "store" in what else chains.get(where, [])
                chains[where] = chain
                touched.setdefault(None, []).append(chain)  # which keeps it, and its id
                if fenced[who][0]:
                    chain.append((who // threads, *fenced[who]))
    return racy


@pytest.mark.parametrize("seed", [*range(60), *map(more, range(60, 300))])
def test_races_are_those_of_vector_clocks(seed, events):
    rng = np.random.default_rng(seed)
    threads, blocks = int(rng.choice([1, 2, 3, 33, 64])), int(rng.integers(1, 5))
    text, who = program(rng, int(rng.integers(10, 110)), threads, blocks)
    report = warpwatch.run(text, blocks, threads, np.zeros(32, "i4"), who)
    told = {each.place for each in report.findings + report.notes}
    assert {each.kind for each in report.findings} <= {"race"}
    if any(word in text for word in ("membar", "acq", "release.")):
        assert told == places_of_races(events, threads, threads * blocks)
