"""What layers of any cell share on a GPU; counterpart of `bppsa_nb.cells.layer`.

A time loop is one launch with one sample per block; what does not wait for another step (input products, diagonals,
pre-activation gradients, gradients of the parameters) is spread over all steps and samples.

Launchers take device arrays and a stream, allocate nothing and wait for nothing: `training.device` records them.

Gradients at the S pre-activations of a cell are [shape=(S, T, B, H)]. An RNN has one; a GRU's are N, R, Z, M: inputs
are added to the first three, states to the last three. Rows of weights come as R, Z, N or M: those of gate j belong to
number (j + 1) % 3 for the input, and (j + 1) % 4 for the state; in an RNN, to number 0 either way.
"""

from functools import cache
from typing import NamedTuple

import numpy as np

from bppsa_nb.cells.weight_gradients_cuda import launch_linear_gradients
from bppsa_nb.chains.structured import StructuredChain
from bppsa_nb.machine.arrays_cuda import EACH, line, mine, over, put, taken
from bppsa_nb.machine.cuda import MAX_THREADS, fitted, in_registers, inline, launch, on_device, shared_bytes
from bppsa_nb.machine.cuda_compiler import cuda

U, W = np.uint32, np.uint64  # see `dot_of`
_THREADS = 256  # of a block in kernels without shared memory
_ROWS = 8  # of inputs, that a thread multiplies a weight with


class Cell(NamedTuple):
    """What launchers need to know of a kind of cell."""

    steps_of: object  # makes, for an H whose weights fit into registers, what loads them and what runs steps with them
    any_steps: tuple  # these two for any other H
    run_slopes: object  # kernel of the chain's diagonals
    sums: int  # S, how many pre-activations; a GRU keeps as many gates
    room: int  # numbers of shared memory per hidden unit in the time loop


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
def load_of(size, real):
    """Make what loads a thread's weights into registers."""

    @inline
    def load(weight_hh_T):
        weights, g = cuda.local.array(size, real), U(cuda.threadIdx.x)
        for j in range(size):
            weights[j] = weight_hh_T[j, g]
        return weights

    return load


@inline
def leave(weight_hh_T):
    """Leave weights where they are, which are too many for registers."""
    return weight_hh_T


@cache
def run_forward_of(steps):
    """Make the kernel of the time loop: one sample per block; ``hidden[0]`` and the input products are given."""
    load, run_steps = steps

    @cuda.jit
    def run_forward(products, weight_hh_T, bias_hh, hidden, gates):
        shared = cuda.shared.array(0, hidden.dtype)  # the state first
        b = U(cuda.blockIdx.x)
        for j in range(cuda.threadIdx.x, hidden.shape[2], cuda.blockDim.x):
            shared[U(j)] = hidden[U(0), b, U(j)]
        run_steps(products, load(weight_hh_T), bias_hh, shared, hidden, gates, b, 0, products.shape[0])

    return run_forward


@cuda.jit
def transpose(matrix, out):
    """Write a matrix out by columns, one number per thread."""
    q = cuda.grid(1)
    i, j = q // out.shape[1], q % out.shape[1]
    if i < out.shape[0]:
        out[i, j] = matrix[j, i]


@cuda.jit
def at_sums(slopes, grad_hidden, count):
    """Turn so many slopes into pre-activation gradients, in place: times the gradient at the state.

    Both arrays are one line, and ``grad_hidden[0]`` is not needed.
    """
    grads, values = cuda.local.array(EACH, slopes.dtype), cuda.local.array(EACH, slopes.dtype)
    (start, threads), each, stop = mine(), W(slopes.shape[0] // count), W(grad_hidden.shape[0])
    taken(grads, grad_hidden, stop - each + start, threads, stop)
    for number in range(count):
        q = start
        taken(values, slopes, W(number) * each + q, threads, W(number + 1) * each)
        for k in range(EACH):
            if q < each:
                slopes[W(number) * each + q] = values[k] * grads[k]
            q += threads


@cuda.jit
def input_gradients_kernel(at, count, cycle, weight_ih, out):
    """Compute the gradients at a layer's input [shape=(rows, I)], one row per block; gates as in the module's words."""
    row, size = W(cuda.blockIdx.x), at.shape[2]
    for column in range(cuda.threadIdx.x, out.shape[1], cuda.blockDim.x):
        total = out.dtype.type(0)
        for k in range(count):
            source = U((k + 1) % cycle)
            for i in range(size):
                total += at[source, row, U(i)] * weight_ih[U(k * size + i), U(column)]
        out[row, U(column)] = total


def launch_inputs(x, params, weight_hh_T, products, stream=0):
    """Launch what a layer's time loop reads.

    `params` are weight_ih, weight_hh, bias_ih and bias_hh; `weight_hh_T` [shape=(H, G)] and `products` [shape=(T, B,
    G)] are written.
    """
    weight_ih, weight_hh, bias_ih, _ = params
    rows, sums = len(x) * x.shape[1], len(weight_hh)
    launch_linear(x.reshape(rows, x.shape[2]), weight_ih, bias_ih, products.reshape(rows, sums), stream)
    over(transpose, weight_hh, stream, _THREADS)(weight_hh, weight_hh_T)


def launch_loop(cell, kernel_of, blocks, loop, more=(), room=0, stream=0):
    """Launch a kernel that `kernel_of` makes of the cell's steps, with `room` for more numbers per hidden unit.

    The loop is what `prepared` returns; `more` goes to the kernel, too.
    """
    products, weight_hh_T, bias_hh, hidden, gates = loop
    size, dtype, sums = hidden.shape[2], hidden.dtype, products.shape[2]
    kept = hidden.reshape(1, *hidden.shape) if gates is None else gates  # where there are none, none are written
    arguments = products, weight_hh_T, bias_hh, hidden, kept, *more
    room += cell.room
    if in_registers(size, dtype):
        kernel, threads = fitted(kernel_of(cell.steps_of(size, dtype.type)), sums, *arguments)
        if threads == sums:  # one for each sum's weights
            kernel[blocks, threads, stream, room * size * dtype.itemsize](*arguments)
            return
    shared = shared_bytes(room * size, dtype.itemsize, f"hidden_size: {room} H = {room * size} numbers")
    launch(kernel_of(cell.any_steps), blocks, min(sums, MAX_THREADS), stream, shared, *arguments)


def launch_slopes(cell, hidden, gates, slopes, stream=0):
    """Launch the diagonals of a layer's chain [shape=(S, T, B, H)]."""
    saved = (hidden,) if gates is None else (hidden, gates)
    over(cell.run_slopes, slopes[0], stream, _THREADS, EACH)(*map(line, (*saved, slopes)))


def launch_at_sums(slopes, grad_hidden, stream=0):
    """Launch a layer's pre-activation gradients, in place of the slopes, from those at its states."""
    over(at_sums, slopes[0], stream, _THREADS, EACH)(line(slopes), line(grad_hidden), len(slopes))


def launch_input_gradients(slopes, weight_ih, out, stream=0):
    """Launch the gradients at a layer's input [shape=(T, B, I)]; the slopes are those at pre-activations by now."""
    count = _gates_of(slopes)
    (_, steps, batch, size), inputs = slopes.shape, out.shape[2]
    lines = slopes.reshape(len(slopes), steps * batch, size), count, count, weight_ih, out.reshape(-1, inputs)
    input_gradients_kernel[steps * batch, min(_THREADS, inputs), stream](*lines)


def launch_linear(states, weight, bias, out, stream=0):
    """Launch a linear layer, ``out = states @ weight.T + bias``: states are [shape=(rows, H)]."""
    threads = _THREADS // len(bias) * len(bias) or _THREADS  # whole rows
    rows = _ROWS * max(1, threads // len(bias))
    input_products[-(-len(states) // rows), threads, stream](states, weight, bias, out)


def launch_back_linear(at, weight, out, stream=0):
    """Launch the gradients at a linear layer's states [shape=(B, H)], ``out = at @ weight``."""
    lines = at.reshape(1, *at.shape), 1, 1, weight, out
    input_gradients_kernel[len(at), min(_THREADS, out.shape[1]), stream](*lines)


def _gates_of(slopes):
    """Return how many pre-activations inputs are added to, and states."""
    return max(len(slopes) - 1, 1)


def forward(cell, x, h0, *params):
    """Run a cell over time; see the `forward` of its NumPy form."""
    if len(x) == 0:
        hidden = h0[None].copy()
        return hidden if cell.sums == 1 else (hidden, np.empty((cell.sums, 0, *h0.shape), h0.dtype))
    *_, hidden, gates = loop = prepared(cell, x, h0, *params)
    launch_loop(cell, run_forward_of, x.shape[1], loop)
    return hidden.copy_to_host() if gates is None else (hidden.copy_to_host(), gates.copy_to_host())


def prepared(cell, x, h0, *params):
    """Put on the device what a time loop reads, and launch what it waits for.

    Returned are products, weight_hh_T, bias_hh, hidden and gates, as the kernels take them; gates are None where a cell
    keeps none.
    """
    (steps, batch, _), dtype, params = x.shape, h0.dtype, [on_device(param) for param in params]
    sums, size = params[1].shape
    hidden = cuda.device_array((steps + 1, batch, size), dtype)
    put(h0, hidden[0])
    gates = cuda.device_array((cell.sums, steps, batch, size), dtype) if cell.sums > 1 else None
    weight_hh_T, products = cuda.device_array((size, sums), dtype), cuda.device_array((steps, batch, sums), dtype)
    launch_inputs(on_device(x), params, weight_hh_T, products)
    return products, weight_hh_T, params[3], hidden, gates


def chain(cell, weight_hh, hidden, gates=None):
    """Take the transposed Jacobians for a chain; see the `chain` of the cell's NumPy form."""
    size = weight_hh.shape[1]
    weights, shape = weight_hh.reshape(-1, size, size), (cell.sums, *hidden[1:].shape)
    if shape[1] == 0:
        return StructuredChain.made(weights, np.empty((len(weights), *shape[1:]), hidden.dtype), None)
    slopes, gates = cuda.device_array(shape, hidden.dtype), None if gates is None else on_device(gates)
    launch_slopes(cell, on_device(hidden), gates, slopes)
    return StructuredChain.made(weights, slopes[-len(weights) :], None if gates is None else gates[1])


def gate_gradients(cell, chain, hidden, *rest):
    """Compute pre-activation gradients; see the `gate_gradients` of the cell's NumPy form."""
    *gates, grad_hidden = rest
    at = cuda.device_array((cell.sums, *hidden[1:].shape), hidden.dtype)
    if at.size:
        launch_slopes(cell, on_device(hidden), on_device(gates[0]) if gates else None, at)
        launch_at_sums(at, on_device(grad_hidden))
    count = _gates_of(at)
    return tuple([at[(j + 1) % cycle] for j in range(count)] for cycle in (count, len(at)))


def parameter_gradients(x, hidden, from_x, from_h):
    """Sum up the gradients of a layer's parameters; counterpart of `bppsa_nb.cells.layer.parameter_gradients`."""
    x, hidden = on_device(x), on_device(hidden)
    of_x = [_outer_product(at, x) for at in from_x]
    of_h = [_outer_product(at, hidden) for at in from_h]
    found = {"weight_ih": of_x, "weight_hh": of_h}
    grads = {name: np.concatenate([weight for weight, _ in pairs]) for name, pairs in found.items()}
    biases = {"bias_ih": of_x, "bias_hh": of_h}
    return grads | {name: np.concatenate([bias for _, bias in pairs]) for name, pairs in biases.items()}


def _outer_product(at, right):
    (steps, _, size), columns = at.shape, right.shape[2]
    if steps == 0:
        return np.zeros((size, columns), at.dtype), np.zeros(size, at.dtype)
    weight, bias = cuda.device_array((size, columns), at.dtype), cuda.device_array(size, at.dtype)
    launch_linear_gradients(right, at, weight, bias)
    return weight.copy_to_host(), bias.copy_to_host()


def input_gradients(weight_ih, from_x):
    """Compute the gradients at a layer's input; counterpart of `bppsa_nb.cells.layer.input_gradients`."""
    steps, batch, size = from_x[0].shape
    total = np.zeros((steps, batch, weight_ih.shape[1]), weight_ih.dtype)
    for at, weight in zip(from_x, np.split(weight_ih, len(from_x)), strict=True):
        if steps:
            out = cuda.device_array(total.shape, total.dtype)
            weight = on_device(np.ascontiguousarray(weight))
            launch_input_gradients(at.reshape(1, steps, batch, size), weight, out)
            total += out.copy_to_host()
    return total
