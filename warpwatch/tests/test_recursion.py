"""Functions that call themselves: what they return, what is theirs at each depth, and calls without end."""

import numpy as np
import pytest
from helpers import beside
from numba import cuda

import warpwatch
from warpwatch.launch import launch

KERNEL, FUNCTIONS = beside(__file__)["KERNEL"], beside(__file__)["functions"]
X = np.random.default_rng(0).permutation(np.arange(300) % 13).astype("i4")


def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def ackermann(m, n):
    return n + 1 if m == 0 else ackermann(m - 1, ackermann(m, n - 1) if n else 1)


def added(n):
    return n + added(n - 1) + added(n - 2) if n > 0 else 0


MEANT = {"fib": fib, "even": lambda n: n % 2 == 0, "ackermann": lambda n: ackermann(n % 3, n), "early": lambda n: n,
         "framed": added, "nested": lambda n: fib(fib(n % 6)) + n,
         "sizes": lambda n: (n % 2 == 0) ^ 3 * 2**n // 2 % 256}  # fmt: skip


def run(name, x, **how):
    functions = FUNCTIONS["fib"] * (name == "nested") + FUNCTIONS[name]
    text, out = KERNEL.replace("FUNCTIONS", functions).replace("NAME", name), np.full(len(x), -1, "i4")
    return out, launch(text, 3, len(x) // 3, (x, out), **how)


@pytest.mark.parametrize("watch", [True, False])
@pytest.mark.parametrize("name", MEANT)
def test_functions_that_call_themselves(name, watch, monkeypatch):
    for lanes in (1 << 16, 1 << 10):  # all blocks together, and one after the other
        monkeypatch.setattr("warpwatch.machine.LANES", lanes)
        out, report = run(name, X, watch=watch)
        assert out.tolist() == [MEANT[name](n) for n in X.tolist()] and report.findings == [], report


def test_functions_of_numba():
    @cuda.jit
    def quicksort(a, low, high):
        if low >= high:
            return
        last = low
        for k in range(low, high):
            if a[k] < a[high]:
                a[k], a[last] = a[last], a[k]
                last += 1
        a[high], a[last] = a[last], a[high]
        quicksort(a, low, last - 1)
        quicksort(a, last + 1, high)

    @cuda.jit
    def fibonacci(n):
        if n < 2:
            return n
        return fibonacci(n - 1) + fibonacci(n - 2)

    @cuda.jit
    def both(x, out, large):
        i = cuda.grid(1)
        out[i] = fibonacci(out[i])
        quicksort(x, 10 * i, 10 * i + 9 + large)

    x, out = np.random.default_rng(1).integers(0, 99, 640), np.arange(64) % 10
    wanted = np.sort(x.reshape(64, 10), 1), [fib(n) for n in out.tolist()]
    assert warpwatch.run(both, 2, 32, x, out, 0).findings == []
    assert (x.reshape(64, 10) == wanted[0]).all() and out.tolist() == wanted[1]
    assert {found.kind for found in warpwatch.run(both, 2, 32, x, out % 10, 1).findings} == {"race", "out of bounds"}


def test_local_memory_of_a_call_begins_unwritten():
    (found,) = run("stale", X)[1].findings
    assert (found.kind, found.array, found.place, found.block) == ("uninitialized", "own", 1, 0)
    assert X[found.thread] > 1


@pytest.mark.parametrize("name, depth", [("endless", 1000), ("large", 25)])
def test_calls_without_end_are_told(name, depth):
    (found,) = run(name, np.where(np.arange(300) == 7, -1, X))[1].findings
    assert (found.kind, found.block, found.thread) == ("endless", 0, 7) and f" {depth} calls deep" in found.message
    assert "call" in found.instruction


REFUSED = [("structure", "structure, which passes itself structures"),
           ("giving", "registers, which is given registers")]  # fmt: skip


@pytest.mark.parametrize("name, why", REFUSED)
def test_calls_that_are_not_known_are_refused(name, why):
    with pytest.raises(ValueError, match=f"a call of {why}"):
        run(name, X)
