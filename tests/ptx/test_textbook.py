"""Textbook kernels in CUDA C, as nvcc compiled them: right ones compute what NumPy does, faults are found."""

from pathlib import Path

import numpy as np
import pytest

from bppsa_nb import ptx

FOLDER = Path(__file__).parent / "textbook"
RNG = np.random.default_rng(0)
I32, F32, F64 = np.int32, np.float32, np.float64


def normal(*shape, dtype=F32):
    return RNG.standard_normal(shape).astype(dtype)


def run(entry, grid, block, *arguments, faults=False, **more):
    return ptx.run(FOLDER / ("faults.ptx" if faults else "textbook.ptx"), grid, block, *arguments, entry=entry, **more)


def matmul():
    a, b, c = normal(32, 32), normal(32, 32), np.zeros((32, 32), F32)
    return ((2, 2), (16, 16), a, b, c, I32(32)), lambda: (c, a @ b)


def reduce():
    x, out = normal(1000), np.zeros(1, F32)
    return (4, 128, x, out, I32(1000)), lambda: (out, x.sum())


def hist():
    x, out = RNG.integers(0, 1000, 3000).astype(I32), np.zeros(64, I32)
    return (4, 128, x, out, I32(3000)), lambda: (out, np.bincount(x & 63, minlength=64))


def half2f():
    x, out = normal(100, dtype=np.float16), np.zeros(100, F32)
    return (1, 128, x, out, I32(100)), lambda: (out, np.exp(x.astype(F32)) + np.tanh(x.astype(F32)))


def calls():
    x, out = normal(100), np.zeros(100, F32)
    p = np.array([(100, 2, 0.5)], [("n", "i4"), ("s", "f4"), ("d", "f8")])[0]

    def poly(x, n):
        v = F32(1)
        for i in range(n):
            v = v * x + F32(i)
        return abs(v)

    return (1, 128, x, out, p), lambda: (
        out,
        [2 * (poly(v, i % 4) + poly(v + 1, i % 4 + 1)) + 0.5 for i, v in enumerate(x)],
    )


def sw():
    x, out = RNG.integers(0, 9, 65).astype(I32), np.zeros(64, F32)

    def one(i):
        table = [(x[i + 1] & 7) * i, 2, [1, 2, 3, 4.5][i & 3], np.sin(i), 5, (i & 7) * i]
        return table[x[i]] if x[i] < 6 else 7

    return (1, 64, x, out, I32(64)), lambda: (out, [one(i) for i in range(64)])


def generic():
    x, out = normal(64), np.zeros(64, F32)
    return (1, 64, x, out), lambda: (out, np.where(np.arange(64) & 1, 2 * x[::-1], x[::-1]))


def counts():
    x, out = RNG.integers(-90, 90, 64).astype(I32), np.zeros(256, I32)

    def wanted():
        w = x.reshape(2, 32)
        same = [(row & 3 == v & 3).sum() for row in w for v in row]
        ballot = [sum(1 << n for n in range(32) if row[n] > 0) for row in w]
        ballot = np.repeat(np.array(ballot, "u4").view(I32), 32)
        return out, np.concatenate([np.full(64, (x > 0).sum() * 100 + 10), same, np.repeat(w.sum(1), 32), ballot])

    return (1, 64, x, out), wanted


def warpsum():
    x, out = normal(64), np.zeros(1, F32)
    return (1, 64, x, out), lambda: (out, x.sum())


def v4():
    x, out = normal(64, 4), np.zeros((64, 4), F32)
    return (1, 64, x, out), lambda: (out, np.concatenate([x[:, :1] + x[:, 3:], x[:, 1:]], 1))


def half2k():
    a, b, out = normal(64, 2, dtype=np.float16), normal(64, 2, dtype=np.float16), np.zeros((64, 2), np.float16)
    return (1, 64, a, b, out), lambda: (out, (a.astype(F32) * b + (a + b)).astype(np.float16))


def saxpy():
    x, y = normal(100), normal(100)
    wanted = F32(2.5) * x + y
    return (2, 64, I32(100), F32(2.5), x, y), lambda: (y, wanted)


def transpose():
    a, out = normal(32, 32), np.zeros((32, 32), F32)
    return ((2, 2), (16, 16), a, out, I32(32)), lambda: (out, a.T)


def scan():
    x, out = normal(128), np.zeros(128, F32)
    return (1, 128, x, out), lambda: (out, np.cumsum(x))


def stencil():
    x, out = normal(128), np.zeros(128, F32)
    return (2, 64, x, out, I32(128)), lambda: (out, np.convolve(x, np.ones(3, F32), "same"))


def softmax():
    x, out = normal(3, 100), np.zeros((3, 100), F32)
    return (3, 64, x, out, I32(100)), lambda: (out, np.exp(x) / np.exp(x).sum(1, keepdims=True))


def dot():
    x, y, out = normal(200, dtype=F64), normal(200, dtype=F64), np.zeros(1)
    return (1, 64, x, y, out, I32(200)), lambda: (out, x @ y)


def bitonic():
    x = RNG.integers(-1000, 1000, 128).astype(I32)
    wanted = np.sort(x)
    return (1, 128, x), lambda: (x, wanted)


def jacobi():
    a, b = normal(16, 16, dtype=F64), np.zeros((16, 16))
    wanted = np.zeros((16, 16))
    wanted[1:-1, 1:-1] = (a[1:-1, :-2] + a[1:-1, 2:] + a[:-2, 1:-1] + a[2:, 1:-1]) / 4
    return ((2, 2), (8, 8), a, b, I32(16)), lambda: (b, wanted)


def total():
    x, out = normal(128), np.zeros(1, F32)
    return (2, 64, x, out), lambda: (out, x.sum())


RIGHT = [matmul, reduce, hist, half2f, calls, sw, generic, counts, warpsum, v4, half2k, saxpy,
         transpose, scan, stencil, softmax, dot, bitonic, jacobi, total]  # fmt: skip


@pytest.mark.parametrize("case", RIGHT, ids=lambda case: case.__name__)
def test_what_is_right_computes_what_numpy_does(case):
    arguments, wanted = case()
    report = run(case.__name__, *arguments, shared=256 if case is hist else 0)
    assert report.findings == [], report
    found, wanted = wanted()
    error = abs(np.asarray(found, F64) - np.asarray(wanted, F64)).max()
    assert error <= (2e-2 if found.dtype == np.float16 else 2e-5) and (found.dtype != I32 or error == 0)


WRONG = {"matmul": ("race", "s"), "saxpy": ("out of bounds", "argument 2"), "transpose": ("race", "t"),
         "scan": ("race", "s"), "stencil": ("uninitialized", "s"), "softmax": ("race", "s"),
         "dot": ("race", "s"), "bitonic": ("race", "s"), "jacobi": ("out of bounds", "argument 0"),
         "total": ("race", "argument 1")}  # fmt: skip


@pytest.mark.parametrize("name", list(WRONG))
def test_faults_are_found(name):
    arguments, _ = next(case for case in RIGHT if case.__name__ == name)()
    if name in ("jacobi", "saxpy"):
        arguments = tuple(
            a[: 256 if name == "jacobi" else 100].copy() if isinstance(a, np.ndarray) else a for a in arguments
        )
    report = run(name, *arguments, faults=True)
    kind, array = WRONG[name]
    lines = (FOLDER / "textbook.cu").read_text(encoding="utf-8").splitlines()
    begin = next(n for n, line in enumerate(lines) if f" {name}(" in line)
    found = [f for f in report.findings if (f.kind, f.array) == (kind, array)]
    assert found and found[0].file == "textbook.cu" and begin < found[0].line < begin + 20, report
    assert found[0].other is None or found[0].other != (found[0].block, found[0].thread)


def test_what_stops_a_launch(monkeypatch):
    x = np.zeros(64, I32)
    x[40] = 5
    (found,) = run("assertion", 1, 64, x).findings
    assert (found.kind, found.thread) == ("trap", 40) and x[0] == 0
    monkeypatch.setattr("bppsa_nb.ptx.machine.STEPS", 500)
    (found,) = run("spin", 1, 64, np.zeros(2, I32)).findings
    assert found.kind == "endless" and "after 500 steps" in str(found)


def test_wide_requests_are_counted_as_one():
    arguments, _ = v4()
    counters = run("v4", *arguments).counters
    assert counters["sectors per request"] == 16  # 512 bytes a warp
    arguments, _ = transpose()
    assert (
        run("transpose", *arguments).counters["shared passes per request"] == 2
    )  # a warp has two rows of 16, 17 apart
    arguments, _ = total()
    assert run("total", *arguments).counters["atomics"] == 128
    arguments, _ = matmul()
    assert run("matmul", *arguments).counters["multiply-adds"] == 32**3
