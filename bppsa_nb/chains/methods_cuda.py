"""Scans on a GPU, over structured chains and over stored Jacobians; `backprop` of arrays that are there already.

Launchers take device arrays and a stream, allocate nothing and wait for nothing, so that a graph can record them.
"""

from functools import partial

import numpy as np

from bppsa_nb.chains import checks
from bppsa_nb.chains.backprop import choose
from bppsa_nb.chains.chain import StructuredChain
from bppsa_nb.chains.kernels_cuda import across_chunks, across_chunks_of, prepare_of, sweep_chunks, sweep_chunks_of
from bppsa_nb.chains.levels_cuda import check_size, launch_scan, teams_of, workspace
from bppsa_nb.chains.levels_cuda import prepare_of as prepare_stored_of
from bppsa_nb.chains.methods import chunked, in_range
from bppsa_nb.chains.multiply_cuda import multiply_chunks, multiply_chunks_of, multiply_stored_of, rows_of, team_of
from bppsa_nb.chains.plan import chunk_length
from bppsa_nb.machine import backends
from bppsa_nb.machine.arrays_cuda import add, as_device_array, copy, fetched, fill, line, over, put
from bppsa_nb.machine.checks import is_finite, on_host
from bppsa_nb.machine.cuda import (
    MAX_THREADS,
    SHARED_BYTES,
    WARP,
    in_registers,
    launch,
    on_device,
    require,
    row_of,
    shared_bytes,
)
from bppsa_nb.machine.cuda_compiler import cuda
from bppsa_nb.operands.range import DynamicRangeError

_THREADS = 256  # of a block that multiplies, at most


class Links:
    """A chain on the device, as the kernels take it: stored Jacobians, or weights and diagonals.

    `batch` samples share stored Jacobians [shape=(T, 1, H, H)]. A step multiplies the gradient into `sums` numbers: K
    H, or H for stored Jacobians. `arguments` are ``stored, dense, weights, slopes, carry, with_carry`` of the kernels,
    stand-ins for what is not there included; `weights` is [shape=(K H, H)].
    """

    def __init__(self, chain, batch=None, new=None):
        self.dtype, (T, B, H) = chain.dtype, chain.shape[:3]
        self._new = new or (lambda name, *shape: cuda.device_array(shape, chain.dtype))
        self.shape = T, batch or B, H
        dense = not isinstance(chain, StructuredChain)
        nothing = np.zeros((1, 1, 1, 1), self.dtype)
        if dense:
            stored, weights, slopes, carry = chain, np.zeros((1, 1, H), self.dtype), nothing, None
        else:
            stored, (weights, slopes, carry) = nothing, self._of_one_vector(chain)
        if len(weights) == 0:  # arrays without entries are not to be had everywhere: a weight of zero changes nothing
            weights, slopes = np.zeros((1, H, H), self.dtype), np.zeros((1, T, B, H), self.dtype)
        self.sums = H if dense else len(weights) * H
        weights, carried = weights.reshape(weights.shape[0] * weights.shape[1], H), carry is not None
        stored, weights, slopes, carry = map(on_device, (stored, weights, slopes, carry if carried else nothing[0]))
        self.arguments = stored, dense, weights, slopes, carry, carried

    def _of_one_vector(self, chain):
        """Return weights, slopes and carry, for states of several vectors those of `launch_joined`."""
        S, K, (T, B, N) = chain.states, len(chain.weights), chain.shape
        self._join = None
        if S == 1:
            return chain.weights, chain.slopes, chain.carry
        carry = np.zeros((S, T, B, N), self.dtype) if chain.carry is None else chain.carry
        given = [on_device(array) for array in (chain.weights, chain.slopes, carry)]
        shapes = (K + S - 1, N, N), (K + S - 1, T, B, N), (T, B, N)
        joined = [self._new(("joined", axes), *shape) for axes, shape in enumerate(shapes)]
        self._join = given, joined
        self.launch_joined()
        return joined

    def launch_joined(self, stream=0):
        """Launch what makes one vector of states of several, where they are of several.

        A sum is there once for each of the S vectors then, and so are its weights, which read the first; and what one
        vector has from another but by sums is a sum more, whose weight is the identity.
        """
        if self._join is not None:
            (weights, slopes, carry), (all_weights, all_slopes, own) = self._join
            size = weights.shape[2]
            over(_join_weights, all_weights, stream)(weights, all_weights)
            over(_join_diagonals, own, stream)(*map(line, (slopes, carry, all_slopes, own)), size, len(carry))


@cuda.jit
def _join_weights(weights, joined):
    """Write the weights of sums of all vectors at once; see `Links.launch_joined`."""
    q, size, N = cuda.grid(1), weights.shape[2], joined.shape[2]
    k, row, column = q // (N * N), q // N % N, q % N
    if k < joined.shape[0]:
        if k < weights.shape[0]:
            found = weights[k, row % size, column] if column < size else joined.dtype.type(0)
        else:
            shift = (k - weights.shape[0] + 1) * size
            found = joined.dtype.type((column + shift) % N == row)
        joined[k, row, column] = found


@cuda.jit
def _join_diagonals(slopes, carry, joined, own, size, states):
    """Write slopes and carry of sums of all vectors at once; all arrays are one line."""
    q, count = cuda.grid(1), own.shape[0]
    if q < count:
        s = q // size % states
        for k in range(slopes.shape[0] // count):
            joined[k * count + q] = slopes[k * count + q]
        for shift in range(1, states):
            k = slopes.shape[0] // count + shift - 1
            joined[k * count + q] = carry[(s - shift + states) % states * count + q]
        own[q] = carry[s * count + q]


def launch_multiply(links, first, count, length, products, exponents, lost, stream=0):
    """Launch `multiply_chunks` on chunks ``first ... first + count - 1``."""
    _, batch, size = links.shape
    stored, dense, weights, slopes, carry, carried = links.arguments
    dtype, chunks, more = links.dtype, count * batch, (first, length, products, exponents, lost)
    whole = size * (2 * size + 1) * dtype.itemsize
    if not dense and (team := team_of(size, links.sums, dtype)):
        multiply, rows = multiply_chunks_of(size, len(slopes), carried, team, dtype.type), rows_of(team)
        blocks, shared = -(-chunks * size // rows), rows * row_of(links.sums) * dtype.itemsize
        multiply[blocks, max(WARP, team), stream, shared](*map(line, (weights, slopes, carry)), *more)
    elif dense and in_registers(2 * size, dtype) and whole <= SHARED_BYTES:
        multiply_stored_of(size, dtype.type)[chunks, size, stream, whole](stored, *more)
    else:
        across = -(-size // 4)  # squares of four rows and columns, a thread each
        down = max(1, min(across, _THREADS // across))
        while down > 1 and (4 * down * 4 * across + links.sums) * dtype.itemsize > SHARED_BYTES:
            down -= 1
        what = f"hidden_size: four rows of H = {size} and K H = {links.sums} numbers"
        shared = shared_bytes(16 * down * across + links.sums, dtype.itemsize, what)
        arrays = first, length, 4 * down, products, exponents, lost
        multiply_chunks[chunks * -(-size // (4 * down)), down * across, stream, shared](*links.arguments, *arrays)


def launch_prepare(links, mats, exps, lost, stream=0):
    """Write a chain's Jacobians out, or copy those that are stored, scaled, into a `levels_cuda.workspace`."""
    stored, dense, weights, slopes, carry, carried = links.arguments
    size, count, dtype = mats.shape[2], exps.size, mats.dtype
    teams, rows, each, arrays = teams_of(size, 2 * size, dtype, count), 0, 1, (stored,)
    if not dense:
        held, arrays = links.sums * row_of(size) * dtype.itemsize, (weights, slopes, carry)
        if in_registers(links.sums, dtype) and held <= SHARED_BYTES:
            # Blocks go on to other Jacobians, with the weights that they have, as long as there are many blocks.
            rows, each = held, min(max(count // (1024 * teams), 1), 8)
    kernel = prepare_stored_of(size, dtype.type)
    if not dense:
        kernel = prepare_of(size, len(slopes), carried, rows > 0, dtype.type)
    block = -(-count // (teams * each)), teams * size, stream, max(rows, 2 * teams * size * dtype.itemsize)
    kernel[block](*arrays, mats, exps, lost)


class Scan:
    """A scan along chains of a shape (T, B, H) on a GPU: what it works on, and its launches.

    The gradient at x_T, and loss terms or zeros at x_0 ... x_{T-1}, are put into `entrance` [shape=(T + 1, B, H)],
    which is overwritten; a launch leaves `gradients`, of the same shape. Every link has `batch` Jacobians; `weights`
    and `levels` are those of `chunk_length` and `launch_scan`. ``lost[0]`` becomes 1 where a product is not in range.
    Raises MemoryError if the arrays do not fit, ValueError for Jacobians too large for levels.
    """

    def __init__(self, shape, dtype, weights, method, levels=None, length=None, batch=None):
        (T, B, H), self.method, self.levels = shape, method, levels
        self.in_levels, batch = method not in ("linear", "chunked"), batch or B
        if self.in_levels:
            check_size(H, dtype)
            numbers, what = T * batch * H * H, f"storing {T} x {batch} transposed Jacobians of {H} x {H}"
            require(numbers * dtype.itemsize, what)
            self.mats, self.exps, self.vecs, self.lost = workspace(T, batch, B, H, dtype)
            self.entrance, self.gradients = self.vecs[1:], self.vecs[: T + 1]
            return
        self.length = T if method == "linear" else length or chunk_length(*shape, dtype, "cuda", weights)
        self.count = max(T - 1, 0) // self.length
        self.inner = max(self.count - 1, 0)
        numbers, what = self.inner * B * H * (H + 2), f"multiplying {self.inner} chunks of {self.length} steps"
        require(numbers * dtype.itemsize, what)
        some = max(self.inner, 1)  # arrays without entries are not to be had everywhere
        self.products = cuda.device_array((some, B, H, H), dtype)
        self.exponents = cuda.device_array((some, B, H), np.int32)
        self.offsets, self.ends = (cuda.device_array((n, B, H), dtype) for n in (some, self.count + 1))
        self.entrance = self.gradients = cuda.device_array((T + 1, B, H), dtype)
        self.lost = cuda.to_device(np.zeros(1, np.int32))

    def launch(self, links, affine, stream=0):
        """Launch the scan along a chain, with loss terms if `affine`; return where the gradients will be."""
        self.links, self.stream = links, stream
        if self.in_levels:
            launch_prepare(links, self.mats, self.exps, self.lost, stream)
            launch_scan(self.mats, self.exps, self.vecs, affine, self.levels, self.lost, stream)
        else:
            copy(self.entrance[len(self.entrance) - 1 :], self.ends[self.count :], stream)
            chunked(self, affine)
        return self.gradients

    def pass_back(self, first, number, keep=True):
        """Launch going back along some chunks; see `bppsa_nb.chains.methods.Chunks`."""
        (_, batch, size), dtype, links = self.gradients.shape, self.gradients.dtype, self.links
        ends = self.ends[first:] if keep else self.offsets
        _, dense, weights, slopes, carry, carried = links.arguments
        arrays = first, self.length, ends, self.gradients
        if not dense and in_registers(links.sums, dtype):
            sweep = sweep_chunks_of(size, len(slopes), carried, keep, dtype.type)
            shared = 2 * links.sums * dtype.itemsize
            sweep[number * batch, size, self.stream, shared](weights, slopes, carry, *arrays)
            return
        numbers = size + links.sums
        shared = shared_bytes(numbers, dtype.itemsize, f"hidden_size: H + K H = {numbers} numbers")
        threads = min(MAX_THREADS, max(size, links.sums))
        launch(sweep_chunks, number * batch, threads, self.stream, shared, *links.arguments, *arrays, keep)

    def multiply(self):
        """Launch the products of the inner chunks."""
        arrays = self.products, self.exponents, self.lost
        launch_multiply(self.links, 1, self.inner, self.length, *arrays, self.stream)

    def apply_products(self, affine):
        """Launch finding the gradients at the ends of chunks, one sample per block."""
        (_, batch, size), dtype = self.ends.shape, self.ends.dtype
        if in_registers(size, dtype):
            across, info = across_chunks_of(size, affine, dtype.type), np.finfo(dtype)
            shared = (2 * size + info.maxexp - info.minexp) * dtype.itemsize
            arrays = line(self.products), self.exponents, self.offsets, self.ends, self.lost
            across[batch, size, self.stream, shared](*arrays)
            return
        shared = shared_bytes(2 * size, dtype.itemsize, f"hidden_size: 2 H = {2 * size} numbers")
        arrays = self.products, self.exponents, self.offsets, affine, self.ends, self.lost
        launch(across_chunks, batch, min(MAX_THREADS, size), self.stream, shared, *arrays)

    def is_lost(self):
        """Wait for the scan; tell whether a product was not in range."""
        lost = bool(self.lost.copy_to_host()[0])
        if lost:
            self.lost.copy_to_device(np.zeros(1, np.int32))
        return lost


def go_back(chain, grad_output, local_grads, method, levels=None, length=None):
    """Go back along a chain; see `bppsa_nb.chains.methods.go_back`.

    Arrays are all on the host, or all on the device, as is the result.
    """
    T, batch = chain.shape[:2]
    if T == 0:
        gradients = cuda.device_array((1, *grad_output.shape), grad_output.dtype)
        put(grad_output, gradients[0])
        return fetched(gradients, grad_output)
    links = Links(chain, len(grad_output))
    scan = Scan(links.shape, links.dtype, getattr(chain, "num_weights", 0), method, levels, length, batch)
    if local_grads is None:
        fill(scan.entrance, links.dtype.type(0))
    else:
        put(local_grads[:T], scan.entrance[:T])
    put(grad_output, scan.entrance[T])
    gradients = scan.launch(links, local_grads is not None)
    if scan.is_lost():
        raise DynamicRangeError
    return fetched(gradients, grad_output)


def multiply(chain, count, length):
    """Multiply the Jacobians of chunks; see `bppsa_nb.chains.methods.multiply`."""
    links, lost = Links(chain), cuda.to_device(np.zeros(1, np.int32))
    _, batch, size = links.shape
    require(count * batch * size * size * links.dtype.itemsize, f"multiplying {count} chunks of {length} steps")
    products = cuda.device_array((count, batch, size, size), links.dtype)
    exponents = cuda.device_array((count, batch, size), np.int32)
    launch_multiply(links, 0, count, length, products, exponents, lost)
    if lost.copy_to_host()[0]:
        raise DynamicRangeError
    return products.copy_to_host(), exponents.copy_to_host().astype(np.int64)


def backprop(jacobians_T, grad_output, local_grads, method, backend, levels):
    """Compute what `bppsa_nb.backprop` computes, which see; the result is on the GPU."""
    structured = isinstance(jacobians_T, StructuredChain)
    if structured:
        for name in ("weights", "slopes", "carry"):
            if getattr(jacobians_T, name) is not None:
                as_device_array(f"jacobians_T.{name}", getattr(jacobians_T, name))
    else:
        jacobians_T = as_device_array("jacobians_T", jacobians_T)
    grad_output = as_device_array("grad_output", grad_output)
    local_grads = None if local_grads is None else as_device_array("local_grads", local_grads)
    parts = jacobians_T, grad_output, local_grads
    seen = [part if part is None or part is jacobians_T and structured else on_host(part) for part in parts]
    *_, shape, _ = checks.check_chain(*seen, backend)
    weights = jacobians_T.num_weights if structured else 0
    method, _, levels = choose(method, backends.cuda_only(backend), levels, shape, grad_output.dtype, weights)
    T, _, H = shape
    chain = jacobians_T if structured or jacobians_T.ndim == 4 else jacobians_T.reshape(T, 1, H, H)
    end = grad_output
    if local_grads is not None:
        end = cuda.device_array(grad_output.shape, grad_output.dtype)
        copy(grad_output, end)
        add(end, local_grads[T])
    gradients = in_range(partial(go_back, chain, end, local_grads), method, levels)
    if not is_finite(gradients):
        checks.check_numbers(jacobians_T, grad_output, local_grads)
    return gradients
