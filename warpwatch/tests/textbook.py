"""Textbook kernels in CUDA C, what `nvcc` made of them, and what they must do: data for tests.

The .toml file beside this one has a launch of each. `kernels/NAME.cu` is a kernel, `NAME.ptx` its text,
`NAME-FAULT.ptx` that of a copy with a fault. The texts were made by nvcc 13.0, and `python warpwatch/tests/textbook.py`
makes all of them anew:

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

import functools
import math
import re
import subprocess
from pathlib import Path

import numpy as np
from helpers import beside

KERNELS = Path(__file__).parent / "kernels"
CASES = beside(__file__)
VIEW = [*((n, "f8") for n in ("left", "top", "step")), ("width", "i4"), ("height", "i4"), ("limit", "u2")]
# Texts with what is not known, by what an error must name.
UNKNOWN = {"tensor_cores": "wmma.load", "copied_async": "cp.async"}


def floats(rng, *shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def csr(rng, rows, columns):
    """Starts, columns and values of a matrix in CSR."""
    kept = rng.random((rows, columns)) < 0.2
    starts = np.append(0, np.cumsum(kept.sum(axis=1)))
    return starts.astype(np.int32), np.nonzero(kept)[1].astype(np.int32), floats(rng, kept.sum(), dtype=np.float64)


def numbers(rng):
    """A hundred numbers of all sizes, halves, ends and NaN among them."""
    ends = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1e-310, np.inf, -np.inf, np.nan, 2.0**31, -(2.0**31) - 1, 2.0**63]
    return np.append([*ends, 65520.0], rng.standard_normal(85) * 2.0 ** rng.integers(-30, 40, 85))


TOOLS = {"np": np, "math": math, "zeros": np.zeros, "VIEW": np.dtype(VIEW, align=True), "__builtins__": __builtins__}
TOOLS |= {code: np.dtype(code).type for code in ("i4", "i8", "u4", "u8", "f2", "f4", "f8")}


def given(name):
    """Return the arguments of a kernel's launch, and as the kernel must leave them; both by their names."""
    rng = np.random.default_rng(0)
    tools = TOOLS | {"r": rng} | {each.__name__: functools.partial(each, rng) for each in (floats, csr, numbers)}
    exec(CASES[name]["given"], made := dict(tools))
    arguments = {key: value for key, value in made.items() if key not in tools}
    left = {key: np.copy(value) if isinstance(value, np.ndarray) else value for key, value in arguments.items()}
    with np.errstate(all="ignore"):
        exec(CASES[name]["does"], TOOLS | left)
    return arguments, left


def text(name, fault=None):
    """The file of a kernel's PTX, of a copy with a fault if one is named."""
    return KERNELS / f"{name}{'-' + fault if fault else ''}.ptx"


def faults(name):
    """What is found in a kernel's copies: by fault, the kind and the lines of the source where that may be."""
    found, source = {}, KERNELS / f"{name}.cu"
    lines = source.read_text(encoding="utf-8").splitlines() if source.exists() else []
    for number, line in enumerate(lines, 1):
        if marked := re.search(r"// ([A-Z_]+): (.*)", line):
            kind, places = found.setdefault(marked[1], (marked[2], set()))
            assert kind == marked[2], (source, number)
            places.add(number)
    return found


def make(name, fault=None, arch="sm_90"):
    """Compile a text, and strip it."""
    file = text(name, fault)
    command = ["nvcc", "-ptx", f"-arch={arch}", "-lineinfo", *([f"-D{fault}"] if fault else []), f"{name}.cu"]
    subprocess.run([*command, "-o", file.name], cwd=KERNELS, check=True)
    made = re.sub(r"(?m)[ \t]*(//.*)?$", "", file.read_text(encoding="utf-8"))
    made = re.sub(r"(?m)(^\$L__info_string\d+:\n)(?:\.b8 .*\n)+", r"\1.b8 0\n", made)
    made = re.sub(r'(\.file\s+\d+ )".*/(.*?)"', r'\1"\2"', re.sub(r"\n\n+", "\n", made).lstrip())
    file.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    for name in [*CASES, *UNKNOWN]:
        if (KERNELS / f"{name}.cu").exists():
            for fault in (None, *faults(name)):
                make(name, fault, CASES.get(name, {}).get("arch", "sm_90"))
