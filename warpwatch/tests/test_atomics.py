"""Atomic operations: what each lane finds, and what comes, is that of a loop over the lanes."""

import numpy as np
import pytest

import warpwatch
from warpwatch.atomics import by_place

TEXT = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 y, .param .u64 to, .param .u64 out, .param .u64 old) {
.reg .b32 %r<9>; .reg .b64 %rd<20>; .reg .pred %p<2>; .reg .KIND %a<4>;
ld.param.u64 %rd1, [x]; ld.param.u64 %rd2, [y]; ld.param.u64 %rd3, [to]; ld.param.u64 %rd4, [out];
ld.param.u64 %rd5, [old]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mad.lo.s32 %r1, %r2, 512, %r1;
mul.wide.u32 %rd6, %r1, 4; add.s64 %rd3, %rd3, %rd6; ld.global.s32 %r3, [%rd3];
setp.lt.s32 %p1, %r3, 0; @%p1 ret;
mul.wide.u32 %rd6, %r1, SIZE; add.s64 %rd1, %rd1, %rd6; add.s64 %rd2, %rd2, %rd6; add.s64 %rd5, %rd5, %rd6;
mul.wide.u32 %rd7, %r3, SIZE; add.s64 %rd4, %rd4, %rd7;
ld.global.KIND %a1, [%rd1]; ld.global.KIND %a2, [%rd2];
WHAT
ret; }
"""
PYTHON = {"add": lambda a, v: a + v, "min": min, "max": max, "and": lambda a, v: a & v, "or": lambda a, v: a | v,
          "xor": lambda a, v: a ^ v, "exch": lambda a, v: v, "cas": lambda a, v, w: w if a == v else a,
          "inc": lambda a, v: 0 if a >= v else a + 1, "dec": lambda a, v: v if a == 0 or a > v else a - 1}  # fmt: skip
CODES = {"s32": "i4", "u32": "u4", "b32": "u4", "s64": "i8", "u64": "u8", "b64": "u8", "f32": "f4", "f64": "f8"}
KINDS = {"add": "s32 u32 u64 f32 f64", "min": "s32 u32 s64 u64", "max": "s32 u32 s64 u64", "and": "b32 b64",
         "or": "b32 b64", "xor": "b32 b64", "exch": "b32 b64", "cas": "b32 b64", "dec": "u32",
         "inc": "u32"}  # fmt: skip
FULL = (1 << 64) - 1


def numbers(code, few, rng):
    if code[0] == "f":  # of all sizes, so that the order of additions shows
        return (rng.standard_normal(1536) * 10.0 ** rng.integers(-6, 6, 1536)).astype(code)
    info = np.iinfo(code)
    return rng.integers(*((0, 9) if few else (info.min, info.max)), 1536, code, endpoint=True)


@pytest.mark.parametrize(("op", "kind"), [(op, kind) for op, kinds in KINDS.items() for kind in kinds.split()])
@pytest.mark.parametrize("places", [1, 5, 100, 4000])
def test_atomic_operations_are_those_of_a_loop(op, kind, places):
    code, rng, more = CODES[kind], np.random.default_rng(places), ", %a2" * (op == "cas")
    atom, red = f"atom.global.{op}.{kind} %a3, [%rd4], %a1{more}; st.global.{kind} [%rd5], %a3;", f"red.global.{op}"
    plain = list if code[0] == "f" else np.ndarray.tolist  # NumPy's numbers, for how they round, or Python's
    for what, share in ((atom, 1), (atom, 0.4), (f"{red}.{kind} [%rd4], %a1;", 1))[: 3 - (op in ("cas", "exch"))]:
        x, y, out = (numbers(code, op in ("inc", "dec", "cas"), rng) for _ in range(3))
        out, old, found = np.resize(out, places), np.zeros(1536, code), np.zeros(1536, code)
        to = np.where(rng.random(1536) < share, rng.integers(0, places, 1536), -1).astype("i4")
        wanted, values = out.copy(), list(zip(*map(plain, (x, y)[: 1 + (op == "cas")]), strict=True))
        for n in np.flatnonzero(to >= 0):
            (found[n],) = (a,) = plain(wanted[to[n] : to[n] + 1])
            made = PYTHON[op](a, *values[n])
            wanted[to[n]] = made if code[0] == "f" else np.uint64(made & FULL).astype(code)
        text = TEXT.replace("WHAT", what).replace("KIND", kind).replace("SIZE", str(out.itemsize))
        report = warpwatch.run(text, 3, 512, x, y, to, out, old)
        assert report.findings == [] and report.counters["atomics"] == np.count_nonzero(to >= 0)
        np.testing.assert_array_equal(out, wanted)
        np.testing.assert_array_equal(old, found * (what == atom))


def test_places_may_be_as_far_apart_as_memory_is_large():
    for far in (1 << 62, 9):
        place = np.tile([far, 5, far, 7, 5], 50)
        order, starts = by_place(place)
        assert order.tolist() == sorted(range(250), key=place.__getitem__) and starts.tolist() == [0, 100, 150]
