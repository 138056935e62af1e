"""Planned sparse products, compiled: the symbolic phase, and the numeric phase's counterpart of `products`.

What scales rows or columns, applies a matrix or looks at values is one source for CPUs and GPUs (`machine.items`): `on`
is where it computes, `items` or `items_cuda`. Sums are each one's own.
"""

import numpy as np

from bppsa_nb.machine import items
from bppsa_nb.machine.compiling import compiled
from bppsa_nb.machine.items import each, rows, total
from bppsa_nb.machine.memory import require
from bppsa_nb.machine.workers import parallel_for
from bppsa_nb.operands.products import batch_of

send = items.send
_THRESHOLD = 2**15  # multiply-adds, or entries to look at, below which a second thread is not woken
_CHUNK = 2**26  # multiply-adds, about a tenth of a second, that Ctrl-C waits for
PART = 2**13  # entries that are looked at together
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


def index(pattern, on=items):
    """Return a pattern's index arrays; elsewhere, they stay as long as the pattern lives."""
    arrays = pattern.indptr, pattern.indices
    if on is items:
        return arrays
    if not pattern.on_device:
        pattern.on_device.extend(map(on.send, arrays))
    return pattern.on_device


def _amount(multiply_adds):
    """Say how to share out so many multiply-adds."""
    return {"parallel": multiply_adds > _THRESHOLD, "chunks": multiply_adds // _CHUNK}


def entries(a, b, multiply_adds):
    """Find the entries of a product of patterns: indptr [shape=(m + 1,)]; sorted indices, of int32 [shape=(nnz,)]."""
    shape, amount = (a.shape[0], b.shape[1]), _amount(multiply_adds)
    indptr = np.zeros(shape[0] + 1, np.int64)
    arrays = index(a), index(b), shape[1], indptr
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


def places(plan):
    """Find where in the result each multiply-add of a plan goes, in the order in which they are performed.

    Returns the first multiply-add of each row [shape=(m + 1,)], and the places [shape=(multiply_adds,)].
    """
    left, right, pattern = plan.left, plan.right, plan.pattern
    before = np.concatenate([[0], np.cumsum(np.diff(right.indptr)[left.indices], dtype=np.int64)])
    starts, found = before[left.indptr].astype(np.uint32), np.empty(plan.multiply_adds, np.uint32)
    arrays = index(left), index(right), pattern.shape[1], index(pattern), starts, found
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


def scale_rows(a_indptr, a_indices, a, b_indptr, b, indptr, c, first, last):
    """Scale rows of b: no row of a has more than one entry."""
    first, last, lane, lanes = rows(first, last)
    count = len(indptr) - 1
    for sample in range(first // count, (last - 1) // count + 1):
        a_s, b_s, c_s = a[min(sample, len(a) - 1)], b[min(sample, len(b) - 1)], c[sample]
        for i in range(max(first - sample * count, 0), min(last - sample * count, count)):
            p = a_indptr[i]
            if p < a_indptr[i + 1]:
                target, source, factor = indptr[i], b_indptr[a_indices[p]], a_s[p]
                for q in range(lane, indptr[i + 1] - target, lanes):
                    c_s[target + q] = factor * b_s[source + q]


def scale_columns(a_indices, a, b, c, first, last):
    """Scale columns of a: every row of b has one entry."""
    first, last = each(first, last)
    nnz = c.shape[1]
    for sample in range(first // nnz, (last - 1) // nnz + 1):
        a_s, b_s, c_s = a[min(sample, len(a) - 1)], b[min(sample, len(b) - 1)], c[sample]
        for p in range(max(first - sample * nnz, 0), min(last - sample * nnz, nnz)):
            c_s[p] = a_s[p] * b_s[a_indices[p]]


def apply_rows(indptr, indices, values, vectors, result, first, last):
    """Multiply rows by a sample's vector."""
    first, last, lane, lanes = rows(first, last)
    count = len(indptr) - 1
    for sample in range(first // count, (last - 1) // count + 1):
        entries, vector = values[min(sample, len(values) - 1)], vectors[sample]
        for i in range(max(first - sample * count, 0), min(last - sample * count, count)):
            found = vector.dtype.type(0)
            for p in range(indptr[i] + lane, indptr[i + 1], lanes):
                found += entries[p] * vector[indices[p]]
            found = total(found, vector)
            if lane == 0:
                result[sample, i] = found


def find_sizes(bits, zero, whole, high, low, first, last):
    """Find the largest size in parts of a sample's entries, and the largest of `whole` less a size that is not zero.

    The bits of a float without its sign are ordered as its size is, and integers are compared many at a time.
    """
    first, last, lane, lanes = rows(first, last)
    parts = high.shape[1]
    for place in range(first, last):
        sample, part = place // parts, place % parts
        most = rest = zero
        for p in range(part * PART + lane, min((part + 1) * PART, bits.shape[1]), lanes):
            size = bits[sample, p] & whole
            most, rest = max(most, size), max(rest, whole - size if size > zero else zero)
        high[sample, part, lane], low[sample, part, lane] = most, rest


def scale_values(values, factors, scaled, first, last):
    """Multiply each sample's values by its factor."""
    first, last = each(first, last)
    nnz = values.shape[1]
    for sample in range(first // nnz, (last - 1) // nnz + 1):
        factor = factors[sample]
        for p in range(max(first - sample * nnz, 0), min(last - sample * nnz, nnz)):
            scaled[sample, p] = factor * values[sample, p]


def _add_up(plan, a, b, c):
    """Run the numeric phase of a product whose entries are sums."""
    left, right, pattern = plan.left, plan.right, plan.pattern
    if plan.multiply_adds <= _PLACED:
        if not plan.places:
            plan.places.append(places(plan))
        # Unsigned subscripts are not looked at for being negative.
        signed = *index(left), right.indptr, pattern.indptr
        indptr, indices, others, ends = (array.view(f"u{array.itemsize}") for array in signed)
        arrays = _placed, len(c) * pattern.shape[0], (indptr, indices, a), (others, b), *plan.places[0], ends, c
    else:
        arrays = (*index(left), a), (*index(right), b), pattern.shape[1], index(pattern), c
        arrays = _sums, len(c) * pattern.shape[0], *arrays
    parallel_for(*arrays, **_amount(len(c) * plan.multiply_adds))


def product(plan, a, b, out=None, on=items, add_up=_add_up):
    """Run the numeric phase of a planned product; see `bppsa_nb.operands.products.product`. `out` is on the host."""
    left, right, pattern, here = plan.left, plan.right, plan.pattern, on is items and out is not None
    c = out if here else on.empty((batch_of(a, b), pattern.nnz), a.dtype)
    amount = _amount(len(c) * plan.multiply_adds)
    if plan.kind == "rows":
        arrays = *index(left, on), a, index(right, on)[0], b, index(pattern, on)[0], c
        on.run_rows(scale_rows, c.size and len(c) * pattern.shape[0], *arrays, **amount)
    elif plan.kind == "columns":
        on.run_each(scale_columns, c.size, index(left, on)[1], a, b, c, **amount)
    elif c.size:
        add_up(plan, a, b, c)
    return c if here or out is None else c.copy_to_host(out)


def apply(pattern, values, vectors, on=items):
    """Multiply each sample's matrix and vector; see `bppsa_nb.operands.products.apply`."""
    result = on.empty((len(vectors), pattern.shape[0]), vectors.dtype)
    arrays = *index(pattern, on), values, on.send(vectors), result
    on.run_rows(apply_rows, result.size, *arrays, parallel=len(vectors) * pattern.nnz > _THRESHOLD)
    return on.host(result)


def magnitude_range(values, on=items):
    """Find how far each sample's entries spread; see `bppsa_nb.operands.products.magnitude_range`."""
    kind = np.dtype(f"i{values.dtype.itemsize}").type
    zero, whole = kind(0), np.iinfo(kind).max
    shape = len(values), max(-(-values.shape[1] // PART), 1), on.LANES
    high, low = on.empty(shape, kind), on.empty(shape, kind)
    arrays = values.view(kind), zero, kind(whole), high, low
    on.run_rows(find_sizes, shape[0] * shape[1], *arrays, parallel=values.size > _THRESHOLD)
    high, low = (on.host(array).max(axis=(1, 2)) for array in (high, low))
    floor = np.where(low == 0, values.dtype.type(np.inf), (whole - low).view(values.dtype))
    return high.view(values.dtype), floor


def scale(values, exponents, out=None, on=items):
    """Multiply each sample's values by a power of two; see `bppsa_nb.operands.products.scale`."""
    out = on.empty(values.shape, values.dtype) if out is None else out
    factors = on.send(np.ldexp(values.dtype.type(1), exponents))
    on.run_each(scale_values, values.size, values, factors, out, parallel=values.size > _THRESHOLD)
    return out
