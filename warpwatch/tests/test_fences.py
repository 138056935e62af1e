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
