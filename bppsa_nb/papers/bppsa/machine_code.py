"""What the hot kernels became, at the papers' size: H = 20, float32, a GPU of the ninth generation.

`read` compiles them and reads their machine code, which needs the `gpu` extra but no GPU; `store` keeps what it found
in the package, for figures and for `chains.plan`, whose default prices these are.
"""

import numpy as np

from bppsa_nb.chains import costs
from bppsa_nb.machine import files, sass

H, GENERATION = 20, "sm_90"


def kernels():
    """List the hot kernels by name: each with the types of its arguments, and how often a step passes its inner loop.

    That is 0 for kernels that have none; None where what counts is a multiply-add of the innermost loop, "pair" where
    it is one of a loop that is a whole ⋄; "waits" for the loop with a barrier; and "whole" for kernels whose threads
    compute a number each, without a loop.
    """
    from bppsa_nb.cells import chunked_cuda, gru_cuda, layer_cuda, rnn_cuda
    from bppsa_nb.chains import kernels_cuda, levels_cuda, multiply_cuda
    from bppsa_nb.machine.cuda_compiler import types
    from bppsa_nb.operands import products_cuda

    real, number, flag = np.float32, types.int64, types.boolean
    a1, a2, a3, a4 = (types.Array(types.float32, ndim, "C") for ndim in (1, 2, 3, 4))
    i1, i2, i3 = (types.Array(types.int32, ndim, "C") for ndim in (1, 2, 3))
    sweep, product = (a2, a4, a3, number, number, a3, a3), (number, number, a4, i3, i1)
    forward, loop_of, chunks_of = (a3, a2, a1, a3, a4), layer_cuda.run_forward_of, chunked_cuda.run_chunks_of
    chunks = *forward, number, number, types.float32, number, a3, a3, a3, a3, i1
    rnn, gru = (cell.steps_of(H, real) for cell in (rnn_cuda, gru_cuda))
    sparse = i1, i1, a2, i1, i1, a2, number, number, i1, i1, a2
    return {
        "RNN forward": (loop_of(rnn), forward, 0),
        "GRU forward": (loop_of(gru), forward, 0),
        "RNN forward, chunks": (chunks_of(rnn), chunks, "waits"),
        "GRU forward, chunks": (chunks_of(gru), chunks, "waits"),
        "RNN sweep": (kernels_cuda.sweep_chunks_of(H, 1, False, True, real), sweep, 0),
        "GRU sweep": (kernels_cuda.sweep_chunks_of(H, 3, True, True, real), sweep, 0),
        "RNN products": (multiply_cuda.multiply_chunks_of(H, 1, False, real), (a2, a4, a3, *product), H // 2),
        "GRU products": (multiply_cuda.multiply_chunks_of(H, 3, True, real), (a2, a4, a3, *product), H // 2),
        "dense products": (multiply_cuda.multiply_stored_of(H, real), (a4, *product), H // 2),
        "across chunks": (kernels_cuda.across_chunks_of(H, True, real), (a4, i3, a3, a3, i1), 0),
        "up-sweep": (levels_cuda.up_level_of(H, real), (a4, i2, a3, flag, number, i1), None),
        "down-sweep": (levels_cuda.across_blocks_of(H, real), (a4, i2, a3, flag, number, i1), "pair"),
        "weight gradients": (layer_cuda.outer_products, (a1, number, number, number, number, a1, a3), None),
        "RNN assembly": (rnn_cuda.run_slopes, (a1, a1), "whole"),
        "GRU assembly": (gru_cuda.run_slopes, (a1, a1, a1), "whole"),
        "sparse products": (products_cuda.sums, sparse, None),
    }


def toolkit():
    """Return the version of CUDA's toolkit that makes machine code here, such as "12.9", or raise as `read` does."""
    from cuda.bindings import nvjitlink

    return "{}.{}".format(*nvjitlink.version())


def step_of(name):
    """Say in a few words what a step of a kernel is."""
    *_, trips = kernels()[name]
    if trips in (None, "pair"):
        return "a multiply-add"
    if trips == "whole":
        return "a state's Jacobian"
    if name == "across chunks":
        return "a chunk"
    return "a time step" if trips in (0, "waits") else "a time step of every row"


def read(name):
    """Read what a kernel takes, a `Cost`; raise what `sass.read` raises if the `gpu` extra is not installed."""
    kernel, types, trips = kernels()[name]
    code = sass.read(kernel, types, GENERATION)
    if trips == "whole":
        part = code.whole
    elif trips == "waits":
        part = code.innermost("BAR")
    else:
        part = code.innermost() if trips is None else code.step(0 if trips == "pair" else trips)
    per = part.products if trips in (None, "pair") else 1
    numbers = part.instructions, part.products, part.cycles, part.waits
    return costs.Cost(code.registers, code.local, *(round(number / per, 1) for number in numbers))


def loops():
    """List instructions of the RNN's time loop: "for H = 20" those of a whole step, "for any H" of 8 multiply-adds."""
    from bppsa_nb.cells import layer_cuda, rnn_cuda

    kernel, types, _ = kernels()["RNN forward"]
    any_kernel = layer_cuda.run_forward_of(rnn_cuda.CELL.any_steps)
    made, any_size = (sass.read(each, types, GENERATION) for each in (kernel, any_kernel))
    return {f"for H = {H}": made.part(made.loops[0]).names, "for any H": any_size.innermost().names}


def store():
    """Read all kernels, and keep what was found in the package."""
    of = {"toolkit": toolkit(), "generation": GENERATION, "H": H, "dtype": "float32"}
    found = {name: read(name)._asdict() for name in kernels()}
    files.write_json(costs.PATH, of | {"kernels": found, "loops": loops()})
