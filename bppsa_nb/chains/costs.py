"""What steps cost on a GPU by the machine code of its kernels: predictions, where nothing has been measured.

`kernels.json` holds what the compiler made of the hot kernels for H = 20 in float32 (`papers.bppsa.machine_code`), and
of which toolkit it is: those from 12.9 to 13.5 make code that takes the same time to within a tenth. For other sizes,
`prices` are orders of magnitude: they need only tell methods apart that differ by a factor.
"""

import functools
from pathlib import Path
from typing import NamedTuple

from bppsa_nb.chains.counts import BLOCKS
from bppsa_nb.machine import files

PATH = Path(__file__).with_name("kernels.json")
CLOCK = 1.98e9  # cycles a second, of an H100 or H200
WAIT = 10  # cycles, on average: some wait long for memory or a barrier, but most at the same time as others
LAUNCH = 4e-6  # seconds between a launch and the next, from Python
LANES = 132 * 128  # multiply-adds at once on such a GPU
BYTES = 3e12  # a second, from its memory
_H = 20


class Cost(NamedTuple):
    """What a kernel takes: registers of a thread, bytes that it spills, and what one warp has to do for a step."""

    registers: int
    spilled: int
    instructions: float
    products: float  # multiply-adds among them
    cycles: float  # to issue them
    waits: float  # instructions that wait for memory, a barrier or a special function

    @property
    def seconds(self):
        """How long a step takes, as predicted."""
        return (self.cycles + WAIT * self.waits) / CLOCK


@functools.cache
def table():
    """Read what kernels take: a `Cost` by name."""
    return {name: Cost(**cost) for name, cost in files.read_json(PATH)["kernels"].items()}


def prices():
    """Work out the seconds of what `chains.counts` counts: by kind of chain, method and count."""
    cost = {name: cost.seconds for name, cost in table().items()}
    # Where blocks are many, they share lanes and memory.
    at_once, entries = LANES / BLOCKS, 4 * BLOCKS / BYTES
    multiply_add = table()["up-sweep"].instructions / at_once / CLOCK
    # What a level does beside them is not in the table.
    level = {"launches": LAUNCH, "steps": 1e-6, "merges": 2e-6, "matvec": cost["down-sweep"] / _H}
    level |= {"matmul": multiply_add, "entries": entries}
    # From K = 1 and K = 3: what a step takes for itself, for each of its K summands, and for each multiply-add.
    matvec = 1 / at_once / CLOCK
    terms = (cost["GRU sweep"] - cost["RNN sweep"]) / 2 - matvec * _H**2
    linear = {"launches": LAUNCH, "terms": terms, "matvec": matvec}
    linear["steps"] = cost["RNN sweep"] - terms - matvec * _H**2
    products = table()["RNN products"]
    matmul = products.instructions / products.products / at_once / CLOCK
    chunked = linear | {"crossings": cost["across chunks"], "matmul": matmul}
    chunked["merges"] = cost["RNN products"] - terms
    # Rows of stored Jacobians come from memory when they are needed.
    of_stored = {"steps": 5e-7, "matvec": cost["down-sweep"] / _H}
    merges = {"merges": cost["dense products"] - matmul * _H**3}
    # The time loop multiplies by K matrices, and does K² operations on each number.
    forward = {}
    for method, name in (("linear", "forward"), ("chunked", "forward, chunks")):
        operations = (cost[f"GRU {name}"] - cost[f"RNN {name}"] - 2 * matvec * _H**2) / 8
        steps = cost[f"RNN {name}"] - operations - matvec * _H**2
        forward[method] = {"launches": LAUNCH, "steps": steps, "terms": operations, "matvec": matvec}
    return {
        "forward": forward,
        "structured": {"linear": linear, "blelloch": level, "chunked": chunked},
        "dense": {"linear": linear | of_stored, "blelloch": level, "chunked": chunked | of_stored | merges},
    }
