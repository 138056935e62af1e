import gzip
import os

import numpy as np
import pytest
import tiny_sets
from damage import contents
from texts import beside
from tiny_sets import CIFAR10, IDX, MNIST, SETS, pack, write

import bppsa_nb as bp
from bppsa_nb.training.datasets import images

TEXTS = beside(__file__)


def check(source, title, kept):
    for split, (there, labels) in kept.items():
        data = bp.Images(source, split)
        pixels = there if there.ndim == 4 else np.pad(there, ((0, 0), (2, 2), (2, 2)))[:, None].repeat(3, axis=1)
        np.testing.assert_array_equal(data.pixels, pixels)
        np.testing.assert_array_equal(data.labels, labels)
        assert data.pixels.dtype == np.uint8 and data.labels.dtype == np.int64
        assert (data.source, data.data, data.classes) == (title, "real", images.CLASSES[title])


# The stand-in


def test_stand_in_has_the_shape_of_a_data_set():
    data = bp.Images()
    assert (len(data), data.source, data.data, data.split) == (6000, "stand-in", "stand-in", "train")
    assert len(bp.Images(split="test")) == 1500
    assert data.classes == tuple("0123456789")
    assert data.pixels.shape == (6000, 3, 32, 32) and data.pixels.dtype == np.uint8
    assert data.labels.shape == (6000,) and data.labels.dtype == np.int64
    assert (np.bincount(data.labels, minlength=10) > 500).all()
    x, y = data.batch([5, 0, 5])
    assert x.shape == (3, 3, 32, 32) and x.dtype == np.float32 and y.dtype == np.int64
    np.testing.assert_array_equal(y, data.labels[[5, 0, 5]])
    np.testing.assert_allclose((x + 1) * 127.5, data.pixels[[5, 0, 5]], atol=1e-4)
    assert data.batch([])[0].shape == (0, 3, 32, 32)
    for values in (data.pixels, data.labels):
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 0


def test_an_image_depends_on_seed_split_and_number_only(monkeypatch):
    few, many = bp.Images(num_samples=7, rng=3), bp.Images(num_samples=60, rng=3)
    np.testing.assert_array_equal(few.pixels, many.pixels[:7])
    np.testing.assert_array_equal(few.labels, many.labels[:7])
    for other in (bp.Images(num_samples=60, rng=4), bp.Images("stand-in", "test", 60, 3)):
        assert (other.pixels != many.pixels).any(axis=(1, 2, 3)).all()
    again = bp.Images(num_samples=7, rng=np.random.default_rng(3))
    np.testing.assert_array_equal(few.pixels, again.pixels)
    monkeypatch.setattr(images, "_CHUNK", 8)
    np.testing.assert_array_equal(bp.Images(num_samples=60, rng=3).pixels, many.pixels)


@pytest.mark.outer
def test_splits_share_no_digit_and_no_part_of_a_photo(monkeypatch):
    seen = {}

    def strokes(ink, draws):
        seen[split]["ink"] |= {digit.tobytes() for digit in ink}
        return right_strokes(ink, draws)

    def blend(pieces, strokes, draws):
        seen[split]["columns"] |= {column.tobytes() for column in pieces.transpose(0, 3, 2, 1).reshape(-1, 96)}
        return right_blend(pieces, strokes, draws)

    right_strokes, right_blend = images._strokes, images._blend
    monkeypatch.setattr(images, "_strokes", strokes)
    monkeypatch.setattr(images, "_blend", blend)
    for split in ("train", "test"):
        seen[split] = {"ink": set(), "columns": set()}
        bp.Images(split=split)
    assert not seen["train"]["columns"] & seen["test"]["columns"]
    assert not seen["train"]["ink"] & seen["test"]["ink"]
    assert 1200 < len(seen["train"]["ink"]) <= 1347 and 400 < len(seen["test"]["ink"]) <= 450


@pytest.mark.parametrize("split, labels, sums", TEXTS["first"])
def test_the_first_images_never_change(split, labels, sums):
    """Recorded results name a seed; the same seed must give the same images in every version."""
    data = bp.Images(split=split, num_samples=2)
    assert data.labels.tolist() == labels
    found = data.pixels.sum(axis=1, dtype=int)[:, 8:28:8, 8:28:8].reshape(2, 9)
    np.testing.assert_allclose(found, sums, atol=8)  # photographs are unpacked with small differences


def test_the_stand_in_can_be_learned_but_not_from_its_colors():
    train, test = bp.Images(num_samples=2000), bp.Images(split="test", num_samples=500)

    def accuracy(features):
        values = [features(data.batch(np.arange(len(data)))[0]) for data in (train, test)]
        values = [np.c_[value.reshape(len(value), -1), np.ones(len(value))] for value in values]
        gram = values[0].T @ values[0] + 30 * np.eye(values[0].shape[1])
        weight = np.linalg.solve(gram, values[0].T @ np.eye(10)[train.labels])
        return (np.argmax(values[1] @ weight, 1) == test.labels).mean()

    assert 0.25 < accuracy(lambda x: x.mean(axis=1)[:, ::2, ::2]) < 0.9  # pixels say something, a line not all
    assert accuracy(lambda x: x.mean(axis=(2, 3))) < 0.2


# Files


def in_folder(name):
    return {f"{name}readme.html": b"hello"} | {f"{name}{batch}": CIFAR10[batch] for batch in reversed(CIFAR10)}


@pytest.mark.parametrize("title, there, given", TEXTS["read"])
def test_files_are_read_in_memory_whatever_their_paths(tmp_path, title, there, given):
    (tmp_path / "inner").mkdir()
    there = eval(there, vars(tiny_sets) | globals())
    source = write(tmp_path / "inner", there) / given
    check(source, title, SETS[title])
    assert contents(tmp_path) == {f"inner/{name}": content for name, content in there.items()}
    most = len(SETS[title]["train"][1])
    for count in (2, most):
        assert len(bp.Images(str(source), num_samples=count)) == count
    with pytest.raises(ValueError, match=f"num_samples must be at most {most}, got {most + 1}"):
        bp.Images(source, num_samples=most + 1)


@pytest.mark.parametrize("name", ["source", "test_batch.bin", *IDX["test"]])
def test_what_is_no_regular_file_is_refused_unopened(tmp_path, name):
    """A device that ends at once: a pipe would be waited for, and /dev/zero never ends."""
    write(tmp_path, {other: MNIST[other] for other in IDX["test"] if name in IDX["test"] and other != name})
    (tmp_path / name).symlink_to(os.devnull)
    with pytest.raises(ValueError, match=f"{name} must be a regular file"):
        bp.Images(tmp_path / name if name == "source" else tmp_path, "test")


(DIGITS, _), (IMAGES, LABELS) = SETS["MNIST"]["train"], IDX["train"]
PICKLE = b"cos\nsystem\n(S'touch exploded'\ntR."


@pytest.mark.parametrize("there, given, message", TEXTS["others"])
def test_something_else_is_refused(tmp_path, there, given, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        bp.Images(write(tmp_path, eval(there, vars(tiny_sets) | globals())) / given)


@pytest.mark.parametrize("key, title", [("cifar10", "CIFAR-10"), ("mnist", "MNIST")])
def test_what_was_fetched_is_found(project, key, title):
    with pytest.raises(FileNotFoundError, match=f"{title} is not in .*; `bppsa-nb fetch {key}` downloads it"):
        bp.Images(key)
    there = {"cifar-10-binary.tar.gz": pack(CIFAR10)} if key == "cifar10" else {
        f"mnist/{name}.gz": gzip.compress(content) for name, content in MNIST.items()}  # fmt: skip
    (project / "data" / "downloads" / "mnist").mkdir(parents=True)
    write(project / "data" / "downloads", there)
    check(key, title, SETS[title])


def test_the_names_of_classes_are_those_of_the_sets():
    assert all(len(set(names)) == 10 for names in images.CLASSES.values())
