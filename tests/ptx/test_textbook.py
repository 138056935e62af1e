"""Textbook kernels in CUDA C and Triton, as compiled: right ones compute what NumPy does, faults are found."""

import numpy as np
import ptx_textbook as textbook
import pytest
from rings import more

from bppsa_nb import ptx
from bppsa_nb.ptx import machine

CASES = {case.entry: case for case in textbook.CASES}


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Take a kernel for endless sooner."""
    monkeypatch.setattr(machine, "IDLE", 1 << 18)


def run(case, fault=None):
    """Launch a kernel; return the report, the arguments as they are then, and as they should be."""
    arguments = case.arguments(np.random.default_rng(0))
    expected = case.expected(arguments)
    launch = case.text(fault), case.grid, case.block, *arguments
    return ptx.run(*launch, shared=case.shared, entry=case.entry), arguments, expected


@pytest.mark.parametrize("name", CASES)
def test_right_kernels_compute_what_numpy_does_and_nothing_is_found(name):
    case = CASES[name]
    report, arguments, expected = run(case)
    assert not report.findings, str(report)
    for found, wanted in zip(arguments, expected, strict=True):
        if case.tolerance:
            np.testing.assert_allclose(found, wanted, rtol=case.tolerance, atol=case.tolerance)
        else:
            np.testing.assert_array_equal(found, wanted)


PLANTED = [(name, fault) for name, case in CASES.items() for fault in case.faults()]


# An endless loop is told after a while.
@pytest.mark.parametrize("name, fault", [more(*each) if each[0] == "mandelbrot" else each for each in PLANTED])
def test_faults_are_found_in_their_lines(name, fault):
    kind, lines = CASES[name].faults()[fault]
    report, *_ = run(CASES[name], fault)
    told = [(each.kind, each.line) for each in report.findings] or [("note", each.line) for each in report.notes]
    assert any((kind, line) in told for line in lines), str(report)


@pytest.mark.parametrize("name, instruction", textbook.UNKNOWN.items())
def test_what_is_not_known_is_named(name, instruction):
    with pytest.raises(ValueError, match=instruction):
        ptx.run(textbook.KERNELS / f"{name}.ptx", 1, 32, np.zeros(64, np.float32))
