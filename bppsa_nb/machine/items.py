"""One source for CPUs and GPUs: what is done to each of many items, none of which waits for another.

A *body* is a plain function ``body(*arrays, first, last)``: a loop over items ``first ... last``, after it has asked
`each` or `rows` for its share of them. On a CPU that is all of them: the loop is compiled, and cores share out the
items. On a GPU (`items_cuda`) the body is the kernel: after `each`, an item is one thread's; after `rows`, a block's,
whose threads are *lanes* that share the numbers of a row, and `total` adds up what they found.

    def apply_rows(indptr, indices, values, vector, result, first, last):
        first, last, lane, lanes = rows(first, last)
        for i in range(first, last):
            found = result.dtype.type(0)
            for p in range(indptr[i] + lane, indptr[i + 1], lanes):
                found += values[p] * vector[indices[p]]
            found = total(found, result)
            if lane == 0:
                result[i] = found

That is for what is elementwise, by rows, or a matrix-vector product, and costs a CPU nothing. Products of matrices are
left to BLAS and to `machine.tiles`: written like this, they would take ten times as long.
"""

from functools import cache

import numpy as np

from bppsa_nb.machine.compiling import compiled, inline
from bppsa_nb.machine.workers import parallel_for

each = inline(lambda first, last: (first, last))
rows = inline(lambda first, last: (first, last, 0, 1))  # a row has one lane
total = inline(lambda value, array: value)
LANES = 1
_loop = cache(compiled)  # so that a body is compiled once


def run(body, count, *arrays, **how):
    """Have a body handle so many items; `how` is for `parallel_for`."""
    if count:
        parallel_for(_loop(body), count, *arrays, **how)


run_each = run_rows = run
empty = np.empty
send = host = np.asarray  # values stay in this computer's memory
