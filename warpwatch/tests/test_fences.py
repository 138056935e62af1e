"""Threads that agree by fences and atomic operations: right programs are clean, and what is missing is told."""

import re
import textwrap

import numpy as np
import pytest
from helpers import beside

import warpwatch

pytest.importorskip("numba_cuda", reason="needs a CUDA compiler")
from numba import cuda, float64, int8, int32

PROGRAMS = beside(__file__)
MARKED = re.compile(r"(\d) (?:race|note)\b")
FAULTS = [(name, n) for name, case in PROGRAMS.items() for n in sorted(set(MARKED.findall(case["source"])))]


def steps_of(size, steps):
    x = floats(size)
    for _ in range(steps):
        x = np.roll(np.roll(x, -37) + 1, -91)
    return x


def floats(*shape):
    return np.arange(1.0, 1 + np.prod(shape)).reshape(shape)


TOOLS = {"np": np, "floats": floats, "zeros": np.zeros, "i4": np.int32, "steps_of": steps_of,
         "whole": lambda size: np.arange(size, dtype=np.int32) * 7 % 64}  # fmt: skip
HEAD = """.version 8.3
.target sm_90
.address_size 64
.visible .entry agree(.param .u64 memory) {
.reg .b32 %r<4>; .reg .b64 %rd<4>; ld.param.u64 %rd1, [memory]; mov.u32 %r1, %ctaid.x;
"""
_compiled = {}


def run(name, fault):
    """Run a program; return its report, its arguments and what they were."""
    case = PROGRAMS[name]
    exec(case["given"], given := dict(TOOLS))
    given = {key: value for key, value in given.items() if key not in {*TOOLS, "__builtins__"}}
    if name not in _compiled:
        source = f"def {name}({', '.join(given)}, fault):\n" + textwrap.indent(case["source"].strip(), "    ")
        exec(source, made := {"cuda": cuda, "float64": float64, "int8": int8, "int32": int32})
        _compiled[name] = cuda.jit(made[name])
    start = {key: np.copy(value) for key, value in given.items()}
    return warpwatch.run(_compiled[name], *case["launch"], *given.values(), fault), given, start


@pytest.mark.parametrize("name", PROGRAMS)
def test_right_programs_are_clean_and_right(name):
    report, given, start = run(name, 0)
    assert report.findings == [], str(report)
    assert eval(PROGRAMS[name]["right"], TOOLS | given | {"start": start}), given


@pytest.mark.parametrize("name, fault", FAULTS)
def test_what_is_missing_is_told(name, fault):
    report, *_ = run(name, int(fault))
    lines = PROGRAMS[name]["source"].strip().splitlines()
    for kind, notes in ("race", report.findings), ("note", report.notes):
        wanted = {n for n, line in enumerate(lines, 2) if f"{fault} {kind}" in line}
        told = {each.line for each in notes if each.kind == "race" and each.other and "same value" not in each.message}
        if wanted or kind == "race":
            assert bool(told) == bool(wanted) and told <= wanted, f"{told} of {wanted}: {report}"


# What is done at the data, and at two places beside it, A and B.
STEPS = {"write": "st.global.u32 [%rd1], 1;", "read": "ld.global.u32 %r2, [%rd1];", "fence": "fence.acq_rel.gpu;",
         "read_only": "ld.global.nc.u32 %r2, [%rd1];", "peek": "ld.global.nc.u32 %r2, [%rd1+{}];",
         "add_wide": "atom.relaxed.gpu.global.add.u64 %rd2, [%rd1+{}], 1;", "reset_wide": "st.global.u64 [%rd1+{}], 0;",
         "release_block": "st.release.cta.global.u32 [%rd1+{}], 1;",
         "set": "st.relaxed.gpu.global.u32 [%rd1+{}], 1;", "release": "st.release.gpu.global.u32 [%rd1+{}], 1;",
         "see": "ld.relaxed.gpu.global.u32 %r2, [%rd1+{}];", "acquire": "ld.acquire.gpu.global.u32 %r2, [%rd1+{}];",
         "add": "atom.relaxed.gpu.global.add.u32 %r2, [%rd1+{}], 1;", "reset": "st.global.u32 [%rd1+{}], 0;",
         "add_release": "atom.release.gpu.global.add.u32 %r2, [%rd1+{}], 1;"}  # fmt: skip
ORDERED = [("write, release A", "acquire A, read"), ("write, release A", "see A, fence, read"),
           ("write, fence, set A", "acquire A, read"), ("write, fence, release B, set A", "acquire A, read"),
           ("write, release A", "see A, acquire B, fence, read"), ("write, release A", "add A, fence, read"),
           ("write, add_release A", "acquire A, read"), ("fence, add A", "add A, reset A"),
           ("read_only", "read_only"), ("write, fence, add_wide A", "add_wide A, reset_wide A")]  # fmt: skip
RACING = [("write, release A, set B", "acquire B, read"), ("write, release B", "see B, acquire A, read"),
          ("write, release A", "see A, read"), ("write, set A", "acquire A, read"),
          ("release A, write", "acquire A, read"), ("write, release A", "read, acquire A"),
          ("write, release A", "add_release A, read"), ("fence, add A", "reset A, add A"),
          ("write, release A", "see A, release B, read"), ("fence, write, set A", "acquire A, read"),
          ("write, release A", "acquire A, read_only"), ("write, release A", "acquire A, peek A")]  # fmt: skip


def litmus(first, second):
    """Return the report of two blocks of a thread each."""
    text = HEAD + ".reg .pred %p; setp.ne.s32 %p, %r1, 0; @%p bra $SECOND;\n"
    for label, steps in ("", first), ("$SECOND:", second):
        done = (step.split() for step in steps.split(", "))
        lines = [STEPS[what].format(*(64 if place == "A" else 68 for place in places)) for what, *places in done]
        text += "\n".join([label, *lines, "ret;\n"])
    return warpwatch.run(text + "}", 2, 1, np.zeros(32, "i4"))


@pytest.mark.parametrize("first, second", ORDERED + RACING)
def test_a_release_and_an_acquire_order_by_their_own_place(first, second):
    report = litmus(first, second)
    assert [each.kind for each in report.findings] == ["race"] * ((first, second) in RACING), str(report)


def test_a_release_for_its_own_block_reaches_no_other():
    report = litmus("write, release_block A", "acquire A, read")
    assert len(report.findings) == 2, f"one at A, and one at the data: {report}"


def test_more_than_can_be_remembered_is_refused(monkeypatch):
    monkeypatch.setattr("warpwatch.fences.MOST", 1)
    with pytest.raises(MemoryError, match="release and acquire too often"):
        litmus(*ORDERED[0])
