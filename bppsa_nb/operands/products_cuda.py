"""Planned sparse products on a GPU: the numeric phase's counterpart of `products`; plans are made on the CPU.

Values stay on the device from the first product of a scan to the last; gradients, which are short, come and go. Every
sum is formed in the order of its terms, so results do not change from run to run.
"""

import numpy as np

from bppsa_nb.machine.arrays_cuda import over
from bppsa_nb.machine.cuda import SHARED_BYTES, on_device, reduced
from bppsa_nb.machine.cuda_compiler import cuda
from bppsa_nb.operands.products import batch_of

send = on_device  # values stay there from then on
THREADS = 128
_PART = 2**14  # entries that one block looks at


@cuda.jit
def sums(a_indptr, a_indices, a, b_indptr, b_indices, b, columns, tile, indptr, indices, c):
    """Sum the multiply-adds of each entry, one row per block: `tile` columns at a time stand in shared memory."""
    row = cuda.shared.array(0, c.dtype)
    tid, threads, rows = cuda.threadIdx.x, cuda.blockDim.x, indptr.shape[0] - 1
    sample, i = cuda.blockIdx.x // rows, cuda.blockIdx.x % rows
    s_a, s_b = min(sample, a.shape[0] - 1), min(sample, b.shape[0] - 1)
    for base in range(0, columns, tile):
        for j in range(tid, tile, threads):
            row[j] = 0
        cuda.syncthreads()
        for p in range(a_indptr[i], a_indptr[i + 1]):
            k, factor = a_indices[p], a[s_a, p]
            if factor == 0:
                continue  # for all threads alike
            for q in range(b_indptr[k] + tid, b_indptr[k + 1], threads):
                j = b_indices[q] - base
                if 0 <= j < tile:
                    row[j] += factor * b[s_b, q]
            cuda.syncthreads()  # the next row of b has other threads at the same column
        for p in range(indptr[i] + tid, indptr[i + 1], threads):
            j = indices[p] - base
            if 0 <= j < tile:
                c[sample, p] = row[j]
        cuda.syncthreads()


@cuda.jit
def scale_rows(a_indptr, a_indices, a, b_indptr, b, indptr, c):
    """Scale rows of b, one per block: no row of a has more than one entry."""
    rows = indptr.shape[0] - 1
    sample, i = cuda.blockIdx.x // rows, cuda.blockIdx.x % rows
    p = a_indptr[i]
    if p < a_indptr[i + 1]:
        factor, source = a[min(sample, a.shape[0] - 1), p], b_indptr[a_indices[p]]
        for q in range(cuda.threadIdx.x, indptr[i + 1] - indptr[i], cuda.blockDim.x):
            c[sample, indptr[i] + q] = factor * b[min(sample, b.shape[0] - 1), source + q]


@cuda.jit
def scale_columns(a_indices, a, b, c):
    """Scale columns of a, one entry per thread: every row of b has one entry."""
    nnz = c.shape[1]
    place = cuda.grid(1)
    if place < c.shape[0] * nnz:
        sample, p = place // nnz, place % nnz
        c[sample, p] = a[min(sample, a.shape[0] - 1), p] * b[min(sample, b.shape[0] - 1), a_indices[p]]


@cuda.jit
def apply_rows(indptr, indices, values, vectors, result):
    """Multiply rows by a sample's vector, one row per block."""
    shared = cuda.shared.array(0, result.dtype)
    tid, threads, rows = cuda.threadIdx.x, cuda.blockDim.x, result.shape[1]
    sample, i = cuda.blockIdx.x // rows, cuda.blockIdx.x % rows
    total = result.dtype.type(0)
    for p in range(indptr[i] + tid, indptr[i + 1], threads):
        total += values[min(sample, values.shape[0] - 1), p] * vectors[sample, indices[p]]
    shared[tid] = total
    total = reduced(shared, tid, threads, True)
    if tid == 0:
        result[sample, i] = total


@cuda.jit
def magnitude_ranges(values, high, low):
    """Find the largest and the smallest non-zero size in a part of a sample's entries, one part per block."""
    shared = cuda.shared.array(0, values.dtype)
    tid, threads, parts = cuda.threadIdx.x, cuda.blockDim.x, high.shape[1]
    sample, part = cuda.blockIdx.x // parts, cuda.blockIdx.x % parts
    most, least = values.dtype.type(0), low[sample, part]  # infinity
    for p in range(part * _PART + tid, min((part + 1) * _PART, values.shape[1]), threads):
        size = abs(values[sample, p])
        if size > most or size != size:  # NaN stays
            most = size
        if size > 0 and size < least:
            least = size
    shared[tid], shared[threads + tid] = most, least
    half = threads // 2
    while half > 0:
        cuda.syncthreads()
        if tid < half:
            other = shared[tid + half]
            if other > shared[tid] or other != other:
                shared[tid] = other
            shared[threads + tid] = min(shared[threads + tid], shared[threads + tid + half])
        half //= 2
    if tid == 0:
        high[sample, part], low[sample, part] = shared[0], shared[threads]


@cuda.jit
def scale_values(values, factors, scaled):
    """Multiply each sample's values by its factor, one entry per thread."""
    nnz = values.shape[1]
    place = cuda.grid(1)
    if place < values.shape[0] * nnz:
        sample, p = place // nnz, place % nnz
        scaled[sample, p] = factors[sample] * values[sample, p]


def _index(pattern):
    """Return a pattern's index arrays on the device, where they stay as long as the pattern lives."""
    if not pattern.on_device:
        pattern.on_device.extend(map(cuda.to_device, (pattern.indptr, pattern.indices)))
    return pattern.on_device


def product(plan, a, b, out=None):
    """Run the numeric phase of a planned product; see `bppsa_nb.operands.products.product`. `out` is on the host.

    Raises ValueError if a row of the right pattern names a column twice: two threads would add to it at once.
    """
    pattern = plan.pattern
    c = cuda.device_array((batch_of(a, b), pattern.nnz), a.dtype)
    if not c.size:
        return c if out is None else out
    (a_indptr, a_indices), (b_indptr, b_indices) = map(_index, (plan.left, plan.right))
    blocks = c.shape[0] * pattern.shape[0]
    if plan.kind == "rows":
        scale_rows[blocks, THREADS](a_indptr, a_indices, a, b_indptr, b, _index(pattern)[0], c)
    elif plan.kind == "columns":
        over(scale_columns, c, threads=THREADS)(a_indices, a, b, c)
    else:
        if not plan.right_canonical:
            raise ValueError("b must name no column twice in a row, and in order, on backend 'cuda'; use backend='cpu'")
        tile = min(SHARED_BYTES // c.dtype.itemsize, pattern.shape[1])
        arrays = (a_indptr, a_indices, a, b_indptr, b_indices, b, pattern.shape[1], tile, *_index(pattern), c)
        sums[blocks, THREADS, 0, tile * c.dtype.itemsize](*arrays)
    return c if out is None else c.copy_to_host(out)


def apply(pattern, values, vectors):
    """Multiply each sample's matrix and vector; see `bppsa_nb.operands.products.apply`."""
    result = cuda.device_array((len(vectors), pattern.shape[0]), vectors.dtype)
    if not result.size:
        return result.copy_to_host()
    vectors = on_device(vectors)
    arrays = (*_index(pattern), values, vectors, result)
    apply_rows[result.size, THREADS, 0, THREADS * result.dtype.itemsize](*arrays)
    return result.copy_to_host()


def magnitude_range(values):
    """Find how far each sample's entries spread; see `bppsa_nb.operands.products.magnitude_range`."""
    shape = (values.shape[0], max(-(-values.shape[1] // _PART), 1))
    high, low = (cuda.to_device(np.full(shape, start, values.dtype)) for start in (0, np.inf))
    if values.size:
        magnitude_ranges[high.size, THREADS, 0, 2 * THREADS * values.dtype.itemsize](values, high, low)
    return high.copy_to_host().max(axis=1), low.copy_to_host().min(axis=1)


def scale(values, exponents, out=None):
    """Multiply each sample's values by a power of two; see `bppsa_nb.operands.products.scale`."""
    out = cuda.device_array_like(values) if out is None else out
    if values.size:
        factors = cuda.to_device(np.ldexp(values.dtype.type(1), exponents))
        over(scale_values, values, threads=THREADS)(values, factors, out)
    return out
