"""Bitstream classification, the synthetic task of Section 4.1 (Equation 8)."""

import numpy as np

from bppsa_nb.machine.checks import as_array, check_count, check_integers, float_dtype, generator, wrong_shape
from bppsa_nb.machine.ranks import partition
from bppsa_nb.machine.reprs import with_repr

# The last word of Philox's four-word counter keeps labels and bits in streams of their own.
_LABELS, _BITS = 0, 1


@with_repr("length", "num_samples", "num_classes", "dtype")
class Bitstream:
    """Bit sequences whose class says how likely a one is: ``x_t ~ Bernoulli(0.05 + 0.1 c)`` (Equation 8).

    Sample k is a pure function of the seed, its number k and the length. It is computed when asked for, the
    same in any batch and any order, so no more than one batch is ever in memory.

    Parameters
    ----------
    length : int
        T, the number of bits of a sample; may be 0.
    num_samples : int
        N; the paper has 32000.
    num_classes : int
        C, from 1 to 10: beyond ten classes Equation 8's probability would exceed one.
    rng : int or np.random.Generator
        The seed. Equal seeds give equal samples.
    dtype : np.dtype
        float32 or float64.

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

    def __init__(self, length, num_samples=32000, num_classes=10, rng=0, dtype=np.float32):
        self.length = check_count("length", length)
        self.num_samples = check_count("num_samples", num_samples, 1)
        self.num_classes = check_count("num_classes", num_classes, 1, 10)
        self.dtype = float_dtype(dtype)
        self._key = generator(rng).integers(2**64, size=2, dtype=np.uint64)
        words = np.random.Philox(key=self._key, counter=[0, 0, 0, _LABELS]).random_raw(self.num_samples)
        self.labels = (words % self.num_classes).astype(np.int64)

    def __len__(self):
        return self.num_samples

    def batch(self, indices, part=(0, 1)):
        """Compute the samples with these numbers.

        Parameters
        ----------
        indices : array_like of int [shape=(B,)]
            Sample numbers from 0 to N - 1.
        part : tuple of two int
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
        TypeError, ValueError, IndexError
            If `indices` or `part` does not hold integers, has another shape, or is out of range.
        """
        indices = check_indices(indices, self.num_samples)
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


def check_indices(indices, count):
    """Return sample numbers as an array [shape=(B,)], or raise unless they are integers from 0 to `count` - 1."""
    indices = as_array("indices", indices)
    if indices.ndim != 1:
        raise wrong_shape("indices", indices, ("B",))
    if not len(indices):
        indices = indices.astype(np.int64)  # NumPy makes floats of an empty list
    check_integers("indices", indices)
    out = indices[(indices < 0) | (indices >= count)]
    if len(out):
        raise IndexError(f"indices must be from 0 to {count - 1}, got {out[0]}")
    return indices


def steps_of(part, steps):
    """Return which of so many steps a part (i, n) has, a slice; raise TypeError or ValueError if there is none."""
    if not isinstance(part, (tuple, list)) or len(part) != 2:
        raise ValueError(f"part must be two integers (i, n), for the i-th of n parts, got {part!r}")
    n = check_count("part[1]", part[1], 1)
    return partition(steps, n)[check_count("part[0]", part[0], 0, n - 1, " for parts (i, n)")]
