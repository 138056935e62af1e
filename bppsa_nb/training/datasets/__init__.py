"""Data sets: anything with a length and a way to ask for samples by their numbers.

The trainer asks for no more than two methods, so a data set may hold its samples, read them or compute them::

    len(dataset)            # the number of samples, N
    dataset.batch(indices)  # indices [shape=(B,)], integers in 0 ... N - 1
                            # -> x [shape=(T, B, I)], time first (images: [shape=(B, C, H, W)]), and labels y
                            #    [shape=(B,)], integers; where samples have a number of steps each, these
                            #    lengths come third, integers [shape=(B,)]

Where the steps of a sequence are spread over MPI ranks, each of them asks for its own part only:
``dataset.batch(indices, part=(i, n))`` returns the i-th of n parts of the steps, as
`bppsa_nb.distributed.partition` cuts them, and all the labels.
"""

from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike

from bppsa_nb.cells.cell import Spans
from bppsa_nb.machine.arguments import Count, Dtype, Rng, Size, checked
from bppsa_nb.machine.checks import with_repr
from bppsa_nb.machine.process import partition

__all__ = ["ArrayDataset", "Bitstream"]

Indices = Annotated[ArrayLike, "int[n]"]
Part = tuple[Count, Size]

# Of Bitstream: the last word of Philox's four-word counter keeps labels and bits in streams of their own.
_LABELS, _BITS = 0, 1


@with_repr("length", "num_samples", "num_classes", "dtype")
class Bitstream:
    """Bit sequences whose class says how likely a one is: ``x_t ~ Bernoulli(0.05 + 0.1 c)`` (Equation 8).

    Sample k is a pure function of the seed, its number k and the length. It is computed when asked for, the
    same in any batch and any order, so no more than one batch is ever in memory.

    Parameters
    ----------
    length
        T, the number of bits of a sample; may be 0.
    num_samples
        N; the paper has 32000.
    num_classes
        C, from 1 to 10: beyond ten classes Equation 8's probability would exceed one.
    rng
        The seed. Equal seeds give equal samples.
    dtype
        Of the bits that `batch` returns.

    Attributes
    ----------
    labels : np.ndarray [shape=(N,)]
        The classes c, integers in 0 ... C - 1, each equally likely.

    Examples
    --------
    >>> x, y = Bitstream(length=5, num_samples=8).batch([6, 0])
    >>> x.shape, y.shape
    ((5, 2, 1), (2,))
    """

    @checked
    def __init__(
        self, length: Count, num_samples: Size = 32000, num_classes: Annotated[int, ">= 1, <= 10"] = 10, rng: Rng = 0,
        dtype: Dtype = np.float32,
    ):  # fmt: skip
        self.length, self.num_samples, self.num_classes = length, num_samples, num_classes
        self.dtype = np.dtype(dtype)
        self._key = np.random.default_rng(rng).integers(2**64, size=2, dtype=np.uint64)
        words = np.random.Philox(key=self._key, counter=[0, 0, 0, _LABELS]).random_raw(self.num_samples)
        self.labels = (words % self.num_classes).astype(np.int64)

    def __len__(self) -> int:
        return self.num_samples

    @checked
    def batch(self, indices: Indices, part: Part = (0, 1)) -> tuple[np.ndarray, np.ndarray]:
        """Compute the samples with these numbers.

        Parameters
        ----------
        indices
            Sample numbers from 0 to N - 1.
        part
            (i, n) for the i-th of n parts of the steps, as `bppsa_nb.distributed.partition` cuts them. Bits of the
            other parts are not computed.

        Returns
        -------
        x : np.ndarray [shape=(T, B, 1)]
            Bits, zeros and ones, time first; of a part those of its steps.
        y : np.ndarray [shape=(B,)]
            Labels.

        Raises
        ------
        IndexError
            If there is no such sample.
        """
        check_range(indices, self.num_samples)
        steps = steps_of(part, self.length)
        # Two bits are decided by a word of 64; Philox makes four words at each count.
        first, last = steps.start // 2, -(-steps.stop // 2)
        count, skipped = divmod(first, 4)
        generator = np.random.Philox(key=self._key)
        state = generator.state
        words = np.empty((len(indices), skipped + last - first), "<u8")
        for row, index in zip(words, indices, strict=True):
            state["state"]["counter"] = np.array([count, 0, index, _BITS], np.uint64)
            generator.state = state
            row[:] = generator.random_raw(len(row))
        y = self.labels[indices]
        # 32 random bits decide about one bit; the probability is off by 2^-33 at most.
        thresholds = np.round((0.05 + 0.1 * y) * 2**32).astype(np.uint32)
        start = steps.start - 8 * count
        bits = words.view("<u4")[:, start : start + steps.stop - steps.start] < thresholds[:, None]
        return np.ascontiguousarray(bits.T, self.dtype)[:, :, None], y


@with_repr("x", "y")
class ArrayDataset:
    """A data set of arrays in memory: `x` [shape=(T, N, I)], all the inputs, time first, and their labels `y` (N,).

    `lengths` (N,), if given, say how many steps each sample has.
    """

    lengths: np.ndarray | None = None

    @checked
    def __init__(
        self, x: Annotated[ArrayLike, "float[T, N, I]"], y: Annotated[ArrayLike, "int[N]"],
        lengths: Annotated[ArrayLike, "int[N]"] | None = None,
    ):  # fmt: skip
        self.x: np.ndarray = x
        self.y: np.ndarray = y
        if lengths is not None:
            self.lengths = Spans.checked(lengths, None, x).lengths

    def __len__(self) -> int:
        return len(self.y)

    @checked
    def batch(self, indices: Indices, part: Part = (0, 1)) -> tuple[np.ndarray, ...]:
        """Return inputs (T, B, I) and labels (B,) of samples by number, and lengths (B,); see `Bitstream.batch`."""
        check_range(indices, len(self))
        steps = steps_of(part, len(self.x))
        batch = np.ascontiguousarray(self.x[steps, indices]), self.y[indices]
        return batch if self.lengths is None else (*batch, self.lengths[indices])


def check_range(indices, count):
    """Raise IndexError unless sample numbers are from 0 to `count` - 1."""
    out = indices[(indices < 0) | (indices >= count)]
    if len(out):
        raise IndexError(f"indices must be from 0 to {count - 1}, got {out[0]}")


def steps_of(part, steps):
    """Return which of so many steps a part (i, n) has, a slice; raise ValueError if there is no such part."""
    i, n = part
    if i >= n:
        raise ValueError(f"part must be (i, n), the i-th of n parts, i from 0 to n - 1, got {part}")
    return partition(steps, n)[i]
