"""What the hot kernels became, at the papers' size: H = 20, float32, a GPU of the ninth generation.

`read` compiles them and reads their machine code, which needs the `gpu` extra but no GPU. Toolkits from 12.9 to 13.5
make code that takes the same time to within a tenth. `chains/prices.json` has prices that follow from it.
"""

from typing import NamedTuple

import numpy as np

import bppsa_nb as bp
from bppsa_nb.machine import sass

H, GENERATION = 20, "sm_90"
CLOCK = 1.98e9  # cycles a second, of an H100 or H200
WAIT = 10  # cycles, on average: some wait long for memory or a barrier, but most at the same time as others
LAUNCH = 4e-6  # seconds between a launch and the next, from Python
LANES = 132 * 128  # multiply-adds at once on such a GPU
BYTES = 3e12  # a second, from its memory


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


def kernels():
    """List the hot kernels by name: each with the types of its arguments, a part of its code, and how much that does.

    The part is the "innermost" loop, the loop that "waits" at a barrier, the "whole" code, or the longest loop, with so
    many passes of its inner loop. It does so many time steps, or as many as it has multiply-adds, if that is None.
    """
    from bppsa_nb.cells import cell_cuda, chunked_cuda, layer_cuda, weight_gradients_cuda
    from bppsa_nb.chains import kernels_cuda, levels_cuda, multiply_cuda
    from bppsa_nb.machine.arrays_cuda import EACH
    from bppsa_nb.machine.cuda_compiler import types
    from bppsa_nb.operands import products_cuda

    real, number, flag = np.float32, types.int64, types.boolean
    a1, a2, a3, a4 = (types.Array(types.float32, ndim, "C") for ndim in (1, 2, 3, 4))
    i1, i2, i3 = (types.Array(types.int32, ndim, "C") for ndim in (1, 2, 3))
    sweep, product = (a2, a4, a3, number, number, a3, a3), (number, number, a4, i3, i1)
    forward, loop_of, chunks_of = (a3, a2, a1, a4, a4), layer_cuda.run_forward_of, chunked_cuda.run_chunks_of
    chunks = *forward, number, number, types.float32, number, a3, a3, a3, a3, i1
    rnn, gru, lstm = ((cell_cuda.steps_of(kind.cell, H, real), kind.cell.states) for kind in (bp.RNN, bp.GRU, bp.LSTM))
    lines = a1, a1, number, number, a1, a1
    outer = a1, a1, a1, number, number, a3
    sparse = i1, i1, a2, i1, i1, a2, number, number, i1, i1, a2
    return {
        "RNN forward": (loop_of(*rnn), forward, "waits", 4),
        "GRU forward": (loop_of(*gru), forward, "waits", 4),
        "LSTM forward": (loop_of(*lstm), forward, "waits", 4),
        "RNN forward, chunks": (chunks_of(*rnn), chunks, "waits", 4),
        "GRU forward, chunks": (chunks_of(*gru), chunks, "waits", 4),
        "RNN sweep": (kernels_cuda.sweep_chunks_of(H, 1, False, True, real), sweep, "waits", 4),
        "GRU sweep": (kernels_cuda.sweep_chunks_of(H, 3, True, True, real), sweep, "waits", 4),
        "RNN products": (multiply_cuda.multiply_chunks_of(H, 1, False, 4, real), (a1, a1, a1, *product), 0, 1),
        "GRU products": (multiply_cuda.multiply_chunks_of(H, 3, True, 10, real), (a1, a1, a1, *product), 0, 1),
        "dense products": (multiply_cuda.multiply_stored_of(H, real), (a4, *product), 2, 1),
        "across chunks": (kernels_cuda.across_chunks_of(H, True, real), (a1, i3, a3, a3, i1), "waits", 4),
        "up-sweep": (levels_cuda.up_level_of(H, real), (a4, i2, a3, flag, number, i1), "innermost", None),
        "down-sweep": (levels_cuda.across_blocks_of(H, real), (a4, i2, a3, flag, number, i1), 0, None),
        "weight gradients": (weight_gradients_cuda.outer_products_of(5, 3, real), outer, "innermost", None),
        "RNN assembly": (cell_cuda.derive_of(bp.RNN.cell, 0, real), lines, "whole", EACH),
        "GRU assembly": (cell_cuda.derive_of(bp.GRU.cell, 0, real), lines, "whole", EACH),
        "sparse products": (products_cuda.sums, sparse, "innermost", None),
    }


def toolkit():
    """Return the version of CUDA's toolkit that makes machine code here, such as "12.9", or raise as `read` does."""
    from cuda.bindings import nvjitlink

    return "{}.{}".format(*nvjitlink.version())


def step_of(name):
    """Say in a few words what a step of a kernel is."""
    *_, part, per = kernels()[name]
    if per is None:
        return "a multiply-add"
    if part == "whole":
        return "a state's Jacobian"
    if name == "across chunks":
        return "a chunk"
    return "a time step" if part == "waits" else "a time step of every row"


def read(name):
    """Read what a kernel takes, a `Cost`; raise what `sass.read` raises if the `gpu` extra is not installed."""
    kernel, types, wanted, per = kernels()[name]
    code = sass.read(kernel, types, GENERATION)
    if wanted == "whole":
        part = code.whole
    elif wanted == "innermost":
        part = code.innermost()
    else:
        part = code.innermost("BAR") if wanted == "waits" else code.step(wanted)
    numbers = part.instructions, part.products, part.cycles, part.waits
    return Cost(code.registers, code.local, *(round(number / (per or part.products), 1) for number in numbers))

