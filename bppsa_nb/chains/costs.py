"""What steps cost on a GPU by the machine code of its kernels: predictions, where nothing has been measured.

`kernels.json` holds what the compiler made of the hot kernels for one H and dtype (`papers.bppsa.machine_code`).
"""

import functools
from pathlib import Path
from typing import NamedTuple

from bppsa_nb.machine import files

PATH = Path(__file__).with_name("kernels.json")
CLOCK = 1.98e9  # cycles a second, of an H100 or H200
WAIT = 10  # cycles, on average: some wait long for memory or a barrier, but most at the same time as others
LAUNCH = 4e-6  # seconds between a launch and the next, from Python


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
    """Read what kernels take.

    Returns
    -------
    dict of str to Cost
    """
    return {name: Cost(**cost) for name, cost in files.read_json(PATH)["kernels"].items()}
