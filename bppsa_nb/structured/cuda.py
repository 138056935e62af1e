"""Linear and chunked scans on a GPU, over structured chains and over stored Jacobians.

Jacobians of a structured chain are made of weights and diagonals where they are multiplied. Three kernels are the
three phases of the chunked scan: `multiply_chunks` takes the unit vectors back along each chunk; `across_chunks` takes
the gradient back over the products; `sweep_chunks` replays the chunks, one chunk of one sample per block, and is the
linear scan where there is only one. `prepare` writes Jacobians out, for the scan by levels.

Launchers take device arrays and a stream, allocate nothing and wait for nothing, so that a graph can record them.
"""

import math

import numpy as np
from numba import cuda

from bppsa_nb.operator import RangeLost
from bppsa_nb.scan.cuda import (
    MAX_THREADS,
    SHARED_BYTES,
    collect,
    launch_prepare,
    launch_scan,
    minexp,
    rescale,
    workspace,
)
from bppsa_nb.structured.chain import StructuredChain

_device = cuda.jit(device=True, inline="always")
_THREADS = 256  # of a block that multiplies, at most
_ROOM = 8  # powers of two that a row may grow or shrink by before it is scaled


@_device
def dot(matrix, column, shared, offset):
    """Multiply a column of a matrix by numbers in shared memory, as four sums that do not wait for each other."""
    zero = matrix.dtype.type(0)
    a, b, c, d = zero, zero, zero, zero
    rows = matrix.shape[0]
    whole = rows - rows % 4
    for q in range(0, whole, 4):
        a += matrix[q, column] * shared[offset + q]
        b += matrix[q + 1, column] * shared[offset + q + 1]
        c += matrix[q + 2, column] * shared[offset + q + 2]
        d += matrix[q + 3, column] * shared[offset + q + 3]
    for q in range(whole, rows):
        a += matrix[q, column] * shared[offset + q]
    return (a + b) + (c + d)


@cuda.jit
def sweep_chunks(stored, dense, weights, slopes, carry, with_carry, first, length, ends, gradients, keep):
    """Go back along chunks (Equation 3), one chunk of one sample per block.

    The first six arguments are those of `Links`. ``ends[c]`` is the gradient at the end of chunk ``first + c`` and
    becomes that at its start. `gradients` holds loss terms and becomes what is found; if `keep` is false, it stays as
    it is, and every chunk begins with a gradient of zero.
    """
    shared = cuda.shared.array(0, gradients.dtype)  # the gradient, then what it is at the K sums
    batch, size = gradients.shape[1], gradients.shape[2]
    sums = size if dense else weights.shape[0]
    c, b = cuda.blockIdx.x // batch, cuda.blockIdx.x % batch
    tid, threads = cuda.threadIdx.x, cuda.blockDim.x
    start = (first + c) * length
    last = min(start + length, gradients.shape[0] - 1) - 1
    for i in range(tid, size, threads):
        shared[i] = ends[c, b, i] if keep else gradients.dtype.type(0)
    k, column = tid // size, tid % size
    slope = gradients.dtype.type(1)
    if tid < sums and not dense:
        slope = slopes[k, last, b, column]
    for t in range(last, start - 1, -1):
        now = slope
        if tid < sums and not dense:
            slope = slopes[k, max(t - 1, start), b, column]  # read ahead, so that no step waits for memory
        cuda.syncthreads()
        if tid < sums:
            shared[size + tid] = now * shared[column]
        for q in range(tid + threads, sums, threads):
            shared[size + q] = shared[q % size] if dense else slopes[q // size, t, b, q % size] * shared[q % size]
        cuda.syncthreads()
        for i in range(tid, size, threads):
            total = gradients[t, b, i]
            if dense:
                for j in range(size):
                    total += stored[t, b % stored.shape[1], i, j] * shared[size + j]
            else:
                total += dot(weights, i, shared, size)
            if with_carry:
                total += carry[t, b, i] * shared[i]
            shared[i] = total
            if keep:
                gradients[t, b, i] = total
    for i in range(tid, size, threads):
        ends[c, b, i] = shared[i]


@_device
def _smaller(smallest, value):
    """Return the smaller of a size and that of a number, if that is not zero."""
    size = abs(value)
    return min(smallest, size) if size > 0 else smallest


@_device
def _smallest_kept(stored, dense, weights, slopes, carry, with_carry, t, b):
    """Return how small an entry may be after a step without having lost a term; see `chain.smallest_kept`."""
    one, least = stored.dtype.type(1), minexp(stored.itemsize)
    smallest, largest = stored.dtype.type(math.inf), one
    slope, through = smallest, smallest
    size = stored.shape[2] if dense else weights.shape[1]
    for q in range(size if dense else weights.shape[0]):
        for i in range(size):
            weight = stored[t, b % stored.shape[1], q, i] if dense else weights[q, i]
            smallest, largest = _smaller(smallest, weight), max(largest, abs(weight))
        slope = one if dense else _smaller(slope, slopes[q // size, t, b, q % size])
    if with_carry:
        for i in range(size):
            through = _smaller(through, carry[t, b, i])
    bound = math.ldexp(one, least // 2 + _ROOM + 1)
    if slope * min(smallest, one) >= bound and through >= bound:
        return stored.dtype.type(0)
    digits = 23 if stored.itemsize == 4 else 52
    return math.ldexp(largest, least + digits + 8)


@cuda.jit
def multiply_chunks(stored, dense, weights, slopes, carry, with_carry, length, rows, products, exponents, lost):
    """Multiply the Jacobians of all chunks but the first and the last, by going back from the unit vectors.

    The first six arguments are those of `Links`. A block takes `rows` of the vectors through one chunk of one sample;
    each row carries a power of two of its own. Every thread has a square of four rows and columns in registers.
    """
    shared = cuda.shared.array(0, products.dtype)
    square = cuda.local.array(16, products.dtype)
    batch, size, count = products.shape[1], products.shape[2], 1 if dense else slopes.shape[0]
    groups = (size + rows - 1) // rows
    c, b = cuda.blockIdx.x // (batch * groups), cuda.blockIdx.x // groups % batch
    top = cuda.blockIdx.x % groups * rows  # the first row
    tid, threads = cuda.threadIdx.x, cuda.blockDim.x
    squares = (size + 3) // 4
    wide = 4 * squares
    row, column = tid // squares * 4, tid % squares * 4
    zero, one = products.dtype.type(0), products.dtype.type(1)
    least, infinite = minexp(products.itemsize), products.dtype.type(math.inf)
    spread = math.ldexp(one, least // 2)
    many, few = math.ldexp(one, _ROOM), math.ldexp(one, -_ROOM)
    diagonals = rows * wide  # where the step's slopes stand
    for q in range(tid, rows * wide, threads):
        shared[q] = one if q % wide == top + q // wide else zero
    for r in range(tid, min(rows, size - top), threads):
        exponents[c, b, top + r] = 0
    for t in range((c + 2) * length - 1, (c + 1) * length - 1, -1):
        for k in range(count):  # no division here: it would take as long as the rest of the step
            for j in range(tid, size, threads):
                shared[diagonals + k * size + j] = one if dense else slopes[k, t, b, j]
        cuda.syncthreads()
        for i in range(4):
            through = carry[t, b, min(column + i, size - 1)] if with_carry else zero
            for r in range(4):
                square[4 * r + i] = through * shared[(row + r) * wide + column + i]
        for k in range(count):
            for j in range(size):
                slope = shared[diagonals + k * size + j]
                for i in range(4):
                    if dense:
                        weight = stored[t, b % stored.shape[1], min(column + i, size - 1), j]
                    else:
                        weight = weights[k * size + j, min(column + i, size - 1)] * slope
                    for r in range(4):
                        square[4 * r + i] += weight * shared[(row + r) * wide + j]
        cuda.syncthreads()
        for i in range(4):
            for r in range(4):
                shared[(row + r) * wide + column + i] = square[4 * r + i]
        cuda.syncthreads()
        for r in range(tid, min(rows, size - top), threads):
            peak, low, bottom = zero, infinite, infinite
            for i in range(size):
                value = abs(shared[r * wide + i])
                peak, low, bottom = max(peak, value), _smaller(low, value), min(bottom, value)
            if not peak < infinite or low < peak * spread:
                lost[0] = 1
            if bottom < few * spread and bottom < _smallest_kept(
                stored, dense, weights, slopes, carry, with_carry, t, b
            ):
                lost[0] = 1
            if peak > many or peak < few or t == (c + 1) * length:
                shift = int(max(math.frexp(peak)[1], least))
                exponents[c, b, top + r] += shift
                scale = math.ldexp(one, -shift)
                for i in range(size):
                    shared[r * wide + i] *= scale
    cuda.syncthreads()
    for q in range(tid, rows * wide, threads):
        r, i = q // wide, q % wide
        if top + r < size and i < size:
            products[c, b, top + r, i] = shared[q]


@cuda.jit
def across_chunks(products, exponents, offsets, affine, ends, lost):
    """Take the gradient over the chunks' products, one sample per block; see `chain.apply_rows`.

    ``ends[-1]`` is the gradient at the start of the chunk at the loss; the others become those at the ends of theirs.
    """
    shared = cuda.shared.array(0, ends.dtype)  # factors of the rows, then their powers of two
    b, size = cuda.blockIdx.x, ends.shape[2]
    tid, threads = cuda.threadIdx.x, cuda.blockDim.x
    zero, one = ends.dtype.type(0), ends.dtype.type(1)
    least, digits = minexp(ends.itemsize), 23 if ends.itemsize == 4 else 52
    smallest, half = math.ldexp(one, least + digits + 8), ends.dtype.type(least // 2)
    nothing = ends.dtype.type(-(1 << 20))
    above = ends.shape[0] - 2
    for i in range(tid, size, threads):
        ends[above, b, i] = ends[above + 1, b, i]
    for c in range(above - 1, -1, -1):
        for j in range(tid, size, threads):
            fraction, power = math.frexp(ends[c + 1, b, j])
            shared[j] = fraction
            shared[size + j] = nothing if fraction == 0 else ends.dtype.type(power + exponents[c, b, j])
        cuda.syncthreads()
        top, bottom = nothing, -nothing
        for j in range(size):
            power = shared[size + j]
            top = max(top, power)
            if power > nothing:
                bottom = min(bottom, power)
        for i in range(tid, size, threads):
            total = zero
            for j in range(size):
                total += math.ldexp(shared[j], int(shared[size + j] - top)) * products[c, b, j, i]
            if bottom - top < half and abs(total) < smallest:
                lost[0] = 1
            total = math.ldexp(total, int(top))
            if affine:
                total += offsets[c, b, i]
            ends[c, b, i] = total
        cuda.syncthreads()


@cuda.jit
def prepare(weights, slopes, carry, with_carry, mats, exps, lost):
    """Write a structured chain's Jacobians out, scaled: one step of one sample per block."""
    shared = cuda.shared.array(0, mats.dtype)
    t, b = cuda.blockIdx.x // mats.shape[1], cuda.blockIdx.x % mats.shape[1]
    size = mats.shape[2]
    high = mats.dtype.type(0)
    low = mats.dtype.type(math.inf)
    for q in range(cuda.threadIdx.x, size * size, cuda.blockDim.x):
        i, j = q // size, q % size
        value = mats.dtype.type(0)
        for k in range(slopes.shape[0]):
            value += weights[k * size + j, i] * slopes[k, t, b, j]
        if with_carry and i == j:
            value += carry[t, b, i]
        mats[t, b, i, j] = value
        high = max(high, abs(value))
        low = _smaller(low, value)
    exponent = rescale(mats[t, b], high, low, shared, lost)
    if cuda.threadIdx.x == 0:
        exps[t, b] = exponent


class Chunks:
    """What the chunked scan keeps between its phases, on the device.

    Parameters
    ----------
    shape : tuple of int
        (T, B, H).
    length : int
        Steps of a chunk.
    dtype : np.dtype

    Attributes
    ----------
    count, inner : int
        Chunks below the one at the loss, and those of them that need a product: not the one at x_0.

    Raises
    ------
    MemoryError
        If it does not fit.
    """

    def __init__(self, shape, length, dtype):
        T, batch, size = shape
        self.length, self.count = length, max(T - 1, 0) // length
        self.inner = max(self.count - 1, 0)
        require(
            self.inner * batch * size * (size + 2) * dtype.itemsize,
            f"multiplying {self.inner} chunks of {length} steps",
        )
        some = max(self.inner, 1)  # arrays without entries are not to be had everywhere
        self.products = cuda.device_array((some, batch, size, size), dtype)
        self.exponents = cuda.device_array((some, batch, size), np.int32)
        self.offsets = cuda.device_array((some, batch, size), dtype)
        self.ends = cuda.device_array((self.count + 1, batch, size), dtype)


class Links:
    """A chain on the device, as the kernels take it: stored Jacobians, or weights and diagonals.

    Parameters
    ----------
    chain : StructuredChain or array [shape=(T, B, H, H)] or [shape=(T, 1, H, H)]
        Of host or device arrays.
    batch : int, optional
        How many samples share stored Jacobians.

    Attributes
    ----------
    shape : tuple of int
        (T, B, H).
    sums : int
        Numbers that a step multiplies the gradient into: K H, or H for stored Jacobians.
    arguments : tuple
        ``stored, dense, weights, slopes, carry, with_carry`` of the kernels, stand-ins for what is not there included;
        `weights` is [shape=(K H, H)].
    """

    def __init__(self, chain, batch=None):
        self.dtype, (T, B, H) = chain.dtype, chain.shape[:3]
        self.shape = T, batch or B, H
        dense = not isinstance(chain, StructuredChain)
        nothing = np.zeros((1, 1, 1, 1), self.dtype)
        stored, weights, slopes, carry = (
            (chain, nothing, nothing, None) if dense else (nothing, chain.weights, chain.slopes, chain.carry)
        )
        if dense:
            weights = np.zeros((1, 1, H), self.dtype)
        elif len(weights) == 0:  # arrays without entries are not to be had everywhere: a weight of zero changes nothing
            weights, slopes = np.zeros((1, H, H), self.dtype), np.zeros((1, T, B, H), self.dtype)
        self.sums = H if dense else len(weights) * H
        arrays = (
            stored,
            weights.reshape(weights.shape[0] * weights.shape[1], H),
            slopes,
            nothing[0] if carry is None else carry,
        )
        stored, weights, slopes, carry_ = map(on_device, arrays)
        self.arguments = stored, dense, weights, slopes, carry_, carry is not None


def on_device(array):
    """Return a device array as it is, and a host array copied to the device."""
    return array if hasattr(array, "copy_to_host") else cuda.to_device(np.ascontiguousarray(array))


def launch_sweep(links, first, chunks, length, ends, gradients, keep=True, stream=0):
    """Launch `sweep_chunks` on chunks ``first ... first + chunks - 1``."""
    _, batch, size = gradients.shape
    shared = shared_bytes(size + links.sums, gradients.dtype, f"H + K H = {size + links.sums}")
    threads = min(MAX_THREADS, max(size, links.sums))
    sweep_chunks[chunks * batch, threads, stream, shared](*links.arguments, first, length, ends, gradients, keep)


def launch_chunked(links, chunks, gradients, affine, lost, stream=0):
    """Launch all phases of the chunked scan.

    Parameters
    ----------
    links : Links
    chunks : Chunks
        ``ends[-1]`` is the gradient at x_T.
    gradients : device array [shape=(T + 1, B, H)]
        Row T is the gradient at x_T. The others are loss terms, or zeros, and become what is found.
    affine : bool
        Whether there are loss terms below x_T.
    lost : device array of int32 [shape=(1,)]
        Set to 1 where a product could not keep its entries in range.
    stream : stream
    """
    _, batch, size = links.shape
    length, count, inner = chunks.length, chunks.count, chunks.inner
    launch_sweep(links, count, 1, length, chunks.ends[count:], gradients, stream=stream)
    if inner:
        rows, threads, shared = _squares(size, links.sums, links.dtype)
        products = chunks.products, chunks.exponents
        blocks = inner * batch * -(-size // rows)
        multiply_chunks[blocks, threads, stream, shared](*links.arguments, length, rows, *products, lost)
        if affine:
            launch_sweep(links, 1, inner, length, chunks.offsets, gradients, keep=False, stream=stream)
    if count:
        shared = shared_bytes(2 * size, links.dtype, f"2 H = {2 * size}")
        arrays = chunks.products, chunks.exponents, chunks.offsets, affine, chunks.ends
        across_chunks[batch, min(MAX_THREADS, size), stream, shared](*arrays, lost)
        launch_sweep(links, 0, count, length, chunks.ends, gradients, stream=stream)


def _squares(size, sums, dtype):
    """Return how many rows a block of `multiply_chunks` takes, its threads, and its bytes of shared memory."""
    across = -(-size // 4)
    down = max(1, min(across, _THREADS // across))
    while down > 1 and (4 * down * 4 * across + sums) * dtype.itemsize > SHARED_BYTES:
        down -= 1
    shared = shared_bytes(16 * down * across + sums, dtype, f"four rows of H = {size} and K H = {sums}")
    return 4 * down, down * across, shared


def shared_bytes(count, dtype, what):
    """Return how many bytes of shared memory a block needs.

    Raises
    ------
    ValueError
        If it does not get them.
    """
    size = count * dtype.itemsize
    if size > SHARED_BYTES:
        raise ValueError(
            f"hidden_size: {what} numbers take {size} bytes, but a thread block has {SHARED_BYTES} bytes of shared "
            "memory; use backend='cpu'"
        )
    return size


def require(size, what):
    """Raise unless the device has memory for an array.

    Raises
    ------
    MemoryError
        If it does not.
    """
    free = cuda.current_context().get_memory_info().free
    if size > free:
        raise MemoryError(f"{what} takes {size / 2**30:.1f} GiB, but the device has {free / 2**30:.1f} GiB left")


def sweep(chain, grad_output, local_grads=None):
    """Go back one step after the other; see `bppsa_nb.structured.chain.sweep`. The chain may be stored Jacobians."""
    gradients = _start(chain, grad_output, local_grads)
    if chain.shape[0]:
        ends = cuda.to_device(np.array(grad_output[None]))
        launch_sweep(Links(chain, len(grad_output)), 0, 1, chain.shape[0], ends, gradients)
    return gradients.copy_to_host()


def chunked(chain, grad_output, local_grads=None, length=1):
    """Go back chunk by chunk; see `bppsa_nb.structured.chain.chunked`. The chain may be stored Jacobians."""
    gradients = _start(chain, grad_output, local_grads)
    if chain.shape[0]:
        links, lost = Links(chain, len(grad_output)), cuda.to_device(np.zeros(1, np.int32))
        chunks = Chunks(links.shape, length, links.dtype)
        chunks.ends[chunks.count].copy_to_device(np.ascontiguousarray(grad_output))
        launch_chunked(links, chunks, gradients, local_grads is not None, lost)
        if lost.copy_to_host()[0]:
            raise RangeLost
    return gradients.copy_to_host()


def _start(chain, grad_output, local_grads):
    gradients = np.zeros((chain.shape[0] + 1, *grad_output.shape), chain.dtype) if local_grads is None else local_grads
    gradients = cuda.to_device(np.ascontiguousarray(gradients))
    gradients[len(gradients) - 1].copy_to_device(np.ascontiguousarray(grad_output))
    return gradients


def scan(chain, grad_output, local_grads, levels):
    """Scan transposed Jacobians by levels; they are written out on the device and never leave it.

    Parameters
    ----------
    chain : StructuredChain
    grad_output : np.ndarray [shape=(B, H)]
        ``local_grads[T]`` included.
    local_grads : np.ndarray [shape=(T + 1, B, H)] or None
    levels : int or None
        k of the truncated scan; None for Blelloch's.

    Returns
    -------
    np.ndarray [shape=(T + 1, B, H)]

    Raises
    ------
    RangeLost
        If a product could not keep its entries in range.
    """
    T, batch, size = chain.shape
    if T == 0:
        return grad_output[None].copy()
    require(
        T * batch * size * size * chain.dtype.itemsize, f"storing {T} x {batch} transposed Jacobians of {size} x {size}"
    )
    mats, exps, vecs, lost = workspace(T, batch, batch, size, chain.dtype)
    if local_grads is not None:
        vecs[1 : T + 1].copy_to_device(np.ascontiguousarray(local_grads[:T]))
    vecs[T + 1].copy_to_device(np.ascontiguousarray(grad_output))
    launch_prepare(prepare, Links(chain).arguments[2:], mats, exps, lost)
    launch_scan(mats, exps, vecs, local_grads is not None, levels, lost)
    return collect(vecs, lost)
