"""Seconds of a launch that warpwatch watches, and of one on numba-cuda's simulator, which watches nothing.

They say how long one waits for a check, and nothing of a GPU. So do those of a small launch, and of loops without end:

    python benchmarks/watching.py --threads 2048
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

import numpy as np
from numba import cuda, float32

BLOCK, REPEATS = 256, {"simulator": 3, "warpwatch": 9}


@cuda.jit
def reduction(x, out):
    shared, t = cuda.shared.array(BLOCK, float32), cuda.threadIdx.x
    shared[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    step = BLOCK // 2
    while step > 0:
        if t < step:
            shared[t] += shared[t + step]
        cuda.syncthreads()
        step //= 2
    if t == 0:
        out[cuda.blockIdx.x] = shared[0]


@cuda.jit
def stencil(x, out):
    i = cuda.grid(1)
    if 0 < i < x.size - 1:
        out[i] = 0.5 * x[i] + 0.25 * (x[i - 1] + x[i + 1])


@cuda.jit
def atomics(x, out):
    cuda.atomic.add(out, int(16 * x[cuda.grid(1)]), 1)


@cuda.jit
def mandelbrot(x, out):
    i = cuda.grid(1)
    c, z, turns = complex(i % 32 / 16 - 1.5, i // 32 * 64 / x.size - 1), 0j, 0
    while turns < 50 and z.real * z.real + z.imag * z.imag < 4:
        z, turns = z * z + c, turns + 1
    out[i] = turns


@cuda.jit
def spin(x, out):
    while x[0] >= 0:
        pass


@cuda.jit
def count(x, out):
    i = np.uint64(1)
    while i != 0:
        i *= np.uint64(3)
    out[0] = i


def seconds(kernel, grid, block, x, run):
    """Return the median of some launches, of which the first, which compiles, does not count."""
    took = []
    for _ in range(REPEATS["warpwatch" if run else "simulator"]):
        start = time.perf_counter()
        run(kernel, grid, block, x, np.zeros_like(x)) if run else kernel[grid, block](x, np.zeros_like(x))
        took.append(time.perf_counter() - start)
    return statistics.median(took[1:])


def main():
    """Print a table; the simulator has a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=2048, help="of a launch (default: %(default)s)")
    arguments = parser.parse_args()
    x, kernels = np.random.default_rng(0).random(arguments.threads).astype(np.float32), (reduction, stencil, atomics)
    every = [(kernel, arguments.threads // BLOCK, BLOCK) for kernel in (*kernels, mandelbrot)]
    if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1":
        print(*(seconds(*launch, x, None) for launch in every))
        return
    import warpwatch

    command, own = [sys.executable, *sys.argv], os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}
    simulated = subprocess.run(command, env=own, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    print("| kernel | simulator | watched | times |\n| --- | ---: | ---: | ---: |")
    for (kernel, *sizes), slow in zip(every, map(float, simulated), strict=True):
        quick = seconds(kernel, *sizes, x, warpwatch.run)
        print(f"| {kernel.py_func.__name__} | {slow:.3f} s | {1e3 * quick:.1f} ms | {slow / quick:.0f} |", flush=True)
    print(f"\na launch of 128 threads: {1e3 * seconds(stencil, 1, 128, x[:128], warpwatch.run):.1f} ms")
    for kernel in (spin, count):
        start = time.perf_counter()
        (found,) = warpwatch.run(kernel, 1, 64, x, np.zeros_like(x)).findings
        print(f"{found.kind} ({kernel.py_func.__name__}) told after {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
