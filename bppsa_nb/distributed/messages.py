"""Operands of the scan as messages: a header, then indices, then numbers; nothing is pickled.

What a run of a list does to a gradient has a size of its own, unlike the maps that MPI scans for us. So ranks exchange
operands themselves, in the rounds of recursive doubling.
"""

import numpy as np
from scipy import sparse

from bppsa_nb.operands.batched import BatchedCSR, Planned
from bppsa_nb.operands.dense import CSR, Affine, Dense
from bppsa_nb.operands.pattern import CSRPattern
from bppsa_nb.operands.range import RangeLost
from bppsa_nb.operands.scaled import Scaled
from bppsa_nb.scan.operator import IDENTITY, diamond

_LOST, _IDENTITY, _VECTOR, _DENSE, _CSR, _PLANNED = range(6)
LOST = "lost"  # stands for an operand that could not be computed


def exscan(group, comm, own, dtype, backend):
    """Combine the operands of all lower ranks, in ⌈log2 p⌉ rounds.

    In round d ranks whose numbers differ in bit d exchange the products of their blocks of 2**d ranks.

    Parameters
    ----------
    group : bppsa_nb.distributed.ranks.Group
    comm : mpi4py.MPI.Intracomm
    own : operand or np.ndarray or IDENTITY or LOST
    dtype : np.dtype
        Of all numbers.
    backend : {"numpy", "cpu", "cuda"}
        Where received operands of a batch go.

    Returns
    -------
    before : operand or np.ndarray or IDENTITY or LOST
        ``a_0 ⋄ ... ⋄ a_{r-1}`` on rank r.
    combined : int
        Times that ⋄ was computed here.
    error : Exception or None
        What it raised.
    """
    before, block, combined, failed = IDENTITY, own, 0, None

    def combine(a, b):
        nonlocal combined, failed
        if a is LOST or b is LOST:
            return LOST
        combined += 1
        try:
            return diamond(a, b)
        except RangeLost:
            return LOST
        except Exception as error:  # the others wait for the next round
            failed = error
            return LOST

    rounds = (comm.size - 1).bit_length()
    for bit in range(rounds):
        partner = comm.rank ^ (1 << bit)
        if partner < comm.size:
            other = _exchange(group, comm, partner, block, dtype, backend)
            if partner < comm.rank:
                before = combine(other, before)
            if bit + 1 < rounds:  # after the last round nobody asks for the block
                block = combine(other, block) if partner < comm.rank else combine(block, other)
    return before, combined, failed


def _exchange(group, comm, partner, operand, dtype, backend):
    """Swap operands with another rank."""
    header, indices, numbers = pack(operand, dtype)
    there = np.empty_like(header)
    group.timed(comm.Sendrecv, header, partner, recvbuf=there, source=partner)
    received = []
    for array, count in (indices, there[-2]), (numbers, there[-1]):
        buffer = np.empty(count, array.dtype)
        group.timed(comm.Sendrecv, array, partner, recvbuf=buffer, source=partner)
        received.append(buffer)
    return unpack(there, *received, backend)


def pack(operand, dtype):
    """Write an operand into three arrays.

    Parameters
    ----------
    operand : Scaled, Affine, np.ndarray, IDENTITY or LOST
    dtype : np.dtype

    Returns
    -------
    header : np.ndarray of int64 [shape=(9,)]
        Kind; rows, columns, entries and samples of a matrix; samples and size of a vector or an offset, a size of -1
        saying that there is none; lengths of the other two. A single matrix or vector has 0 samples.
    indices : np.ndarray of int64
        ``indptr`` and ``indices`` of a sparse matrix, then exponents.
    numbers : np.ndarray
        Entries, then the vector or offset.
    """
    kind, shape, pattern, exponents = _VECTOR, (0, 0), [], np.empty(0, np.int64)
    values, vector = np.empty(0, dtype), None
    if isinstance(operand, Affine):
        operand, vector = operand.linear, operand.offset
    if isinstance(operand, np.ndarray):
        vector = operand
    elif isinstance(operand, Scaled):
        exponents = np.atleast_1d(operand.exponent)
        kind, shape, pattern, values = _describe(operand.operand)
    else:
        kind = _IDENTITY if operand is IDENTITY else _LOST
    indices = np.concatenate([*pattern, exponents]).astype(np.int64)
    nnz, samples = len(pattern[1]) if pattern else 0, len(values) if values.ndim == 2 else 0
    numbers, size = values.reshape(-1), (0, -1)
    if vector is not None:
        numbers = np.concatenate([numbers, vector.reshape(-1)])
        size = len(vector) if vector.ndim == 2 else 0, vector.shape[-1]
    header = [kind, *shape, nnz, samples, *size, len(indices), len(numbers)]
    return np.array(header, np.int64), indices, np.ascontiguousarray(numbers)


def _describe(operand):
    if isinstance(operand, Planned):
        values = operand.values.copy_to_host() if hasattr(operand.values, "copy_to_host") else operand.values
        return _PLANNED, operand.pattern.shape, [operand.pattern.indptr, operand.pattern.indices], values
    matrix = operand.matrix
    if isinstance(operand, CSR):
        return _CSR, matrix.shape, [matrix.indptr, matrix.indices], matrix.data
    return _DENSE, matrix.shape, [], matrix.reshape(-1)


def unpack(header, indices, numbers, backend):
    """Return the operand that `pack` wrote.

    Parameters
    ----------
    header, indices, numbers : np.ndarray
    backend : {"numpy", "cpu", "cuda"}
        Where the matrices of a batch go.
    """
    kind, rows, columns, nnz, samples, vectors, size, _, _ = map(int, header)
    if kind in (_LOST, _IDENTITY):
        return LOST if kind == _LOST else IDENTITY
    entries = len(numbers) - max(vectors, 1) * max(size, 0)
    if size >= 0:
        vector = numbers[entries:].reshape((vectors, size) if vectors else size)
    if kind == _VECTOR:
        return vector
    values = numbers[:entries]
    indptr, indices, exponents = np.split(indices, [rows + 1, rows + 1 + nnz] if kind != _DENSE else [0, 0])
    if kind == _PLANNED:
        pattern = CSRPattern(indptr, indices, (rows, columns))
        operand = Planned.of(BatchedCSR.of(pattern, values.reshape(samples, nnz)), backend)
    elif kind == _CSR:
        operand, exponents = CSR(sparse.csr_array((values, indices, indptr), shape=(rows, columns))), exponents[0]
    else:
        operand, exponents = Dense(values.reshape(rows, columns)), exponents[0]
    operand = Scaled(operand, exponents)
    return Affine(operand, vector) if size >= 0 else operand
