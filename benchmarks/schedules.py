"""How long it takes to compute, check and bound a large schedule: 1000 layers, 64 devices, 256 micro-batches.

    python benchmarks/schedules.py [--layers 1000] [--devices 64] [--micro-batches 256]

The first call compiles, or reads what was compiled before; it is shown apart.
"""

import argparse
import time

import numpy as np

from bppsa_nb import schedule

WAYS = [("gpipe", True), ("1f1b", True), ("fast_forward", True), ("fast_forward", False)]
WAYS += [("modulo", True), ("modulo", False), ("zero_bubble", True), ("zero_bubble", False)]


def seconds(call):
    start = time.perf_counter()
    found = call()
    return time.perf_counter() - start, found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=1000)
    parser.add_argument("--devices", type=int, default=64)
    parser.add_argument("--micro-batches", type=int, default=256)
    arguments = parser.parse_args()

    first, _ = seconds(lambda: schedule.pipeline(schedule.Network.uniform(2)).lower_bound)
    print(f"first call  {first:.2f} s")
    costs = np.random.default_rng(0).uniform(0.5, 2, (3, arguments.layers))
    network = schedule.Network(*costs)
    for policy, flush in WAYS:
        how = {"policy": policy, "flush": flush, "boundary_cost": 0.1}
        sizes = network, arguments.devices, arguments.micro_batches
        computed, timeline = seconds(lambda: schedule.pipeline(*sizes, **how))  # noqa: B023 - called at once
        checked, _ = seconds(timeline.check)
        bounded, _ = seconds(lambda: timeline.lower_bound)  # noqa: B023
        print(
            f"{policy:<12} {'flush' if flush else '     '}  {len(timeline.operations)} operations: computed in "
            f"{computed:.2f} s, checked in {checked:.2f} s, bounded in {bounded:.2f} s; "
            f"{timeline.makespan / timeline.lower_bound:.3f} of the lower bound"
        )


if __name__ == "__main__":
    main()
