"""Textbook kernels in CUDA C, what `nvcc` made of them, and what they must do: data for tests.

`ptx/kernels/NAME.cu` is a kernel, `NAME.ptx` its text, `NAME-FAULT.ptx` that of a copy with a fault. The
texts were made by nvcc 13.0, and `python tests/ptx_textbook.py` makes all of them anew:

    nvcc -ptx -arch=sm_90 -lineinfo [-DFAULT] NAME.cu

without comments, empty lines and the names of inlined functions, and with files by their last names. A few are for
sm_75. In a source, `#ifdef FAULT` makes a fault, and `// FAULT: kind` ends the lines where a finding of that kind may
be.

`vector_add_triton.ptx` is what Triton 3.6 made, by `triton.compile` for `GPUTarget("cuda", 90, 32)` with BLOCK = 256,
without its debug sections, of

    @triton.jit
    def vector_add_triton(a, b, c, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = i < n
        tl.store(c + i, tl.load(a + i, inside) + tl.load(b + i, inside), inside)
"""

import math
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

KERNELS = Path(__file__).parent / "ptx" / "kernels"
VIEW = [*((n, "f8") for n in ("left", "top", "step")), ("width", "i4"), ("height", "i4"), ("limit", "u2")]
VIEW = np.dtype(VIEW, align=True)


class Case(NamedTuple):
    """A launch: `form` is the kernel in NumPy, of the same name; `arguments(rng)` are its arrays and scalars."""

    form: Callable
    grid: int | tuple
    block: int | tuple
    arguments: Callable
    tolerance: float = 0  # relative and absolute; 0: the same numbers
    shared: int = 0
    arch: str = "sm_90"
    name: str = ""  # if it is another than the form's

    @property
    def entry(self):
        return self.name or self.form.__name__

    @property
    def source(self):
        return KERNELS / f"{self.entry}.cu"

    def text(self, fault=None):
        """The PTX, of a copy with a fault if one is named."""
        return (KERNELS / f"{self.entry}{'-' + fault if fault else ''}.ptx").read_text(encoding="utf-8")

    def faults(self):
        """What is found in the copies: by fault, the kind and the lines of the source where that may be."""
        found = {}
        if not self.source.exists():
            return found
        for number, line in enumerate(self.source.read_text(encoding="utf-8").splitlines(), 1):
            if marked := re.search(r"// ([A-Z_]+): (.*)", line):
                kind, lines = found.setdefault(marked[1], (marked[2], set()))
                assert kind == marked[2], (self.source, number)
                lines.add(number)
        return found

    def expected(self, arguments):
        """The arguments as the kernel must leave them."""
        made = [np.copy(a) if isinstance(a, np.ndarray) else a for a in arguments]
        with np.errstate(all="ignore"):
            self.form(*made)
        return made


def floats(rng, *shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


# The kernels in NumPy: what they write is written into the same arguments.


def vector_add(a, b, c, n, *scratch):
    c[:n] = a[:n] + b[:n]


def scale_strided(x, factor, n):
    x[:n] *= factor


def saxpy_half(a, x, y, n):
    y[:n] = np.float16(a).astype(np.float32) * x[:n].astype(np.float32) + y[:n]


def matmul(a, b, c, *sizes):
    c[:] = a @ b


def transpose(a, out, *sizes):
    out[:] = a.T


def reduce_shared(x, out, n):
    out[:] = np.append(x, np.zeros(-n % len(out), x.dtype)).reshape(len(out), -1).sum(axis=1)


def reduce_shuffle(x, out, n):
    out += x.sum()


def dot(x, y, out, n):
    out += x @ y


def histogram(x, counts, n):
    counts += np.bincount(x, minlength=256).astype(counts.dtype)


def scan_hillis_steele(x):
    x[:] = np.cumsum(x, axis=1)


def scan_blelloch(x, n):
    x[:] = np.cumsum(x) - x


def stencil(x, out, n):
    out[:] = np.convolve(x, np.ones(7, x.dtype), "same")


def softmax(x, out, n):
    raised = np.exp(x - x.max(axis=1, keepdims=True))
    out[:] = raised / raised.sum(axis=1, keepdims=True)


def bitonic_sort(x):
    x.sort(axis=1)


def matvec_warp(a, x, y, rows, columns):
    y[:] = a @ x


def convolution(a, out, height, width):
    padded = np.pad(a, 1)
    for (i, j), weight in np.ndenumerate([[1, 2, 1], [0, 0.5, 0], [-1, -2, -1]]):
        out += np.float32(weight) * padded[i : i + height, j : j + width]


def compact(x, out, counts, n):
    for block, start in enumerate(range(0, n, 96)):
        kept = [v for v in x[start : start + 96] if v > 0]
        counts[block] = len(kept)
        out[start : start + len(kept)] = kept


def mandelbrot(view, steps):
    for (y, x), _ in np.ndenumerate(steps):
        c, z, n = complex(view["left"] + x * view["step"], view["top"] + y * view["step"]), 0j, 0
        while z.real**2 + z.imag**2 <= 4 and n < view["limit"]:
            z, n = z * z + c, n + 1
        steps[y, x] = n


def median(x, out, n):
    out[:] = np.median(np.lib.stride_tricks.sliding_window_view(np.pad(x, 2, "edge"), 5), axis=1)


def bits(x, y, out, n):
    def signed(v, width):
        return (v & ((1 << width) - 1)) - ((v >> (width - 1) & 1) << width)

    for i, (a, b) in enumerate(zip(x.tolist(), y.tolist(), strict=True)):
        wide, one, less = a << 32 | b, b | 1, signed(a, 32)
        by = signed(one, 32)
        octets = [*a.to_bytes(4, "little"), *b.to_bytes(4, "little")]
        results = [a.bit_count(), 32 - a.bit_length(), (a & -a).bit_length(), int(f"{a:032b}"[::-1], 2), a * b >> 32]
        results += [less * signed(b, 32) >> 32, sum(octets[q] << 8 * k for k, q in enumerate((4, 0, 6, 1)))]
        results += [(b << 32 | a) << (a & 31) >> 32, a // one, (abs(less) % abs(by)) * (-1 if less < 0 else 1)]
        results += [less >> (b & 31), 64 - wide.bit_length(), wide.bit_count(), wide // (a | 1), abs(a - b) + 7]
        results += [max(less, signed(b, 32)), min(a, b), signed(a, 16), signed(b, 8), a * a + b]
        out[:, i] = [v & 0xFFFFFFFF for v in results]


def votes(keys, out):
    for start in range(0, len(keys), 64):
        whole = keys[start : start + 64]
        for lane, key in enumerate(whole.tolist()):
            warp = whole[lane // 32 * 32 :][:32]
            same = sum(1 << int(other) for other in np.flatnonzero(warp == key))
            told = int((warp < 3).all()) + 2 * int((warp == 0).any())
            count = int((whole == 1).sum()) + 1000 * int((whole == 7).any())
            out[:, start + lane] = [warp.sum(), same, told, count, warp[lane % 32 // 8 * 8 + key], warp.max()]


def forces(x, force, n):
    apart = x[None, :, :3] - x[:, None, :3]
    near = (apart**2).sum(axis=2) + np.float32(0.01)
    force[:] = (apart * (x[None, :, 3] / near**1.5)[..., None]).sum(axis=1)


def life(now, after, height, width):
    around = sum(np.roll(now, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1)) - now
    after[:] = (around == 3) | (around == 2) & (now == 1)


def spmv(starts, columns, values, x, y, rows):
    for row in range(rows):
        part = slice(starts[row], starts[row + 1])
        y[row] = values[part] @ x[columns[part]]


def largest(x, out, n):
    out[0] = max(out[0], x.max())


def sum_last_block(x, parts, out, n):
    for block in range(len(parts)):
        parts[block] = sum(x[start : start + 64].sum() for start in range(64 * block, n, 64 * len(parts)))
    out[:] = x.sum()


def lock(total):
    total += 4


def gather_cached(table, index, out, n):
    out[:] = table[index]


def sparse(rng, rows, columns):
    """Starts, columns and values of a matrix in CSR."""
    kept = rng.random((rows, columns)) < 0.2
    starts = np.append(0, np.cumsum(kept.sum(axis=1)))
    return starts.astype(np.int32), np.nonzero(kept)[1].astype(np.int32), floats(rng, kept.sum(), dtype=np.float64)


def elementary(x, out, n):
    v, above = x.astype(np.float64), (np.abs(x) + np.float32(0.1)).astype(np.float64)
    out[:6] = np.log(above), np.tanh(v), np.arctan(v), [math.erf(a) for a in v], np.expm1(v), np.cbrt(v)
    out[6:12] = np.sqrt(above), 1 / above, np.rint(v), np.floor(v), np.trunc(v), v * v - v
    out[12:17] = np.copysign(2, v), np.minimum(v, 0.5), 8 * v, np.sin(v), np.cos(v)
    out[17:] = np.log2(above), v / above


def whole(v, bits=32, least=None):
    """A number without fraction as the nearest of a type of integers; a double that is NaN as the PTX manual has it."""
    least = -(1 << bits - 1) if least is None else least
    if not math.isfinite(v):
        return least + (1 << bits) - 1 if v > 0 else least
    return min(max(int(v), least), least + (1 << bits) - 1)


def directed(v, end):
    """The nearest float towards an end."""
    near = np.float32(v)
    beyond = near > v if end < 0 else near < v
    return np.nextafter(near, np.float32(end)) if beyond else near


def conversions(x, out, n):
    for i, v in enumerate(x):
        w = np.float64(1) if np.isnan(v) else v
        f, cut = np.float32(w), whole(np.trunc(v))
        reals = [f, directed(w, -np.inf), directed(w, np.inf)]
        toward = directed(np.float64(cut), -np.inf if cut > 0 else np.inf)
        within = min(np.float32(v), np.float32(1)) if v > 0 else np.float32(0)  # of -0, too
        results = [whole(np.rint(v)), cut, whole(np.ceil(v)), whole(np.floor(v)), whole(np.rint(f), least=0)]
        results += [int(r.view(np.int32)) for r in reals] + [int(np.float16(w).view(np.int16))]
        results += [int(toward.view(np.int32)), int(within.view(np.int32)), whole(np.rint(v), 64) >> 16]
        bits = int(v.view(np.int64))
        results += [bits >> 32, bits, np.isnan(v), np.signbit(v)]
        out[:, i] = [np.int64(int(r) & 0xFFFFFFFF).astype(np.int32) for r in results]


def numbers(rng):
    """A hundred numbers of all sizes, halves, ends and NaN among them."""
    ends = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1e-310, np.inf, -np.inf, np.nan, 2.0**31, -(2.0**31) - 1, 2.0**63]
    return np.append([*ends, 65520.0], rng.standard_normal(85) * 2.0 ** rng.integers(-30, 40, 85))


i4, u4, f2, f4, f8 = np.int32, np.uint32, np.float16, np.float32, np.float64
CASES = [
    Case(vector_add, 4, 64, lambda r: [floats(r, 200), floats(r, 200), np.zeros(200, f4), i4(200)], arch="sm_75"),
    Case(scale_strided, 2, 64, lambda r: [floats(r, 500, dtype=f8), f8(-2.5), np.int64(500)]),
    Case(saxpy_half, 2, 64, lambda r: [f4(1.5), floats(r, 151, dtype=f2), floats(r, 151, dtype=f2), i4(151)], 2e-3,
         arch="sm_75"),
    Case(matmul, (2, 3), (16, 8),
         lambda r: [floats(r, 20, 11), floats(r, 11, 30), np.zeros((20, 30), f4), i4(20), i4(11), i4(30)], 1e-5,
         name="matmul_naive"),
    Case(matmul, (3, 3), (8, 8),
         lambda r: [floats(r, 20, 20), floats(r, 20, 20), np.zeros((20, 20), f4), i4(20)], 1e-5,
         name="matmul_tiled"),
    Case(transpose, (3, 2), (16, 16),
         lambda r: [floats(r, 25, 40, dtype=f8), np.zeros((40, 25)), i4(25), i4(40)], name="transpose_naive"),
    Case(transpose, (3, 3), (16, 4), lambda r: [floats(r, 40, 40), np.zeros((40, 40), f4), i4(40)],
         name="transpose_tiled"),
    Case(transpose, (2, 2), (16, 16),
         lambda r: [r.integers(-1000, 1000, (32, 32), i4), np.zeros((32, 32), i4), i4(32)], name="transpose_padded"),
    Case(reduce_shared, 3, 64, lambda r: [floats(r, 190), np.zeros(3, f4), i4(190)], 1e-4, shared=256),
    Case(reduce_shuffle, 3, 96, lambda r: [floats(r, 1000), np.ones(1, f4), i4(1000)], 1e-3),
    Case(dot, 3, 64, lambda r: [floats(r, 190, dtype=f8), floats(r, 190, dtype=f8), np.ones(1), i4(190)], 1e-12),
    Case(histogram, 3, 96, lambda r: [r.integers(0, 256, 1000, np.uint8), np.ones(256, u4), i4(1000)]),
    Case(scan_hillis_steele, 3, 96, lambda r: [r.integers(-99, 99, (3, 96), i4)], shared=2 * 96 * 4),
    Case(scan_blelloch, 1, 64, lambda r: [floats(r, 128), i4(128)], 1e-4, shared=512),
    Case(stencil, 4, 64, lambda r: [r.integers(-99, 99, 250, i4), np.zeros(250, i4), i4(250)]),
    Case(softmax, 3, 128, lambda r: [10 * floats(r, 3, 200), np.zeros((3, 200), f4), i4(200)], 1e-5),
    Case(bitonic_sort, 2, 128, lambda r: [r.integers(-999, 999, (2, 128), np.int16)], shared=256),
    Case(matvec_warp, 3, 64, lambda r: [floats(r, 5, 140), floats(r, 140), np.zeros(5, f4), i4(5), i4(140)], 1e-4),
    Case(convolution, (2, 3), (16, 8), lambda r: [floats(r, 20, 30), np.zeros((20, 30), f4), i4(20), i4(30)], 1e-5),
    Case(compact, 3, 96, lambda r: [r.integers(-9, 9, 250, i4), np.zeros(288, i4), np.zeros(3, i4), i4(250)]),
    Case(mandelbrot, (3, 2), (8, 8),
         lambda r: [np.array((-2, -1.2, 0.125, 24, 16, 60), VIEW)[()], np.zeros((16, 24), np.uint16)], arch="sm_75"),
    Case(median, 2, 64, lambda r: [floats(r, 100), np.zeros(100, f4), i4(100)]),
    Case(bits, 2, 64, lambda r: [*r.integers(0, 1 << 32, (2, 100), u4), np.zeros((20, 100), u4), i4(100)]),
    Case(votes, 2, 64, lambda r: [r.integers(0, 4, 128, u4), np.zeros((6, 128), u4)]),
    Case(forces, 2, 64, lambda r: [floats(r, 100, 4), np.zeros((100, 3), f4), i4(100)], 1e-3),
    Case(life, (3, 3), (16, 8),
         lambda r: [r.integers(0, 2, (20, 40), np.uint8), np.zeros((20, 40), np.uint8), i4(20), i4(40)]),
    Case(spmv, 2, 32, lambda r: [*sparse(r, 50, 40), floats(r, 40, dtype=f8), np.zeros(50), i4(50)], 1e-12),
    Case(largest, 3, 64, lambda r: [floats(r, 190), np.full(1, -9, f4), i4(190)], arch="sm_75"),
    Case(sum_last_block, 3, 64, lambda r: [floats(r, 500), np.zeros(3, f4), np.zeros(1, f4), i4(500)], 1e-4),
    Case(lock, 4, 32, lambda r: [np.zeros(1, i4)]),
    Case(gather_cached, 4, 64,
         lambda r: [floats(r, 100), (r.permutation(200) % 100).astype(i4), np.zeros(200, f4), i4(200)]),
    Case(elementary, 2, 64, lambda r: [3 * floats(r, 100), np.zeros((19, 100), f4), i4(100)], 1e-5),
    Case(conversions, 2, 64, lambda r: [numbers(r), np.zeros((16, 100), i4), i4(100)]),
    Case(vector_add, 2, 128,
         lambda r: [floats(r, 500), floats(r, 500), np.zeros(500, f4), i4(500), np.uint64(0), np.uint64(0)],
         name="vector_add_triton"),
]  # fmt: skip
# Texts with what is not known, by what an error must name.
UNKNOWN = {"called": "call", "tensor_cores": "wmma.load", "copied_async": "cp.async"}


def make(name, fault=None, arch="sm_90"):
    """Compile a text, and strip it."""
    file = KERNELS / f"{name}{'-' + fault if fault else ''}.ptx"
    command = ["nvcc", "-ptx", f"-arch={arch}", "-lineinfo", *([f"-D{fault}"] if fault else []), f"{name}.cu"]
    subprocess.run([*command, "-o", file.name], cwd=KERNELS, check=True)
    text = re.sub(r"(?m)[ \t]*(//.*)?$", "", file.read_text(encoding="utf-8"))
    text = re.sub(r"(?m)(^\$L__info_string\d+:\n)(?:\.b8 .*\n)+", r"\1.b8 0\n", text)
    text = re.sub(r'(\.file\s+\d+ )".*/(.*?)"', r'\1"\2"', re.sub(r"\n\n+", "\n", text).lstrip())
    file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for case in CASES:
        if case.source.exists():
            for fault in (None, *case.faults()):
                make(case.entry, fault, case.arch)
    for name in UNKNOWN:
        make(name)
