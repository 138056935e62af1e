"""Planned sparse products compiled for CPUs: the symbolic phase, and the numeric phase's counterpart of `products`.

Functions take a range ``first ... last`` of rows, or of rows of all samples one after the other, so that
`machine.workers.parallel_for` can hand it out in chunks. They fill arrays they are given and return whether they did.
"""

import numpy as np

from bppsa_nb.machine.compiling import compiled
from bppsa_nb.machine.memory import require
from bppsa_nb.machine.workers import parallel_for
from bppsa_nb.operands.products import batch_of, send  # noqa: F401 - values stay in this computer's memory

_THRESHOLD = 2**15  # multiply-adds, or entries to look at, below which a second thread is not woken
_CHUNK = 2**26  # multiply-adds, about a tenth of a second, that Ctrl-C waits for
_PART = 2**16  # entries that one call looks at
_PLACED = 2**22  # multiply-adds of a plan up to which it keeps the place of each, four bytes


@compiled
def _list(a, b, columns, indptr, indices, first, last):
    """List the columns of each row of a product; without `indices` to put them into, count those of row i behind it."""
    (a_indptr, a_indices), (b_indptr, b_indices) = a, b
    seen = np.full(columns, -1, np.int32)
    for i in range(first, last):
        start = end = 0 if indices is None else indptr[i]
        low, high = columns, -1
        for p in range(a_indptr[i], a_indptr[i + 1]):
            k = a_indices[p]
            for q in range(b_indptr[k], b_indptr[k + 1]):
                j = b_indices[q]
                if seen[j] != i:
                    seen[j] = i
                    if indices is not None:
                        indices[end] = j
                    end += 1
                    low, high = min(low, j), max(high, j)
        if indices is None:
            indptr[i + 1] = end
        # Sorted: by walking over all columns in between where they are many, by sorting where they are few.
        elif high - low < 16 * (end - start):
            end = start
            for j in range(low, high + 1):
                if seen[j] == i:
                    indices[end] = j
                    end += 1
        else:
            indices[start:end].sort()
    return True


def _index(pattern):
    return pattern.indptr, pattern.indices


def _amount(multiply_adds):
    """Say how to share out so many multiply-adds."""
    return {"parallel": multiply_adds > _THRESHOLD, "chunks": multiply_adds // _CHUNK}


def entries(a, b, multiply_adds):
    """Find the entries of a product of patterns: indptr [shape=(m + 1,)], and sorted indices, of int32 [shape=(nnz,)].

    Raises MemoryError if they do not fit into memory.
    """
    shape, amount = (a.shape[0], b.shape[1]), _amount(multiply_adds)
    indptr = np.zeros(shape[0] + 1, np.int64)
    arrays = _index(a), _index(b), shape[1], indptr
    parallel_for(_list, shape[0], *arrays, None, **amount)
    nnz = int(np.cumsum(indptr, out=indptr)[-1])
    require(4 * nnz, f"the pattern of a product of shape {shape} with {nnz} entries")
    indices = np.empty(nnz, np.int32)
    parallel_for(_list, shape[0], *arrays, indices, **amount)
    return indptr, indices


@compiled
def _place(a, b, columns, pattern, starts, places, first, last):
    (a_indptr, a_indices), (b_indptr, b_indices), (indptr, indices) = a, b, pattern
    there = np.empty(columns, np.uint32)
    for i in range(first, last):
        for p in range(indptr[i], indptr[i + 1]):
            there[indices[p]] = p
        t = starts[i]
        for p in range(a_indptr[i], a_indptr[i + 1]):
            k = a_indices[p]
            for q in range(b_indptr[k], b_indptr[k + 1]):
                places[t] = there[b_indices[q]]
                t += 1
    return True


def places(plan):
    """Find where in the result each multiply-add of a plan goes, in the order in which they are performed.

    Returns the first multiply-add of each row [shape=(m + 1,)], and the places [shape=(multiply_adds,)].
    """
    left, right, pattern = plan.left, plan.right, plan.pattern
    before = np.concatenate([[0], np.cumsum(np.diff(right.indptr)[left.indices], dtype=np.int64)])
    starts, found = before[left.indptr].astype(np.uint32), np.empty(plan.multiply_adds, np.uint32)
    arrays = _index(left), _index(right), pattern.shape[1], _index(pattern), starts, found
    parallel_for(_place, pattern.shape[0], *arrays, **_amount(plan.multiply_adds))
    return starts, found


@compiled
def _placed(left, right, starts, places, indptr, c, first, last):
    """Add each multiply-add to the entry that it was planned for."""
    (a_indptr, a_indices, a), (b_indptr, b) = left, right
    rows = len(indptr) - 1
    for sample in range(first // rows, (last - 1) // rows + 1):
        a_s, b_s, c_s = a[min(sample, len(a) - 1)], b[min(sample, len(b) - 1)], c[sample]
        begin, end = max(first - sample * rows, 0), min(last - sample * rows, rows)
        for p in range(indptr[begin], indptr[end]):
            c_s[p] = 0
        for i in range(begin, end):
            t = starts[i]
            for p in range(a_indptr[i], a_indptr[i + 1]):
                k, factor = a_indices[p], a_s[p]
                source = b_indptr[k]
                length = b_indptr[k + 1] - source
                if factor != 0:
                    for q in range(length):
                        c_s[places[t + q]] += factor * b_s[source + q]
                t += length
    return True


@compiled
def _sums(left, right, columns, pattern, c, first, last):
    """Sum the multiply-adds of each entry: scattered into a row of zeros, then gathered."""
    (a_indptr, a_indices, a), (b_indptr, b_indices, b), (indptr, indices) = left, right, pattern
    rows = len(indptr) - 1
    row = np.zeros(columns, c.dtype)
    for sample in range(first // rows, (last - 1) // rows + 1):
        a_s, b_s, c_s = a[min(sample, len(a) - 1)], b[min(sample, len(b) - 1)], c[sample]
        for i in range(max(first - sample * rows, 0), min(last - sample * rows, rows)):
            empty = True
            for p in range(a_indptr[i], a_indptr[i + 1]):
                k, factor = a_indices[p], a_s[p]
                if factor != 0:
                    empty = False
                    for q in range(b_indptr[k], b_indptr[k + 1]):
                        row[b_indices[q]] += factor * b_s[q]
            for p in range(indptr[i], indptr[i + 1]):
                if empty:
                    c_s[p] = 0
                else:
                    c_s[p] = row[indices[p]]
                    row[indices[p]] = 0
    return True


@compiled
def _rows(left, right, indptr, c, first, last):
    """Scale rows of b: no row of a has more than one entry."""
    (a_indptr, a_indices, a), (b_indptr, b) = left, right
    rows = len(indptr) - 1
    for sample in range(first // rows, (last - 1) // rows + 1):
        a_s, b_s, c_s = a[min(sample, len(a) - 1)], b[min(sample, len(b) - 1)], c[sample]
        for i in range(max(first - sample * rows, 0), min(last - sample * rows, rows)):
            p = a_indptr[i]
            if p < a_indptr[i + 1]:
                target, source, factor = indptr[i], b_indptr[a_indices[p]], a_s[p]
                for q in range(indptr[i + 1] - target):
                    c_s[target + q] = factor * b_s[source + q]
    return True


@compiled
def _columns(a_indices, a, b, c, first, last):
    """Scale columns of a: every row of b has one entry."""
    nnz = c.shape[1]
    for sample in range(first // nnz, (last - 1) // nnz + 1):
        a_s, b_s, c_s = a[min(sample, len(a) - 1)], b[min(sample, len(b) - 1)], c[sample]
        for p in range(max(first - sample * nnz, 0), min(last - sample * nnz, nnz)):
            c_s[p] = a_s[p] * b_s[a_indices[p]]
    return True


def product(plan, a, b, out=None):
    """Run the numeric phase of a planned product; see `bppsa_nb.operands.products.product`."""
    left, right, pattern = plan.left, plan.right, plan.pattern
    c = np.empty((batch_of(a, b), pattern.nnz), a.dtype) if out is None else out
    amount = _amount(len(c) * plan.multiply_adds)
    if not c.size:
        pass
    elif plan.kind == "rows":
        arrays = (*_index(left), a), (right.indptr, b), pattern.indptr, c
        parallel_for(_rows, len(c) * pattern.shape[0], *arrays, **amount)
    elif plan.kind == "columns":
        parallel_for(_columns, c.size, left.indices, a, b, c, **amount)
    elif plan.multiply_adds <= _PLACED:
        if not plan.places:
            plan.places.append(places(plan))
        # Unsigned subscripts are not looked at for being negative.
        signed = *_index(left), right.indptr, pattern.indptr
        indptr, indices, others, ends = (array.view(f"u{array.itemsize}") for array in signed)
        arrays = (indptr, indices, a), (others, b), *plan.places[0], ends, c
        parallel_for(_placed, len(c) * pattern.shape[0], *arrays, **amount)
    else:
        arrays = (*_index(left), a), (*_index(right), b), pattern.shape[1], _index(pattern), c
        parallel_for(_sums, len(c) * pattern.shape[0], *arrays, **amount)
    return c


@compiled
def _apply(indptr, indices, values, vectors, result, first, last):
    rows = len(indptr) - 1
    for sample in range(first // rows, (last - 1) // rows + 1):
        entries, vector = values[min(sample, len(values) - 1)], vectors[sample]
        for i in range(max(first - sample * rows, 0), min(last - sample * rows, rows)):
            total = vector.dtype.type(0)
            for p in range(indptr[i], indptr[i + 1]):
                total += entries[p] * vector[indices[p]]
            result[sample, i] = total
    return True


def apply(pattern, values, vectors):
    """Multiply each sample's matrix and vector; see `bppsa_nb.operands.products.apply`."""
    result = np.empty((len(vectors), pattern.shape[0]), vectors.dtype)
    if result.size:
        arrays = *_index(pattern), values, vectors, result
        parallel_for(_apply, result.size, *arrays, parallel=len(vectors) * pattern.nnz > _THRESHOLD)
    return result


@compiled
def _magnitude_range(bits, sizes, high, low, first, last):
    parts = high.shape[1]
    for place in range(first, last):
        sample, part = place // parts, place % parts
        # The bits of a float without its sign are ordered as its size is, and integers are compared many at a time.
        most, least = sizes[0], sizes[1]
        for p in range(part * _PART, min((part + 1) * _PART, bits.shape[1])):
            size = bits[sample, p] & sizes[1]
            most = max(most, size)
            least = min(least, sizes[1] if size == 0 else size)
        high[sample, part], low[sample, part] = most, least
    return True


def magnitude_range(values):
    """Find how far each sample's entries spread; see `bppsa_nb.operands.products.magnitude_range`."""
    whole = np.dtype(f"i{values.itemsize}")
    sizes = np.array([0, np.iinfo(whole).max], whole)
    parts = max(-(-values.shape[1] // _PART), 1)
    high, low = np.empty((2, len(values), parts), whole)
    parallel_for(_magnitude_range, high.size, values.view(whole), sizes, high, low, parallel=values.size > _THRESHOLD)
    least = low.min(axis=1)
    peak, floor = high.max(axis=1).view(values.dtype), least.view(values.dtype)
    return peak, np.where(least == sizes[1], values.dtype.type(np.inf), floor)


@compiled
def _scale(values, factors, scaled, first, last):
    nnz = values.shape[1]
    for sample in range(first // nnz, (last - 1) // nnz + 1):
        factor = factors[sample]
        for p in range(max(first - sample * nnz, 0), min(last - sample * nnz, nnz)):
            scaled[sample, p] = factor * values[sample, p]
    return True


def scale(values, exponents, out=None):
    """Multiply each sample's values by a power of two; see `bppsa_nb.operands.products.scale`."""
    out = np.empty_like(values) if out is None else out
    factors = np.ldexp(values.dtype.type(1), exponents)
    if values.size:
        parallel_for(_scale, values.size, values, factors, out, parallel=values.size > _THRESHOLD)
    return out
