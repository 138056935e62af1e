"""Textbook kernels in CUDA C and Triton, as compiled: right ones compute what NumPy does, faults are found."""

import numpy as np
import pytest
import textbook as textbook
from helpers import more

import warpwatch
from warpwatch import machine


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Take a kernel for endless sooner."""
    monkeypatch.setattr(machine, "IDLE", 1 << 18)
    monkeypatch.setattr(machine, "SECONDS", 0)


def run(name, arguments, fault=None):
    case = textbook.CASES[name]
    sizes = [tuple(size) if isinstance(size, list) else size for size in case["launch"]]
    text, room = textbook.text(name, fault), case.get("shared", 0)
    return warpwatch.run(text, *sizes, *arguments.values(), shared=room, entry=name)


@pytest.mark.parametrize("name", textbook.CASES)
def test_right_kernels_compute_what_numpy_does_and_nothing_is_found(name):
    arguments, expected = textbook.given(name)
    report = run(name, arguments)
    assert not report.findings, str(report)
    tolerance = textbook.CASES[name].get("tolerance")
    for key, wanted in expected.items():
        if tolerance:
            np.testing.assert_allclose(arguments[key], wanted, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(arguments[key], wanted)


PLANTED = [(name, fault, *found) for name in textbook.CASES for fault, found in textbook.faults(name).items()]


# An endless loop is told after a while.
@pytest.mark.parametrize("name, fault, kind, lines", [more(*p) if p[0] == "mandelbrot" else p for p in PLANTED])
def test_faults_are_found_in_their_lines(name, fault, kind, lines):
    report = run(name, textbook.given(name)[0], fault)
    told = [(each.kind, each.line) for each in report.findings] or [("note", each.line) for each in report.notes]
    assert any((kind, line) in told for line in lines), str(report)


@pytest.mark.parametrize("name, instruction", textbook.UNKNOWN.items())
def test_what_is_not_known_is_named(name, instruction):
    with pytest.raises(ValueError, match=instruction):
        warpwatch.run(textbook.text(name), 1, 32, np.zeros(64, np.float32))
