"""Methods of going back along a chain, whatever its Jacobians are made of: the loop, chunks, levels.

The loop and the chunks are written once, over what cuts a chain into chunks and has three primitives: `pass_back`,
`multiply`, `apply_products`. That is `Chunks`, in NumPy or compiled for CPUs; `methods_cuda.Scan`, on a GPU.
"""

import logging

import numpy as np

from bppsa_nb.chains.chain import StoredChain, StructuredChain
from bppsa_nb.chains.plan import chunk_length
from bppsa_nb.machine.checks import is_finite
from bppsa_nb.machine.dispatch import implementation
from bppsa_nb.operands import rows
from bppsa_nb.operands.range import DynamicRangeError

_log = logging.getLogger(__name__)


def chunked(chunks, affine):
    """Go back chunk by chunk: reduce, then scan (Equation 6, with n / p steps per worker).

    A chunk has n / p steps; the one at the loss may be shorter. Neither that one nor the one at x_0 needs a product.
    With loss terms, `affine`, each chunk's are gone back to its start.
    """
    chunks.pass_back(chunks.count, 1)  # the chunk at the loss
    if chunks.inner:
        chunks.multiply()
        if affine:
            chunks.pass_back(1, chunks.inner, keep=False)
    if chunks.count:
        chunks.apply_products(affine)  # from chunk to chunk
        chunks.pass_back(0, chunks.count)


class Chunks:
    """A chain on the host, cut into chunks of `length` steps, with buffers for the phases of `chunked`.

    `count` chunks are below the one at the loss, and `inner` of them need block totals: `products` of their Jacobians,
    and `offsets` [shape=(inner, B, H)], gradients of their loss terms alone. `ends` [shape=(count + 1, B, H)] are the
    gradients where chunks end. `gradients` [shape=(T + 1, B, H)] hold loss terms, or zeros, and become gradients.
    """

    def __init__(self, chain, gradients, length, there):
        self.chain, self.gradients, self.length, self.there = chain, gradients, length, there
        self.steps, sizes, dtype = len(gradients) - 1, gradients.shape[1:], chain.dtype
        self.count = max(self.steps - 1, 0) // length
        self.inner = max(self.count - 1, 0)
        self.ends, self.offsets = np.empty((self.count + 1, *sizes), dtype), np.zeros((self.inner, *sizes), dtype)
        self.ends[self.count] = gradients[-1]

    def pass_back(self, first, number, keep=True):
        """Go back along some chunks at once, from the gradients at their ends, or else from nothing but loss terms."""
        bounds = np.minimum(np.arange(first, first + number + 1) * self.length, self.steps)
        ends = self.ends[first : first + number] if keep else self.offsets
        self.there.pass_back(self.chain, bounds, ends, self.gradients, keep)

    def multiply(self):
        """Multiply the Jacobians of the inner chunks."""
        self.products, self.exponents = self.there.multiply(self.chain, 1, self.inner, self.length)

    def apply_products(self, affine):
        """Find the gradients at the ends of the chunks below the one at the loss."""
        self.ends[self.count - 1] = self.gradients[self.count * self.length]
        for c in reversed(range(self.inner)):
            moved = rows.apply(self.products[c], self.exponents[c], self.ends[c + 1][:, None])[:, 0]
            self.ends[c] = moved + self.offsets[c] if affine else moved


def multiply(chain, count, length, backend):
    """Multiply the Jacobians of the first so many chunks of a stored or structured chain; see `runs.multiply`."""
    if backend == "cuda":
        return implementation(__name__, "cuda").multiply(chain, count, length)
    return implementation("bppsa_nb.chains.runs", backend).multiply(_known(chain), 0, count, length)


def _known(chain):
    return chain if isinstance(chain, StructuredChain) else StoredChain(chain)


def go_back(chain, grad_output, local_grads, backend, method, levels=None, length=None):
    """Go back along a stored or structured chain; the checked core of `backprop`, as models use it.

    A stored chain is [shape=(T, B, H, H)] or [shape=(T, 1, H, H)]; `grad_output` [shape=(B, H)] has ``local_grads[T]``
    in it; `local_grads` [shape=(T + 1, B, H)] may be None; the others are as `choose` returns them. A chunk has
    `length` steps, by default what the planner says. Returns the gradients [shape=(T + 1, B, H)]. Raises
    DynamicRangeError if a product could not keep its entries in range.
    """
    if backend == "cuda":
        return implementation(__name__, "cuda").go_back(chain, grad_output, local_grads, method, levels, length)
    chain, there = _known(chain), implementation("bppsa_nb.chains.runs", backend)
    if method not in ("linear", "chunked"):
        written = chain.jacobians_T if isinstance(chain, StoredChain) else there.jacobians_T(chain)
        return implementation("bppsa_nb.chains.levels", backend).levels(written, grad_output, local_grads, levels)
    T = chain.shape[0]
    gradients = np.zeros((T + 1, *grad_output.shape), chain.dtype)
    if local_grads is not None:
        gradients[:T] = local_grads[:T]
    gradients[T] = grad_output
    if method == "linear":
        there.pass_back(chain, (0, T), gradients[T:], gradients)  # Equation 3
        return gradients
    if length is None:
        length = chunk_length(T, *grad_output.shape, grad_output.dtype, backend, chain.num_weights)
    chunked(Chunks(chain, gradients, length, there), local_grads is not None)
    return gradients


def in_range(run, method, levels):
    """Run ``run(method, levels)``, or the linear scan where matrix products leave the range of the dtype."""
    if method != "linear":
        try:
            gradients = run(method, levels)
        except DynamicRangeError:
            gradients = None
        if gradients is not None and is_finite(gradients):
            return gradients
        _log.info("products of Jacobians leave the range of their dtype; using the linear scan")
    return run("linear", None)
