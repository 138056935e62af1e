import tracemalloc

import numpy as np
import pytest

from bppsa_nb.training.datasets import ArrayDataset, Bitstream


def test_bits_follow_equation_8():
    data = Bitstream(length=200, num_samples=5000)
    x, y = data.batch(np.arange(5000))
    assert x.shape == (200, 5000, 1) and x.dtype == np.float32
    assert set(np.unique(x)) == {0, 1}
    np.testing.assert_array_equal(y, data.labels)
    counts = np.bincount(y, minlength=10)
    assert counts.min() > 500 - 5 * np.sqrt(450)  # each class equally likely, five standard deviations
    for c in range(10):
        p, n = 0.05 + 0.1 * c, 200 * counts[c]
        assert abs(x[:, y == c].mean() - p) < 5 * np.sqrt(p * (1 - p) / n)
    # No bit depends on another: not on the one before, not on the neighbor sample of the same class.
    centered = (x[:, :, 0] - (0.05 + 0.1 * y)) / np.sqrt((0.05 + 0.1 * y) * (0.95 - 0.1 * y))
    assert abs((centered[1:] * centered[:-1]).mean()) < 5 / 1000
    assert abs((centered[:, 1:] * centered[:, :-1]).mean()) < 5 / 1000


def test_samples_depend_on_seed_and_number_only():
    data = Bitstream(length=33, num_samples=100, rng=7)
    x, y = data.batch(np.arange(100))
    order = np.random.default_rng(0).permutation(100)
    for batch in np.array_split(order, 7):
        some_x, some_y = data.batch(batch)
        np.testing.assert_array_equal(some_x, x[:, batch])
        np.testing.assert_array_equal(some_y, y[batch])
    same = Bitstream(length=33, num_samples=50, rng=np.random.default_rng(7))
    np.testing.assert_array_equal(same.batch(range(50))[0], x[:, :50])
    np.testing.assert_array_equal(same.labels, y[:50])
    np.testing.assert_array_equal(Bitstream(20, 100, rng=7).batch([3])[0], x[:20, [3]])
    other = Bitstream(length=33, num_samples=100, rng=8)
    assert (other.batch(np.arange(100))[0] != x).mean() > 0.2
    assert (other.labels != y).any()


def test_the_first_bits_never_change():
    """Recorded results name a seed; the same seed must give the same data in every version."""
    x, y = Bitstream(length=16, num_samples=4, rng=0).batch([0, 3])
    assert y.tolist() == [4, 9]
    bits = ["".join(str(int(bit)) for bit in sample) for sample in x[:, :, 0].T]
    assert bits == ["1111001100000000", "1111111111111111"]


def test_only_a_batch_is_in_memory():
    tracemalloc.start()
    data = Bitstream(length=30000)
    data.batch(np.arange(16))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(data) == 32000
    assert peak < 10e6


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("indices", [[4, 0, 19, 4], np.array([7]), []])
@pytest.mark.parametrize("length", [0, 1, 2, 7, 8, 9, 33, 64, 101])
def test_parts_are_the_steps_of_the_whole(length, indices, dtype):
    data = Bitstream(length, num_samples=20, num_classes=2, rng=3, dtype=dtype)
    arrays = ArrayDataset(np.arange(length * 40, dtype=dtype).reshape(length, 20, 2), data.labels)
    for each, size in ((data, 1), (arrays, 2)):
        x, y = each.batch(indices)
        assert x.shape == (length, len(indices), size) and y.dtype == np.int64 and y.max(initial=0) < 2
        np.testing.assert_array_equal(y, data.labels[np.array(indices, int)])
        for count in (1, 2, 3, 4, 7, 9):
            parts = [each.batch(indices, part=(i, count)) for i in range(count)]
            bounds = [length * i // count for i in range(count + 1)]
            assert [len(part) for part, _ in parts] == np.diff(bounds).tolist()
            np.testing.assert_array_equal(np.concatenate([part for part, _ in parts]), x)
            assert all((labels == y).all() for _, labels in parts)
            assert all(part.flags.c_contiguous and part.dtype == dtype for part, _ in parts)
    np.testing.assert_array_equal(x, arrays.x[:, np.array(indices, int)])
    assert len(arrays) == 20


def test_a_part_is_as_cheap_as_it_is_small(monkeypatch):
    made, philox = [], np.random.Philox

    class Counted(philox):
        def random_raw(self, size):
            made.append(size)
            return super().random_raw(size)

    data = Bitstream(1000, num_samples=20)
    monkeypatch.setattr(np.random, "Philox", Counted)
    data.batch([3, 4], part=(5, 10))
    assert len(made) == 2 and max(made) <= 50 + 4
