"""Kernels of linear and chunked scans, over structured chains and over stored Jacobians.

Jacobians of a structured chain are made of weights and diagonals where they are multiplied. The chunked scan has three
phases: `multiply_cuda` takes the unit vectors back along each chunk; `across_chunks` takes the gradient back over the
products; `sweep_chunks` replays the chunks, one chunk of one sample per block, and is the linear scan where there is
only one. `prepare` writes Jacobians out, for the scan by levels.
"""

import math
from functools import cache

import numpy as np

from bppsa_nb.machine.cuda import base_of, dot_of, inline, row_of
from bppsa_nb.machine.cuda_compiler import cuda
from bppsa_nb.operands import range as rules
from bppsa_nb.operands.scaled_cuda import blurred, minexp, nmant, rescale, smaller, spread

U = np.uint32  # see `dot_of`
NOTHING = -(1 << 20)  # the power of two of a zero, and of a row of zeros


@inline
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


@cache
def sweep_chunks_of(size, count, carried, keep, real):
    """Make `sweep_chunks` for one H and K: a thread per state's entry, with its K columns of weights in registers."""
    sums, zero = count * size, real(0)
    dot = dot_of(sums, real)

    @inline
    def step(grad, slope, term, through, column, grad_preacts, half, gradients, t, b):
        i = U(cuda.threadIdx.x)
        for k in range(count):
            grad_preacts[U((half * count + k) * size) + i] = slope[k] * grad
        total = through * grad if carried else zero
        cuda.syncthreads()
        grad = dot(total, column, grad_preacts, base_of(size) + U(half * sums)) + term
        if keep:
            gradients[t, b, i] = grad
        return grad

    @inline
    def read(slope, slopes, carry, gradients, t, b):
        i = U(cuda.threadIdx.x)
        for k in range(count):
            slope[k] = slopes[U(k), t, b, i]
        return gradients[t, b, i], carry[t, b, i] if carried else zero

    @cuda.jit
    def sweep_chunks(weights, slopes, carry, first, length, ends, gradients):
        grad_preacts = cuda.shared.array(0, ends.dtype)  # of this step, and of the next one meanwhile
        column, batch, i = cuda.local.array(sums, real), U(gradients.shape[1]), U(cuda.threadIdx.x)
        c, b = U(cuda.blockIdx.x) // batch, U(cuda.blockIdx.x) % batch
        start = U((first + int(c)) * length)
        last = min(start + U(length), U(gradients.shape[0] - 1)) - U(1)
        steps, done = last - start, U(0)
        for q in range(sums):
            column[q] = weights[q, i]
        # Four steps ahead, and written out; see `cells.cell_cuda`.
        s0, s1 = cuda.local.array(count, real), cuda.local.array(count, real)
        s2, s3 = cuda.local.array(count, real), cuda.local.array(count, real)
        term0, through0 = read(s0, slopes, carry, gradients, last, b)
        term1, through1 = read(s1, slopes, carry, gradients, last - min(U(1), steps), b)
        term2, through2 = read(s2, slopes, carry, gradients, last - min(U(2), steps), b)
        term3, through3 = read(s3, slopes, carry, gradients, last - min(U(3), steps), b)
        grad = ends[c, b, i] if keep else zero
        while done <= steps:
            t = last - done
            grad = step(grad, s0, term0, through0, column, grad_preacts, 0, gradients, t, b)
            term0, through0 = read(s0, slopes, carry, gradients, last - min(done + U(4), steps), b)
            if done + U(1) <= steps:
                grad = step(grad, s1, term1, through1, column, grad_preacts, 1, gradients, t - U(1), b)
                term1, through1 = read(s1, slopes, carry, gradients, last - min(done + U(5), steps), b)
            if done + U(2) <= steps:
                grad = step(grad, s2, term2, through2, column, grad_preacts, 0, gradients, t - U(2), b)
                term2, through2 = read(s2, slopes, carry, gradients, last - min(done + U(6), steps), b)
            if done + U(3) <= steps:
                grad = step(grad, s3, term3, through3, column, grad_preacts, 1, gradients, t - U(3), b)
                term3, through3 = read(s3, slopes, carry, gradients, last - min(done + U(7), steps), b)
            done += U(4)
        ends[c, b, i] = grad

    return sweep_chunks


@cuda.jit
def sweep_chunks(stored, dense, weights, slopes, carry, with_carry, first, length, ends, gradients, keep):
    """Go back along chunks (Equation 3) of any H, one chunk of one sample per block.

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


def _table(size, real):
    """Say where 2**0 stands behind the two buffers: powers are looked up, since ldexp takes some forty instructions."""
    return 2 * size - np.finfo(real).minexp


@cache
def _scaled_of(size, real):
    """Make what multiplies the gradient by a product's column, scaled to the largest of its rows."""
    info, zero, nothing, table = np.finfo(real), real(0), real(NOTHING), _table(size, real)
    least, most, narrow = info.minexp, info.maxexp - 1, real(rules.spread(info.minexp))
    smallest = real(2.0 ** rules.blurred(info.minexp, info.nmant))

    @inline
    def scaled(products, at, exponent, grad, shared, i, lost):
        fraction, power = math.frexp(grad)
        power = nothing if fraction == 0 else max(nothing, real(power + exponent))
        cuda.syncthreads()
        shared[i] = power
        cuda.syncthreads()
        top = nothing
        for j in range(size):
            top = max(top, shared[U(j)])
        shared[U(size) + i] = fraction * shared[U(table + max(int(power - top), least))]
        cuda.syncthreads()
        total = zero
        for j in range(size):
            total += shared[U(size + j)] * products[at + U(j * size)]
        if abs(total) < smallest:
            for j in range(size):
                power = shared[U(j)]
                if power > nothing and power - top < narrow:
                    lost[0] = 1
        cuda.syncthreads()
        # Beyond three factors the result is zero or infinite anyway.
        for _ in range(3):
            part = min(max(int(top), least), most)
            total *= shared[U(table + part)]
            top -= real(part)
        return total

    return scaled


@cache
def across_chunks_of(size, affine, real):
    """Make `across_chunks` for one H: a thread per entry of the gradient, its columns of the products in registers.

    `products` are one line, so that addresses are one addition away from each other. The gradient times its rows'
    powers of two is multiplied as it is: for what of it underflows, the result has no digits. Only where it is too
    large for that, it is scaled, and products are read anew.
    """
    ahead = 4 if size <= 24 else 2 if size <= 48 else 1  # chunks that are read ahead
    dot, scaled, info, zero = dot_of(size, real), _scaled_of(size, real), np.finfo(real), real(0)
    least, most, table = info.minexp, info.maxexp - 1, _table(size, real)
    far, large = info.maxexp - 28, real(2.0 ** (info.maxexp - 28))

    @cuda.jit
    def across_chunks(products, exponents, offsets, ends, lost):
        shared = cuda.shared.array(0, ends.dtype)  # two buffers, then powers of two
        column, offset = cuda.local.array((ahead, size), real), cuda.local.array(ahead, real)
        exponent = cuda.local.array(ahead, np.int32)
        b, i, c, batch = U(cuda.blockIdx.x), U(cuda.threadIdx.x), ends.shape[0] - 3, U(ends.shape[1])
        for power in range(least + cuda.threadIdx.x, most + 1, size):
            shared[U(table + power)] = math.ldexp(real(1), power)
        grad, here, base = ends[U(c + 2), b, i], U(0), base_of(size)
        ends[U(c + 1), b, i] = grad
        cuda.syncthreads()
        while c >= 0:
            for a in range(ahead):
                before = U(max(c - a, 0))
                exponent[a], offset[a] = exponents[before, b, i], offsets[before, b, i] if affine else zero
                at = (before * batch + b) * U(size * size) + i
                for j in range(size):
                    column[a, j] = products[at + U(j * size)]
            fits = True
            while fits and c >= 0:
                for a in range(ahead):  # written out; see `cells.cell_cuda`
                    if fits and c >= 0:
                        power = min(exponent[a], far)
                        value = grad * shared[U(table + max(power, least))]
                        value *= shared[U(table + min(max(power - least, least), 0))]
                        shared[here * U(size) + i] = value
                        small = abs(grad) <= large and abs(value) <= large and exponent[a] <= far
                        fits = cuda.syncthreads_and(np.int32(small)) != 0
                        if fits:
                            grad = dot(zero, column[a], shared, base + here * U(size)) + offset[a]
                            ends[U(c), b, i] = grad
                            before = U(max(c - ahead, 0))
                            exponent[a], offset[a] = exponents[before, b, i], offsets[before, b, i] if affine else zero
                            at = (before * batch + b) * U(size * size) + i
                            for j in range(size):
                                column[a, j] = products[at + U(j * size)]
                            c, here = c - 1, U(1) - here
            if c >= 0:
                before = U(c)
                at = (before * batch + b) * U(size * size) + i
                grad = scaled(products, at, exponents[before, b, i], grad, shared, i, lost)
                grad += offsets[before, b, i] if affine else zero
                ends[before, b, i] = grad
                c -= 1

    return across_chunks


@cuda.jit
def across_chunks(products, exponents, offsets, affine, ends, lost):
    """Take the gradient over the chunks' products, one sample per block; see `operands.rows.apply`.

    ``ends[-1]`` is the gradient at the start of the chunk at the loss; the others become those at the ends of theirs.
    """
    shared = cuda.shared.array(0, ends.dtype)  # powers of two of the gradient times its rows, and its rows' factors
    b, size = cuda.blockIdx.x, ends.shape[2]
    tid, threads = cuda.threadIdx.x, cuda.blockDim.x
    zero, one, nothing = ends.dtype.type(0), ends.dtype.type(1), ends.dtype.type(NOTHING)
    least = minexp(ends)
    smallest, narrow = math.ldexp(one, blurred(least, nmant(ends))), ends.dtype.type(spread(least))
    above = ends.shape[0] - 2
    for i in range(tid, size, threads):
        ends[above, b, i] = ends[above + 1, b, i]
    for c in range(above - 1, -1, -1):
        for j in range(tid, size, threads):
            fraction, power = math.frexp(ends[c + 1, b, j])
            shared[j] = nothing if fraction == 0 else max(nothing, ends.dtype.type(power + exponents[c, b, j]))
            shared[size + j] = fraction
        cuda.syncthreads()
        top, bottom = nothing, -nothing
        for j in range(size):
            power = shared[j]
            top = max(top, power)
            if power > nothing:
                bottom = min(bottom, power)
        for j in range(tid, size, threads):
            shared[size + j] = math.ldexp(shared[size + j], int(shared[j] - top))
        cuda.syncthreads()
        third, rest, down = _in_factors(top, one, least)
        for i in range(tid, size, threads):
            total = zero
            for j in range(size):
                total += shared[size + j] * products[c, b, j, i]
            if bottom - top < narrow and abs(total) < smallest:
                lost[0] = 1
            total = math.ldexp(total, down) * third * third * rest
            if affine:
                total += offsets[c, b, i]
            ends[c, b, i] = total
        cuda.syncthreads()


@inline
def _in_factors(power, one, least):
    """Return three factors, the first to be taken twice, and a power of two below one, that are 2**power together.

    What overflows does so in factors; beyond three of them the result is infinite anyway.
    """
    down, up = min(int(power), 0), min(max(int(power), 0), -3 * least)
    return math.ldexp(one, up // 3), math.ldexp(one, up - 2 * (up // 3)), down


@cache
def prepare_of(size, count, carried, held, real):
    """Make what writes Jacobians of a structured chain out, scaled, for one H and K: teams of a thread per column.

    If `held`, a thread has its K rows of weights in registers; those that are too long, it reads from memory.
    """
    sums, wide, zero, infinite = count * size, row_of(size), real(0), real(math.inf)

    @cuda.jit
    def prepare(weights, slopes, carry, mats, exps, lost):
        shared, row = cuda.shared.array(0, mats.dtype), cuda.local.array(sums if held else 1, real)
        slope = cuda.local.array(count, real)
        batch, tid, teams = U(mats.shape[1]), U(cuda.threadIdx.x), U(cuda.blockDim.x) // U(size)
        team, j, all_of = tid // U(size), tid % U(size), U(mats.shape[0]) * batch
        q = tid
        if held:
            while q < U(sums * size):
                shared[q // U(size) * U(wide) + q % U(size)] = weights[q // U(size), q % U(size)]
                q += U(cuda.blockDim.x)
            cuda.syncthreads()
            for k in range(count):
                for i in range(size):
                    row[k * size + i] = shared[(U(k * size) + j) * U(wide) + U(i)]
        first = U(cuda.blockIdx.x) * teams
        while first < all_of:
            here = first + team < all_of
            at = first + team if here else U(0)
            t, b = at // batch, at % batch
            for k in range(count):
                slope[k] = slopes[U(k), t, b, j]
            through = carry[t, b, j] if carried else zero
            high, low, matrix = zero, infinite, mats[t, b]
            if here:
                for i in range(size):
                    value = zero
                    for k in range(count):
                        value += (row[k * size + i] if held else weights[U(k * size) + j, U(i)]) * slope[k]
                    if carried and U(i) == j:
                        value += through
                    matrix[U(i), j] = value
                    high, low = max(high, abs(value)), smaller(low, value)
            exponent = rescale(matrix, high, low, shared, j, team * U(size), U(size), lost)
            if here and j == U(0):
                exps[t, b] = exponent
            first += U(cuda.gridDim.x) * teams

    return prepare
