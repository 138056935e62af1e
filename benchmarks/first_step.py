"""How long somebody waits for a first result: a fresh process, once without compiled code and once with it.

``python benchmarks/first_step.py`` times, from before the import to the end, one training step of the RNN and of the
GRU of the paper's benchmarks and one dense Blelloch scan, all on ``cpu``. Nothing is recorded.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).parents[1]
PROGRAM = """
import time
start = time.perf_counter()
import numpy as np
import bppsa_nb as bp
rng = np.random.default_rng(0)
{step}
print(time.perf_counter() - start)
"""
STEPS = {
    "RNN, a training step (T = 1000)": """
x, y = bp.Bitstream(1000, num_samples=16, rng=0).batch(np.arange(16))
bp.Trainer(bp.RNN(1, 20, 10, rng=0), bp.Adam(), backend="cpu").step(x, y)""",
    "GRU, a training step (T = 259)": """
x, y = rng.standard_normal((259, 16, 38), np.float32), np.arange(16) % 11
bp.Trainer(bp.GRU(38, 20, 11, rng=0), bp.Adam(), backend="cpu").step(x, y)""",
    "RNN, by Blelloch scans": """
x, y = bp.Bitstream(1000, num_samples=16, rng=0).batch(np.arange(16))
bp.Trainer(bp.RNN(1, 20, 10, rng=0), bp.Adam(), method="blelloch", backend="cpu").step(x, y)""",
    "a dense Blelloch scan (T = 1000)": """
jacobians_T = rng.standard_normal((1000, 16, 20, 20), np.float32) / np.float32(20**0.5)
bp.backprop(jacobians_T, np.ones((16, 20), np.float32), method="blelloch", backend="cpu")""",
}


def seconds(step, cache):
    """Time a step in a process of its own, which keeps compiled code in a folder."""
    environment = os.environ | {"NUMBA_CACHE_DIR": cache, "PYTHONPATH": str(REPO)}
    command = [sys.executable, "-c", PROGRAM.format(step=step)]
    return float(subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    print(f"{'seconds (median of ' + str(rounds) + ')':<36}{'nothing compiled':>18}{'compiled before':>18}")
    for name, step in STEPS.items():
        pairs = []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as cache:
                pairs.append((seconds(step, cache), seconds(step, cache)))
        cold, warm = map(statistics.median, zip(*pairs, strict=True))
        print(f"{name:<36}{cold:18.2f}{warm:18.2f}", flush=True)


if __name__ == "__main__":
    main()
