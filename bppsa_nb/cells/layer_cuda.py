"""A layer of any cell on a GPU; counterpart of `bppsa_nb.cells.layer`.

A time loop is one launch with one sample per block; what does not wait for another step (input products, diagonals,
gradients at preactivations, gradients of the parameters) is spread over all steps and samples.

Launchers take device arrays and a stream, allocate nothing and wait for nothing: a training step records them.
"""

import math
from functools import cache

import numpy as np

from bppsa_nb.cells.cell import WHOLE
from bppsa_nb.cells.cell_cuda import any_steps_of, check_vectors, derive_of, numbers_of, preact_gradients_of, steps_of
from bppsa_nb.machine.arrays_cuda import EACH, fill, line, over
from bppsa_nb.machine.cuda import MAX_THREADS, fitted, in_registers, launch, on_device, shared_bytes
from bppsa_nb.machine.cuda_compiler import cuda

U, W = np.uint32, np.uint64  # see `dot_of`
_THREADS = 256  # of a block in kernels without shared memory
_ROWS = 8  # of inputs, that a thread multiplies a weight with


@cuda.jit
def input_products(x, weight_ih, bias_ih, out):
    """Compute ``out = x @ weight_ih.T + bias_ih``, a thread some rows of a column: those of all steps and samples."""
    totals, columns = cuda.local.array(_ROWS, out.dtype), U(out.shape[1])
    g, ahead, beside = U(cuda.threadIdx.x), U(0), U(1)
    if columns < U(cuda.blockDim.x):
        g, ahead, beside = U(g % columns), U(g // columns), U(cuda.blockDim.x // columns)
    first, last = W(cuda.blockIdx.x) * W(_ROWS) * W(beside) + W(ahead), W(out.shape[0] - 1)
    while g < columns:
        for k in range(_ROWS):
            totals[k] = bias_ih[g]
        i = U(0)
        while i < U(x.shape[1]):
            weight = weight_ih[g, i]
            for k in range(_ROWS):
                totals[k] += weight * x[min(first + W(k) * W(beside), last), i]
            i += U(1)
        for k in range(_ROWS):
            if first + W(k) * W(beside) <= last:
                out[first + W(k) * W(beside), g] = totals[k]
        g += U(cuda.blockDim.x)


@cache
def run_forward_of(steps, states_of_unit):
    """Make the kernel of the time loop: one sample per block; initial states and the input products are given."""
    load, run_steps = steps

    @cuda.jit
    def run_forward(products, weight_hh_T, bias_hh, states, kept):
        shared, size = cuda.shared.array(0, states.dtype), states.shape[3]  # the states first
        b = U(cuda.blockIdx.x)
        for s in range(states_of_unit):
            for j in range(cuda.threadIdx.x, size, cuda.blockDim.x):
                shared[U(s * size + j)] = states[U(s), U(0), b, U(j)]
        run_steps(products, load(weight_hh_T, bias_hh), shared, states, kept, b, 0, products.shape[0])

    return run_forward


@cuda.jit
def transpose(matrix, out):
    """Write a matrix out by columns, one number per thread."""
    q = cuda.grid(1)
    i, j = q // out.shape[1], q % out.shape[1]
    if i < out.shape[0]:
        out[i, j] = matrix[j, i]


@cuda.jit
def input_gradients_kernel(at, gates, split, weight_ih, out):
    """Compute the gradients at a layer's input, the first I numbers of a row of `out`, from `at` preactivations."""
    row, size = W(cuda.blockIdx.x), at.shape[2]
    for column in range(cuda.threadIdx.x, weight_ih.shape[1], cuda.blockDim.x):
        total = out.dtype.type(0)
        for k in range(gates):
            source = U((k + split) % gates)
            for i in range(size):
                total += at[source, row, U(i)] * weight_ih[U(k * size + i), U(column)]
        out[row, U(column)] = total


def launch_inputs(x, params, weight_hh_T, products, stream=0):
    """Launch what a layer's time loop reads.

    `params` are weight_ih, weight_hh, bias_ih and bias_hh; `weight_hh_T` [shape=(H, G H)] and `products` [shape=(T, B,
    G H)] are written.
    """
    weight_ih, weight_hh, bias_ih, _ = params
    rows, preacts = len(x) * x.shape[1], len(weight_hh)
    launch_linear(x.reshape(rows, x.shape[2]), weight_ih, bias_ih, products.reshape(rows, preacts), stream)
    over(transpose, weight_hh, stream, _THREADS)(weight_hh, weight_hh_T)


def launch_loop(cell, kernel_of, blocks, loop, more=(), numbers=0, stream=0):
    """Launch a kernel that `kernel_of` makes of the cell's steps, with more `numbers` per hidden unit in shared memory.

    The loop is products, weight_hh_T, bias_hh, states and what is kept; `more` goes to the kernel, too.
    """
    products, _, _, states, _ = loop
    size, dtype, preacts = states.shape[3], states.dtype, products.shape[2]
    arguments, numbers = (*loop, *more), numbers + numbers_of(cell)
    if in_registers(size, dtype):
        made = kernel_of(steps_of(cell, size, dtype.type), cell.states)
        kernel, threads = fitted(made, preacts, *arguments)
        if threads == preacts:  # one for each row of weights
            kernel[blocks, threads, stream, numbers * size * dtype.itemsize](*arguments)
            return
    shared = shared_bytes(numbers * size, dtype.itemsize, f"hidden_size: {numbers} H = {numbers * size} numbers")
    kernel = kernel_of(any_steps_of(cell, dtype.type), cell.states)
    launch(kernel, blocks, min(preacts, MAX_THREADS), stream, shared, *arguments)


def launch_derive(cell, states, kept, slopes, carry, stream=0):
    """Launch a layer's diagonals: slopes [shape=(G, T, B, S H)], and a carry of S of them, if any."""
    if cell.states > 1:
        fill(carry, carry.dtype.type(0), stream)
    (_, _, batch, size), arrays = states.shape, (line(states), line(kept))
    for s in range(cell.states):
        kernel = over(derive_of(cell, s, states.dtype.type), states[0, 1:], stream, _THREADS, EACH)
        kernel(*arrays, size, batch * size, line(slopes), line(carry))


def launch_preact_gradients(cell, states, kept, grad_states, grad_preacts, stream=0):
    """Launch the gradients at a layer's preactivations [shape=(P, T, B, H)], from `grad_states[1:]`."""
    (_, _, batch, size), grads = states.shape, line(grad_states[1:])
    kernel = over(preact_gradients_of(cell, states.dtype.type), grad_preacts[0], stream, _THREADS, EACH)
    kernel(line(states), line(kept), grads, size, batch * size, line(grad_preacts))


def launch_input_gradients(grad_preacts, gates, split, weight_ih, out, stream=0):
    """Launch the gradients at a layer's input [shape=(..., I)], the first numbers of longer rows, or all."""
    preacts, *shape, size = grad_preacts.shape
    at, lines = grad_preacts.reshape(preacts, math.prod(shape), size), out.reshape(-1, out.shape[-1])
    kernel = input_gradients_kernel[math.prod(shape), min(_THREADS, weight_ih.shape[1]), stream]
    kernel(at, gates, split, weight_ih, lines)


def launch_linear(states, weight, bias, out, stream=0):
    """Launch a linear layer, ``out = states @ weight.T + bias``: states are [shape=(rows, H)]."""
    threads = _THREADS // len(bias) * len(bias) or _THREADS  # whole rows
    rows = _ROWS * max(1, threads // len(bias))
    input_products[-(-len(states) // rows), threads, stream](states, weight, bias, out)


def forward(cell, x, saved, *params, spans=WHOLE):
    """Run a cell over time, of arrays on the host; see `bppsa_nb.cells.layer.forward`."""
    if len(x) == 0:
        return
    check_vectors(cell)
    (steps, batch, _), (states, kept), (preacts, size) = x.shape, saved, params[1].shape
    params, there = list(map(on_device, params)), on_device(states)
    residuals = on_device(kept if cell.kept else np.zeros((1, 1, 1, 1), x.dtype))
    weight_hh_T, products = (cuda.device_array((*shape, preacts), x.dtype) for shape in ((size,), (steps, batch)))
    launch_inputs(on_device(x), params, weight_hh_T, products)
    launch_loop(cell, run_forward_of, batch, (products, weight_hh_T, params[3], there, residuals))
    states[...] = there.copy_to_host()
    kept[...] = residuals.copy_to_host()[: cell.kept]
