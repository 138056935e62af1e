"""Kernels' PTX is found again as long as nothing that it depends on has changed."""

import pytest

from bppsa_nb.machine import ptx_cache

SOURCE = """
import math
from numba import cuda
SCALE = 2

def half(x):
    return x / 2

def maker(count):
    @cuda.jit(fastmath=False)
    def kernel(x):
        x[0] = SCALE * half(x[0]) + count + math.exp(0.0)
    return kernel

kernel = maker(3)
"""


@pytest.fixture
def times(tmp_path, monkeypatch):
    """How often a program's kernel is compiled: 1 the first time, 0 if it is found."""
    monkeypatch.setenv("BPPSA_NB_CACHE", str(tmp_path))

    def times(source, types=("float32",), *how):
        made, names = [], {}
        exec(compile(source, "a file.py", "exec"), names)
        text = ptx_cache.kept(lambda: made.append(1) or "text", names["kernel"], types, *how)
        assert text == "text"
        return len(made)

    return times


def test_what_has_not_changed_is_found(times):
    assert [times(SOURCE) for _ in range(3)] == [1, 0, 0]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SCALE = 2", "SCALE = 3"),
        ("SCALE = 2", "SCALE = 2.0"),
        ("x / 2", "x * 2"),
        ("maker(3)", "maker(4)"),
        ("fastmath=False", "fastmath=True"),
        ("math.exp", "math.sin"),
        ("    x[0] = ", "\n        x[0] = "),  # another line in the report
        ("return x / 2", "return x / TWO\n\nTWO = 2"),
        ("SCALE * half", "(lambda: SCALE * 2)() * half"),
    ],
)
def test_what_has_changed_is_compiled_anew(times, old, new):
    assert times(SOURCE) == 1 and old in SOURCE
    assert [times(SOURCE.replace(old, new)) for _ in range(2)] == [1, 0]
    assert times(SOURCE) == 0


def test_types_and_options_count(times):
    assert [times(SOURCE), times(SOURCE, ("float64",)), times(SOURCE, ("float32",), (9, 0))] == [1, 1, 1]


@pytest.mark.parametrize("value", ["[1, 2]", "__import__('numpy').ones(3)", "__import__('bppsa_nb')", "object()"])
def test_what_cannot_be_told_is_not_kept(times, value):
    source = SOURCE.replace("SCALE = 2", f"SCALE = {value}")
    assert [times(source), times(source)] == [1, 1]


def test_functions_that_call_themselves_come_to_an_end(times):
    assert times(SOURCE.replace("return x / 2", "return half(x) if x > 1 else x")) == 1


def test_a_folder_that_cannot_be_written_stops_nothing(times, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BPPSA_NB_CACHE", str(tmp_path / "file"))
    assert [times(SOURCE), times(SOURCE)] == [1, 1]
