"""Planned sparse products on a GPU: the numeric phase's counterpart of `products`; plans are made on the CPU.

Values stay on the device from the first product of a scan to the last; gradients, which are short, come and go. Every
sum is formed in the order of its terms, so results do not change from run to run.
"""

from functools import partial

from bppsa_nb.machine import items_cuda as items
from bppsa_nb.machine.cuda import SHARED_BYTES
from bppsa_nb.machine.cuda_compiler import cuda
from bppsa_nb.operands import products_cpu as compiled

send = items.send


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


def _add_up(plan, a, b, c):
    """Run the numeric phase of a product whose entries are sums."""
    if not plan.right_canonical:  # two threads would add at once to a column that a row names twice
        raise ValueError("b must name no column twice in a row, and in order, on backend 'cuda'; use backend='cpu'")
    left, right, index = (compiled.index(pattern, items) for pattern in (plan.left, plan.right, plan.pattern))
    rows, columns = plan.pattern.shape
    tile = min(SHARED_BYTES // c.dtype.itemsize, columns)
    arrays = *left, a, *right, b, columns, tile, *index, c
    sums[len(c) * rows, items.LANES, 0, tile * c.dtype.itemsize](*arrays)


product = partial(compiled.product, on=items, add_up=_add_up)
apply, magnitude_range, scale = (
    partial(function, on=items) for function in (compiled.apply, compiled.magnitude_range, compiled.scale)
)
