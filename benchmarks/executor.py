"""Seconds that a training step takes from PTX on the CPU, bare and watched, by kernel too, and what NumPy takes.

They say how long one waits for a check, and nothing of a GPU:

    python benchmarks/executor.py --T 1000 --B 16 --H 20
"""

import argparse
import time
from collections import defaultdict

import numpy as np

import bppsa_nb as bp
import warpwatch
from warpwatch.virtual import current


def seconds(cell, method, T, B, H, **how):
    """Return what a third step takes in all, and by kernel, and what its loss is."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((T, B, 2)).astype(np.float32), rng.integers(4, size=B)
    trainer = bp.Trainer(getattr(bp, cell)(2, H, 4, rng=0), bp.Adam(lr=1e-3), method=method, **how)
    by_kernel, device = defaultdict(float), current()
    if device:
        run = device.run

        def timed(kernel, *rest):
            start = time.perf_counter()
            run(kernel, *rest)
            by_kernel[kernel.py_func.__name__] += time.perf_counter() - start

        device.run = timed
    for _ in range(2):  # compiled and recorded, then replayed
        trainer.step(x, y)
        by_kernel.clear()
    start = time.perf_counter()
    loss = trainer.step(x, y)
    return time.perf_counter() - start, by_kernel, loss


def main():
    """Print two tables: whole steps, and kernels."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, default in (("T", 1000), ("B", 16), ("H", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    sizes = vars(parser.parse_args()).values()
    kernels = {}
    print("| step | NumPy | from PTX | watched | loss off by |\n| --- | ---: | ---: | ---: | ---: |")
    for cell in ("RNN", "GRU"):
        for method in ("linear", "chunked", "blelloch"):
            plain, _, expected = seconds(cell, method, *sizes, backend="numpy")
            row = []
            for watch in (False, True):
                with warpwatch.device(watch):
                    whole, by_kernel, loss = seconds(cell, method, *sizes, backend="cuda")
                row.append(whole)
                for name, spent in by_kernel.items():
                    kernels.setdefault((cell, name), [0.0, 0.0])[watch] = spent
            print(
                f"| {cell} {method} | {plain:.3f} | {row[0]:.3f} | {row[1]:.3f} | {abs(loss - expected):.1g} |",
                flush=True,
            )
    print("\n| kernel, of a step | from PTX | watched |\n| --- | ---: | ---: |")
    for (cell, name), (bare, watched) in kernels.items():
        print(f"| {cell} {name} | {1e3 * bare:.1f} ms | {1e3 * watched:.1f} ms |")


if __name__ == "__main__":
    main()
