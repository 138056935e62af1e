"""How long somebody waits for a first result: a fresh process, once without compiled code and once with it.

``python benchmarks/first_step.py`` times, from before the import to the end, training steps of the RNN and of the GRU
of the paper's benchmarks and one dense Blelloch scan, all on ``cpu``. ``--against FOLDER`` has another checkout take
turns, and ``--functions`` says what is compiled. Nothing is recorded.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).parents[1]
PROGRAM = """
import json
import time
start, compiled, own = time.perf_counter(), [], [0.0]

def timed(compile):
    def call(self, *arguments):
        began, _ = time.process_time(), own.append(0.0)
        try:
            return compile(self, *arguments)
        finally:
            total = time.process_time() - began
            function = getattr(self, "_pyfunc", None) or self.py_func
            compiled.append((f"{{function.__module__}}.{{function.__qualname__}}", total - own.pop(), total))
            own[-1] += total
    return call

if {functions}:
    from numba.core import ccallback, dispatcher
    dispatcher.Dispatcher.compile = timed(dispatcher.Dispatcher.compile)
    ccallback.CFunc.compile = timed(ccallback.CFunc.compile)
import numpy as np
import bppsa_nb as bp
rng = np.random.default_rng(0)
{step}
print(json.dumps([time.perf_counter() - start, time.process_time(), compiled]))
"""
RNN = """
x, y = bp.Bitstream(1000, num_samples=16, rng=0).batch(np.arange(16))
trainer = bp.Trainer(bp.RNN(1, 20, 10, rng=0), bp.Adam(), backend="cpu")"""
STEPS = {
    "RNN, a training step (T = 1000)": RNN + "\ntrainer.step(x, y)",
    "RNN, two training steps": RNN + "\ntrainer.step(x, y), trainer.step(x, y)",
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


def run(step, folder, cache, functions=False):
    """Take a step in a process of its own, which keeps compiled code in a folder.

    Return seconds, the processor's seconds, and of every function compiled its name and seconds, its own and with all
    that is compiled meanwhile.
    """
    environment = os.environ | {"NUMBA_CACHE_DIR": cache, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", PROGRAM.format(step=step, functions=functions)]
    done = subprocess.run(command, cwd=cache, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="steps whose names begin so")
    parser.add_argument("--against", type=Path, action="append", default=[], help="another checkout, which takes turns")
    parser.add_argument("--functions", action="store_true", help="seconds of each function that is compiled")
    options = parser.parse_args()
    columns = ["nothing compiled", "its processor's", "compiled before"]
    print(f"{'seconds (median of ' + str(options.rounds) + ')':<36}", *(f"{column:>18}" for column in columns))
    for name, step in STEPS.items():
        if not name.startswith(options.only):
            continue
        found = {folder: [] for folder in (REPO, *options.against)}
        for _ in range(options.rounds):
            for folder, rounds in found.items():
                with tempfile.TemporaryDirectory() as cache:
                    rounds.append((*run(step, folder, cache)[:2], run(step, folder, cache)[0]))
        for folder, rounds in found.items():
            medians = map(statistics.median, zip(*rounds, strict=True))
            print(f"{name if folder == REPO else folder!s:<36}", *(f"{each:18.2f}" for each in medians), flush=True)
        for folder in found if options.functions else ():
            with tempfile.TemporaryDirectory() as cache:
                compiled = run(step, folder, cache, functions=True)[2]
            print(f"    {folder}, processor's seconds: own, with those inside")
            for function, own, total in sorted(compiled, key=lambda each: -each[1]):
                if own >= 0.005:
                    print(f"    {own:6.2f} {total:6.2f} {function}")


if __name__ == "__main__":
    main()
