"""Random chains of every kind, for tests of segments and of ranks."""

import itertools

import naive
import numpy as np
from scipy import sparse

import bppsa_nb as bp

KINDS = ("dense", "shared", "rnn", "gru", "lstm", "no carry", "carry only")
KINDS += ("csr", "mixed", "batched", "batched, shared")
LISTS = KINDS[7:]
TOLERANCE = {np.float32: 1e-5, np.float64: 1e-12}


def orthogonal(rng, *shape):
    """Make matrices whose columns, or rows if there are fewer, are orthonormal: a gradient about keeps its size."""
    found = np.linalg.qr(rng.standard_normal((*shape[:-2], max(shape[-2:]), min(shape[-2:]))))[0]
    return found if shape[-2] >= shape[-1] else found.swapaxes(-1, -2)


class Chain:
    """A whole chain, its gradient and loss terms, in numbers that float32 holds exactly.

    `dense` holds the same links as matrices of one size, for the loops of the oracle: states of other sizes end in
    zeros.
    """

    def __init__(self, kind, T, dtype, rng):
        B, H = int(rng.integers(1, 4)), int(rng.integers(2, 6)) * (2 if kind == "lstm" else 1)
        self.kind, self.T, self.dtype = kind, T, dtype
        self.sizes = rng.integers(2, 6, T + 1) if kind in LISTS else np.full(T + 1, H)
        self.lead = () if kind in ("csr", "mixed") else (B,)
        self.links = getattr(self, "_" + kind.split(",")[0].replace(" ", "_"))(rng, B, H)
        self.grad_output = self._numbers(rng.standard_normal((*self.lead, self.sizes[T])))
        self.local_grads = [self._numbers(rng.standard_normal((*self.lead, size))) for size in self.sizes]

    def _numbers(self, array):
        return np.ascontiguousarray(array.astype(np.float32).astype(self.dtype))

    def _dense(self, rng, B, H):
        self.dense = self._numbers(orthogonal(rng, self.T, B, H, H))
        return self.dense

    def _shared(self, rng, B, H):
        links = self._numbers(orthogonal(rng, self.T, H, H))
        self.dense = np.broadcast_to(links[:, None], (self.T, B, H, H))
        return links

    def _structured(self, rng, B, H, K, carry):
        share = np.array([1, 0.3, 0.1])[:K, None, None]
        weights = self._numbers(orthogonal(rng, K, H, H) * share)
        slopes = self._numbers(rng.choice([-1.0, 1.0], (K, self.T, B, H)) * rng.uniform(0.9, 1.1, (K, self.T, B, H)))
        diagonal = self._numbers(rng.uniform(0.8, 1.2, (self.T, B, H)) * (0.1 if K else 1)) if carry else None
        self.dense = naive.structured_jacobians_T(weights, slopes, diagonal)
        return bp.StructuredChain(weights, slopes, diagonal)

    def _rnn(self, rng, B, H):
        return self._structured(rng, B, H, 1, False)

    def _gru(self, rng, B, H):
        return self._structured(rng, B, H, 3, True)

    def _lstm(self, rng, B, H):
        weights = self._numbers(orthogonal(rng, 4, H // 2, H // 2) * np.array([1, 0.3, 0.1, 0.1])[:, None, None])
        slopes = rng.choice([-1.0, 1.0], (4, self.T, B, H)) * rng.uniform(0.9, 1.1, (4, self.T, B, H))
        slopes = self._numbers(slopes * np.repeat([1, 0.3], H // 2))  # of h, and of c
        carry = self._numbers(rng.uniform(0.3, 0.6, (2, self.T, B, H)) * np.array([0, 1])[:, None, None, None])
        self.dense = naive.structured_jacobians_T(weights, slopes, carry)
        return bp.StructuredChain(weights, slopes, carry)

    def _no_carry(self, rng, B, H):
        return self._structured(rng, B, H, 3, False)

    def _carry_only(self, rng, B, H):
        return self._structured(rng, B, H, 0, True)

    def _list(self, rng, samples, make):
        self.dense = np.zeros((self.T, max(samples, 1), self.sizes.max(), self.sizes.max()))
        links = []
        for t, (rows, columns) in enumerate(itertools.pairwise(map(int, self.sizes))):
            matrices = self._numbers(orthogonal(rng, max(samples, 1), rows, columns))
            matrices[:, rng.random((rows, columns)) < 0.1] = 0
            self.dense[t, :, :rows, :columns] = matrices
            links.append(make(t, matrices))
        return links

    def _csr(self, rng, B, H):
        return self._list(rng, 0, lambda t, matrices: sparse.csr_array(matrices[0]))

    def _mixed(self, rng, B, H):
        kinds = sparse.csr_array, np.array, sparse.coo_array
        return self._list(rng, 0, lambda t, matrices: kinds[t % 3](matrices[0]))

    def _batched(self, rng, B, H):
        def make(t, matrices):
            pattern = sparse.csr_array(np.ones(matrices.shape[1:]) if t % 2 else abs(matrices).sum(0))
            rows = np.repeat(np.arange(pattern.shape[0]), np.diff(pattern.indptr))
            values = np.ascontiguousarray(matrices[:, rows, pattern.indices])
            return bp.BatchedCSR(values, pattern.indices, pattern.indptr, pattern.shape)

        links = self._list(rng, 1 if self.kind == "batched, shared" else B, make)
        self.dense = np.broadcast_to(self.dense, (self.T, B, *self.dense.shape[2:]))
        return links

    def part(self, run):
        """Return the links of a run."""
        if isinstance(self.links, bp.StructuredChain):
            weights, slopes, carry = self.links.weights, self.links.slopes[:, run], self.links.carry
            return bp.StructuredChain(weights, slopes, None if carry is None else carry[..., run, :, :])
        return self.links[run]

    def terms(self, points):
        """Return loss terms, stacked unless they are of different sizes."""
        if self.kind in LISTS:
            return self.local_grads[points]
        found = self.local_grads[points]
        return np.stack(found) if found else np.empty((0, *self.grad_output.shape), self.dtype)

    def oracle(self):
        """Go back in loops over Python floats; return the gradients at all points."""
        width = self.dense.shape[2] if self.T else self.sizes[0]
        end, *wide = (
            np.pad(each.reshape(-1, each.shape[-1]), ((0, 0), (0, width - each.shape[-1])))
            for each in [self.grad_output, *self.local_grads]
        )
        dense = self.dense if self.T else np.empty((0, len(end), width, width))
        found = naive.backprop(dense, end, np.stack(wide))
        return [each[:, :size].reshape(*self.lead, size) for each, size in zip(found, self.sizes, strict=True)]
