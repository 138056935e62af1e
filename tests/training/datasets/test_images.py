import os
import socket
from dataclasses import replace
from urllib.error import URLError

import numpy as np
import pytest
import tiny_sets
from damage import contents
from texts import beside
from tiny_sets import CIFAR10, IDX, MNIST, SETS, openml_pages, some, write

import bppsa_nb as bp
from bppsa_nb.training.datasets import digits_on_photos, image_files, openml

TEXTS = beside(__file__)


def check(source, title, kept):
    for split, (images, labels) in kept.items():
        data = bp.Images(source, split)
        pixels = images if images.ndim == 4 else np.pad(images, ((0, 0), (2, 2), (2, 2)))[:, None].repeat(3, axis=1)
        np.testing.assert_array_equal(data.pixels, pixels)
        np.testing.assert_array_equal(data.labels, labels)
        assert data.pixels.dtype == np.uint8 and data.labels.dtype == np.int64
        assert (data.source, data.data, data.classes) == (title, "real", image_files.CLASSES[title])


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
    monkeypatch.setattr(digits_on_photos, "_CHUNK", 8)
    np.testing.assert_array_equal(bp.Images(num_samples=60, rng=3).pixels, many.pixels)


@pytest.mark.outer
def test_splits_share_no_digit_and_no_part_of_a_photo(monkeypatch):
    seen = {}

    def strokes(ink, draws):
        seen[split]["ink"] |= {digit.tobytes() for digit in ink}
        seen[split]["angles"] |= set(draws["angle"])
        return right_strokes(ink, draws)

    def pieces(photos, draws):
        seen[split]["columns"] |= {column.tobytes() for column in photos.swapaxes(1, 2).reshape(-1, 427 * 3)}
        cut = right_pieces(photos, draws)
        assert cut.shape[1:] == (32, 32, 3)
        return cut

    right_strokes, right_pieces = digits_on_photos._strokes, digits_on_photos._pieces
    monkeypatch.setattr(digits_on_photos, "_strokes", strokes)
    monkeypatch.setattr(digits_on_photos, "_pieces", pieces)
    for split in ("train", "test"):
        seen[split] = {"ink": set(), "columns": set(), "angles": set()}
        bp.Images(split=split)
    for what, counts in {"ink": (1347, 450), "columns": (960, 320)}.items():
        train, test = seen["train"][what], seen["test"][what]
        assert not train & test
        assert 0.9 * counts[0] < len(train) <= counts[0] and 0.9 * counts[1] < len(test) <= counts[1]
    assert len(seen["train"]["angles"] & seen["test"]["angles"]) < 10


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
    images, _ = SETS[title]["train"]
    for count in (2, len(images)):
        assert len(bp.Images(str(source), num_samples=count)) == count
    with pytest.raises(ValueError, match=f"num_samples must be at most {len(images)}, got {len(images) + 1}"):
        bp.Images(source, num_samples=len(images) + 1)


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


# OpenML


def served(images, labels):
    return openml_pages(openml.SETS["mnist"].name, images, labels)


FIVE, THEIR_LABELS = some(5, (28, 28))
SOUND = served(FIVE, THEIR_LABELS)
PAGES = list(SOUND)


@pytest.fixture
def serve_set(project, serve, monkeypatch):
    """Make the sets small, and give a function that serves one of them in OpenML's place."""
    monkeypatch.setattr(openml, "TEST", 2)
    for key, wanted in openml.SETS.items():
        monkeypatch.setitem(openml.SETS, key, replace(wanted, train=3))
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # scikit-learn's, before it tries again

    def start(key, images, labels):
        server = serve(openml_pages(openml.SETS[key].name, images, labels))
        monkeypatch.setattr("sklearn.datasets._openml.urlopen", server.open)
        return server

    return start


@pytest.mark.parametrize("key", openml.SETS)
def test_what_is_fetched_is_a_data_set(project, serve_set, capsys, key):
    wanted = openml.SETS[key]
    with pytest.raises(FileNotFoundError, match=f"{wanted.title} is not in .*{key}.npz; `bppsa-nb fetch {key}` downl"):
        bp.Images(key)
    images, labels = some(5, wanted.shape)
    images[0, 0, 0], images[0, -1, -1] = 0, 255
    server = serve_set(key, images, labels)
    path = openml.fetch(key)
    assert path == project / "data" / "downloads" / f"{key}.npz" == openml.find(key)
    check(key, wanted.title, {"train": (images[:3], labels[:3]), "test": (images[3:], labels[3:])})
    assert len(bp.Images(key, num_samples=2)) == 2
    asked, whole = len(server.asked), path.read_bytes()
    for content in (whole, whole[:-1]):  # what is damaged is made anew of what OpenML sent
        path.write_bytes(content)
        assert openml.fetch(key) == path and path.read_bytes() == whole and len(server.asked) == asked
    assert f"{key}.npz is not an .npz file written by `bppsa-nb fetch {key}`" in capsys.readouterr().err


def half_made(file, **arrays):
    file.write(b"half of it")
    raise KeyboardInterrupt


@pytest.mark.filterwarnings("ignore:Invalid cache")
@pytest.mark.parametrize("trouble", [503, URLError("no such name"), TimeoutError(), None])
def test_a_fetch_goes_on_where_it_stopped(project, serve_set, monkeypatch, trouble):
    server = serve_set("mnist", FIVE, THEIR_LABELS)
    with monkeypatch.context() as patch:
        if trouble:
            patch.setitem(server.pages, "get/images.arff", trouble)
            stopped = pytest.raises(OSError, match="cannot download MNIST from OpenML: .*Try again later, or download")
        else:
            patch.setattr(openml.np, "savez", half_made)
            stopped = pytest.raises(KeyboardInterrupt)
        with stopped:
            openml.fetch("mnist")
    assert server.timeouts == {30} and socket.getdefaulttimeout() is None
    assert all(name.endswith(".gz") for name in contents(project))  # what came whole
    server.asked.clear()
    openml.fetch("mnist")
    assert server.asked == ["get/images.arff"] * bool(trouble)
    np.testing.assert_array_equal(bp.Images("mnist").labels, THEIR_LABELS[:3])


@pytest.mark.filterwarnings("ignore:Invalid cache")
@pytest.mark.parametrize("sent, message", TEXTS["sent"])
def test_what_is_no_such_set_is_explained_and_not_taken_for_an_answer_the_next_time(project, serve_set, sent, message):
    server = serve_set("mnist", FIVE, THEIR_LABELS)
    server.pages |= eval(sent)
    with pytest.raises(ValueError, match=f"what OpenML sent is not MNIST, and deleted: {message}"):
        openml.fetch("mnist")
    assert not contents(project)
    server.pages |= SOUND
    openml.fetch("mnist")
    np.testing.assert_array_equal(bp.Images("mnist").labels, THEIR_LABELS[:3])


@pytest.mark.parametrize("values", [[np.nan], [np.inf], [-1.0], [256.0], [0.5]])
def test_bytes_are_checked_whatever_their_type(values):
    with pytest.raises(ValueError, match="pixels must be integers from 0 to 255"):
        openml._bytes("pixels", np.array(values), 255)
    np.testing.assert_array_equal(openml._bytes("pixels", np.array([0.0, 255.0]), 255), [0, 255])
    np.testing.assert_array_equal(openml._bytes("labels", np.array(["3", "'9'"], object), 9), [3, 9])


def test_the_names_of_classes_are_those_of_the_sets():
    assert all(len(set(names)) == 10 for names in image_files.CLASSES.values())
    assert {wanted.title for wanted in openml.SETS.values()} == set(image_files.CLASSES)
