import gzip
import hashlib
import io
import json
import os
import socket
import struct
import tarfile
from pathlib import Path
from urllib.error import HTTPError, URLError

import numpy as np
import pytest

import bppsa_nb as bp
from bppsa_nb.machine.files import CorruptFileError
from bppsa_nb.training.datasets import digits_on_photos, image_files, openml

BATCHES = [f"data_batch_{i}.bin" for i in range(1, 6)]
RECORD = 3073
PAST = {"train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")}
PAST["test"] = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def some(count, shape, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(256, size=(count, *shape), dtype=np.uint8), rng.integers(10, size=count, dtype=np.uint8)


def cifar10(seed=0, count=2):
    """Make tiny batches, by name: the file's bytes, and what is in it."""
    batches = {}
    for i, name in enumerate([*BATCHES, "test_batch.bin"]):
        images, labels = some(count, (3, 32, 32), [seed, i])
        content = b"".join(bytes([label]) + image.tobytes() for image, label in zip(images, labels, strict=True))
        batches[name] = content, images, labels
    return batches


def write_cifar10(folder, seed=0):
    batches = cifar10(seed)
    for name, (content, _, _) in batches.items():
        (folder / name).write_bytes(content)
    return batches


def pack(path, entries, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        for name, content in entries:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def idx(values):
    return struct.pack(f">{1 + values.ndim}I", 2048 + values.ndim, *values.shape) + values.tobytes()


def write_mnist(folder, ending=""):
    kept = {}
    for split, names in PAST.items():
        kept[split] = some(3, (28, 28), len(split))
        for name, values in zip(names, kept[split], strict=True):
            content = gzip.compress(idx(values)) if ending else idx(values)
            (folder / (name + ending)).write_bytes(content)
    return kept


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


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
    assert data.batch(np.arange(0))[0].shape == (0, 3, 32, 32)
    for values in (data.pixels, data.labels):
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 0


def test_pixels_are_scaled_to_plus_and_minus_one(tmp_path):
    pixels = np.zeros((1, 3, 32, 32), np.uint8)
    pixels[0, 0], pixels[0, 1, 0, 0] = 255, 51
    (tmp_path / "test_batch.bin").write_bytes(b"\3" + pixels.tobytes())
    (x,), _ = bp.Images(tmp_path, "test").batch([0])
    assert (x[0] == 1).all() and (x[2] == -1).all()
    assert x[1, 0, 0] == pytest.approx(-0.6, abs=1e-6)


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


@pytest.mark.parametrize(
    "split, labels, sums",
    [
        ("train", [8, 4], [[31, 275, 269, 67, 400, 31, 207, 311, 67], [86, 200, 102, 386, 442, 83, 41, 405, 48]]),
        ("test", [7, 7], [[236, 415, 457, 223, 359, 307, 210, 473, 275], [172, 287, 232, 64, 412, 75, 47, 412, 78]]),
    ],
)
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


def test_an_empty_batch():
    x, y = bp.Images(num_samples=8).batch([])
    assert x.shape == (0, 3, 32, 32) and y.shape == (0,)


# Files of CIFAR-10


def check_cifar10(path, batches):
    train, test = bp.Images(path), bp.Images(str(path), "test")
    for data, names in ((train, BATCHES), (test, ["test_batch.bin"])):
        np.testing.assert_array_equal(data.pixels, np.concatenate([batches[name][1] for name in names]))
        np.testing.assert_array_equal(data.labels, np.concatenate([batches[name][2] for name in names]))
        assert data.labels.dtype == np.int64
        assert (data.source, data.data, data.classes[9]) == ("CIFAR-10", "real", "truck")


def test_a_folder_of_cifar10(tmp_path):
    check_cifar10(tmp_path, write_cifar10(tmp_path))
    np.testing.assert_array_equal(bp.Images(tmp_path, num_samples=3).pixels, bp.Images(tmp_path).pixels[:3])
    np.testing.assert_array_equal(bp.Images(tmp_path, num_samples=10).pixels, bp.Images(tmp_path).pixels)
    with pytest.raises(ValueError, match="num_samples must be at most 10, got 11"):
        bp.Images(tmp_path, num_samples=11)


@pytest.mark.parametrize("mode, folder", [("w:gz", "cifar-10-batches-bin/"), ("w", "../../"), ("w", "/")])
def test_an_archive_of_cifar10_is_read_in_memory_whatever_its_paths(tmp_path, mode, folder):
    batches, path = cifar10(), tmp_path / "inner" / "cifar-10-binary.tar.gz"
    path.parent.mkdir()
    entries = [(f"{folder}{name}", batches[name][0]) for name in reversed(batches)]
    pack(path, [("cifar-10-batches-bin/readme.html", b"hello"), *entries], mode)
    check_cifar10(path, batches)
    assert list(contents(tmp_path)) == ["inner/cifar-10-binary.tar.gz"]


def test_links_in_an_archive_are_not_followed(tmp_path):
    (tmp_path / "test_batch.bin").write_bytes(cifar10()["test_batch.bin"][0])
    with tarfile.open(tmp_path / "b.tar", "w") as archive:
        link = tarfile.TarInfo("test_batch.bin")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "test_batch.bin")
        archive.addfile(link)
    with pytest.raises(FileNotFoundError, match="b.tar lacks test_batch.bin"):
        bp.Images(tmp_path / "b.tar", "test")


@pytest.mark.parametrize("size", [0, 1, RECORD, RECORD + 1, 2 * RECORD - 1])
def test_a_truncated_batch_is_named(tmp_path, size):
    batches = write_cifar10(tmp_path)
    for name, split in (("data_batch_3.bin", "train"), ("test_batch.bin", "test")):
        (tmp_path / name).write_bytes(batches[name][0][:size])
        if (name, size) != ("test_batch.bin", RECORD):
            with pytest.raises(ValueError, match=f"must be of one size, and of records of 3073 .*{name}': {size}[,}}]"):
                bp.Images(tmp_path, split)


@pytest.mark.parametrize("name", ["source", "test_batch.bin", PAST["test"][0], PAST["test"][1]])
def test_what_is_no_regular_file_is_refused_unopened(tmp_path, name):
    """A device that ends at once: a pipe would be waited for, and /dev/zero never ends."""
    if name in PAST["test"]:
        write_mnist(tmp_path)
        (tmp_path / name).unlink()
    (tmp_path / name).symlink_to(os.devnull)
    with pytest.raises(ValueError, match=f"{name} must be a regular file"):
        bp.Images(tmp_path / name if name == "source" else tmp_path, "test")


def test_a_label_out_of_range_and_a_missing_batch_are_named(tmp_path):
    content = bytearray(write_cifar10(tmp_path)["test_batch.bin"][0])
    content[RECORD] = 10
    (tmp_path / "test_batch.bin").write_bytes(content)
    with pytest.raises(ValueError, match="label 10 of image 1 is out of range, expected 0 to 9"):
        bp.Images(tmp_path, "test")
    assert len(bp.Images(tmp_path)) == 10  # the other split is sound
    for name in ("data_batch_2.bin", "data_batch_4.bin"):
        (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match=r"lacks data_batch_2\.bin, data_batch_4\.bin; expected"):
        bp.Images(tmp_path)


@pytest.mark.parametrize("mode", ["w:gz", "w:xz", "w:bz2", "w"])
def test_an_archive_cut_or_damaged_anywhere_is_refused(tmp_path, mode):
    """Whatever is missing: nothing is half-loaded."""
    batches, path = cifar10(count=1), tmp_path / "cut.tar.gz"
    pack(path, [(name, batches[name][0]) for name in BATCHES], mode)
    whole = path.read_bytes()
    bp.Images(path)
    # What follows the last entry may be missing from a plain archive: it is only padding. It has no checksum of bytes.
    last = len(whole) if mode != "w" else 5 * (512 + 3584) - (3584 - RECORD)
    spoiled = [whole[:size] for size in [*range(0, 40, 3), *range(40, last, 509), last - 1]]
    if mode != "w":
        spoiled += [whole[:i] + bytes([whole[i] ^ 16]) + whole[i + 1 :] for i in range(300, len(whole), 499)]
    for content in spoiled:
        path.write_bytes(content)
        with pytest.raises((ValueError, FileNotFoundError) if mode == "w" else CorruptFileError, match=r"cut\.tar\.gz"):
            bp.Images(path)


def test_pickles_are_refused_not_read(tmp_path):
    bomb = b"cos\nsystem\n(S'touch exploded'\ntR."
    for name in ("data_batch_1", "test_batch", "batches.meta"):
        (tmp_path / name).write_bytes(bomb)
    pack(tmp_path / "cifar-10-python.tar.gz", [("cifar-10-batches-py/data_batch_1", bomb)])
    for path in (tmp_path, tmp_path / "data_batch_1", tmp_path / "cifar-10-python.tar.gz"):
        with pytest.raises((ValueError, FileNotFoundError), match="the binary version .* what is pickled is not read"):
            bp.Images(path)


def test_something_else_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(FileNotFoundError, match="holds no data set; expected .* CIFAR-10 .* or MNIST"):
        bp.Images(tmp_path)
    with pytest.raises(ValueError, match=r"notes\.txt cannot be read: .*; expected .*, a folder or \.tar\.gz$"):
        bp.Images(tmp_path / "notes.txt")
    write_cifar10(tmp_path)
    write_mnist(tmp_path)
    with pytest.raises(ValueError, match="holds files of CIFAR-10 and of MNIST"):
        bp.Images(tmp_path)


# Files of MNIST


@pytest.mark.parametrize("ending, mark", [("", "-"), (".gz", "-"), ("", ".")])
def test_a_folder_of_mnist(tmp_path, ending, mark):
    kept = write_mnist(tmp_path, ending)
    for path in list(tmp_path.iterdir()):
        path.rename(path.with_name(path.name.replace("-idx", f"{mark}idx")))
    for split, (images, labels) in kept.items():
        data = bp.Images(tmp_path, split)
        expected = np.pad(images, ((0, 0), (2, 2), (2, 2)))[:, None].repeat(3, axis=1)
        np.testing.assert_array_equal(data.pixels, expected)
        np.testing.assert_array_equal(data.labels, labels)
        assert (data.source, data.data, data.classes) == ("MNIST", "real", tuple("0123456789"))


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_an_idx_file_of_another_length_is_named(tmp_path, ending):
    for name, header, data in ((PAST["train"][0], 16, 3 * 784), (PAST["train"][1], 8, 3)):
        for size in [*range(0, header + 2, 3), header + data // 2, header + data - 1, header + data + 1]:
            write_mnist(tmp_path, ending)
            path = tmp_path / (name + ending)
            content = gzip.decompress(path.read_bytes()) if ending else path.read_bytes()
            content = (content + b"\0")[:size]
            path.write_bytes(gzip.compress(content) if ending else content)
            said = f"{name}{ending} must begin with .* got .* and {max(0, size - header)}$"
            with pytest.raises(ValueError, match=said):
                bp.Images(tmp_path)


def test_a_compressed_file_cut_or_damaged_anywhere_is_refused(tmp_path):
    write_mnist(tmp_path, ".gz")
    path = tmp_path / "train-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    spoiled = [whole[:size] for size in [*range(0, 30, 3), *range(30, len(whole), 197), len(whole) - 1]]
    places = [0, 2, *range(10, len(whole), 197), len(whole) - 8, len(whole) - 1]
    for content in spoiled + [whole[:i] + bytes([whole[i] ^ 4]) + whole[i + 1 :] for i in places]:
        path.write_bytes(content)
        with pytest.raises(CorruptFileError, match="train-images-idx3-ubyte.gz"):
            bp.Images(tmp_path)


@pytest.mark.parametrize(
    "name, header, message",
    [
        ("train-images-idx3-ubyte", (2049, 3, 28, 28), "must begin with 2051 and 3 sizes, .*, got 2049"),
        ("train-labels-idx1-ubyte", (17301504, 3), "must begin with 2049 .*, got 17301504"),  # little-endian
        ("train-images-idx3-ubyte", (2051, 3, 32, 32), r"got 2051, \[3, 32, 32\] and 2352"),
        ("train-images-idx3-ubyte", (2051, 3, 14, 56), r"must have images \(N, 28, 28\) and N labels, got \(3, 14, 56"),
        ("train-images-idx3-ubyte", (2051, 0, 28, 28), "must begin with 2051"),
        ("train-images-idx3-ubyte", (2051, 2**32 - 1, 2**32 - 1, 2**32 - 1), r"got 2051, \[4294967295, "),
    ],
)
def test_a_wrong_header_is_refused(tmp_path, name, header, message):
    write_mnist(tmp_path)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(struct.pack(f">{len(header)}I", *header) + content[4 * len(header) :])
    with pytest.raises(ValueError, match=message):
        bp.Images(tmp_path)


def test_mnist_s_images_and_labels_have_to_fit(tmp_path):
    write_mnist(tmp_path)
    path = tmp_path / "t10k-labels-idx1-ubyte"
    path.write_bytes(idx(np.zeros(4, np.uint8)))
    with pytest.raises(ValueError, match=r"must have images .* and N labels, got \(3, 28, 28\) and 4"):
        bp.Images(tmp_path, "test")
    path.write_bytes(idx(np.array([0, 9, 10], np.uint8)))
    with pytest.raises(ValueError, match="label 10 of image 2 is out of range"):
        bp.Images(tmp_path, "test")
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"lacks t10k-labels-idx1-ubyte \(or \.gz\) of MNIST"):
        bp.Images(tmp_path, "test")
    for name, empty in zip(PAST["test"], (np.zeros((0, 28, 28), np.uint8), np.zeros(0, np.uint8)), strict=True):
        (tmp_path / name).write_bytes(idx(empty))
    with pytest.raises(ValueError, match=r"t10k-images-idx3-ubyte must begin with .*, got 2051, \[0, 28, 28\] and 0"):
        bp.Images(tmp_path, "test")


# OpenML


class Server:
    """Answers scikit-learn's requests in OpenML's place."""

    def __init__(self, key, images, labels):
        wanted = openml.SETS[key]
        pixels = images.reshape(len(images), -1)
        names = [f"a{i}" for i in range(pixels.shape[1])]
        body = io.StringIO()
        np.savetxt(body, np.c_[pixels.astype(object), labels.astype(object)], fmt="%s", delimiter=",")
        lines = [f"@ATTRIBUTE {name} INTEGER" for name in names] + ["@ATTRIBUTE class {0,1,2}", "@DATA", ""]
        self.arff = "\n".join(["@RELATION digits", *lines]).encode() + body.getvalue().encode()
        usual = {"is_ignore": "false", "is_row_identifier": "false", "number_of_missing_values": "0"}
        columns = [usual | {"name": name, "data_type": "numeric", "is_target": "false"} for name in names]
        columns.append(usual | {"name": "class", "data_type": "nominal", "is_target": "true"})
        columns = [column | {"index": str(i)} for i, column in enumerate(columns)]
        about = {"name": wanted.name, "version": "1", "status": "active", "format": "ARFF", "description": ""}
        about |= {"md5_checksum": hashlib.md5(self.arff).hexdigest(), "url": "https://www.openml.org/get/images.arff"}
        qualities = [{"name": "NumberOfInstances", "value": str(len(labels))}]
        api = "api/v1/json/data"
        pages = {
            f"{api}/list/data_name/{wanted.name.lower()}/limit/2/data_version/1": {"data": {"dataset": [{"did": 7}]}},
            f"{api}/7": {"data_set_description": about},
            f"{api}/features/7": {"data_features": {"feature": columns}},
            f"{api}/qualities/7": {"data_qualities": {"quality": qualities}},
        }
        self.pages = {path: json.dumps(page).encode() for path, page in pages.items()}
        self.pages["get/images.arff"] = self.arff
        self.requests = []

    def __call__(self, request):
        path = request.full_url.partition(".openml.org/")[2]  # of www or, by older releases, of api
        self.requests.append(path)
        answer = self.pages[path]
        if isinstance(answer, BaseException):
            raise answer
        response = io.BytesIO(answer)
        response.info = dict
        return response


@pytest.fixture
def serve(project, monkeypatch):
    """Make the sets small, and give a function that serves images and labels."""
    monkeypatch.setattr(openml, "TEST", 2)
    for key, wanted in openml.SETS.items():
        small = openml.Set(wanted.title, wanted.name, wanted.shape, 3, wanted.size)
        monkeypatch.setitem(openml.SETS, key, small)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # scikit-learn's, before it tries again

    def serve(key, images, labels):
        server = Server(key, images, labels)
        monkeypatch.setattr("sklearn.datasets._openml.urlopen", server)
        return server

    return serve


@pytest.mark.parametrize("key", ["cifar10", "mnist"])
def test_what_is_fetched_is_a_data_set(project, serve, key):
    images, labels = some(5, openml.SETS[key].shape)
    images[0, 0, 0], images[0, -1, -1] = 0, 255
    server = serve(key, images, labels)
    path = openml.fetch(key)
    assert path == project / "data" / "downloads" / f"{key}.npz" == openml.find(key)
    asked = len(server.requests)
    assert openml.fetch(key) == path and len(server.requests) == asked  # nothing is downloaded twice
    pixels = images if images.ndim == 4 else np.pad(images, ((0, 0), (2, 2), (2, 2)))[:, None].repeat(3, 1)
    for split, rows in (("train", slice(3)), ("test", slice(3, 5))):
        data = bp.Images(key, split)
        np.testing.assert_array_equal(data.pixels, pixels[rows])
        np.testing.assert_array_equal(data.labels, labels[rows])
        assert (data.source, data.data) == (openml.SETS[key].title, "real")
        assert data.labels.dtype == np.int64 and data.pixels.dtype == np.uint8
    assert len(bp.Images(key, num_samples=2)) == 2
    with np.load(path, allow_pickle=False) as kept:
        assert sorted(kept) == ["images", "labels"] and kept["images"].shape == (5, *openml.SETS[key].shape)


@pytest.mark.parametrize("key", ["cifar10", "mnist"])
def test_what_is_not_here_says_what_to_run(project, key):
    title = openml.SETS[key].title
    with pytest.raises(FileNotFoundError, match=f"{title} is not in .*{key}.npz; `bppsa-nb fetch {key}` downloads it"):
        bp.Images(key)


def damages(images, labels):
    """What a file may hold instead: pickles, other images."""
    yield lambda path: path.write_bytes(path.read_bytes()[:-1])
    yield lambda path: path.write_bytes(path.read_bytes()[:500] + b"?" + path.read_bytes()[501:])
    yield lambda path: np.savez(path, images=images.astype(object), labels=labels)
    yield lambda path: np.savez(path, images=images[:4], labels=labels)
    yield lambda path: np.savez(path, images=images, labels=labels.astype(float))
    yield lambda path: np.savez(path, images=images)


def test_a_damaged_store_is_refused_and_made_anew(project, serve, capsys):
    images, labels = some(5, (28, 28))
    server = serve("mnist", images, labels)
    path = openml.fetch("mnist")
    whole, asked = path.read_bytes(), len(server.requests)
    for damage in damages(images, labels):
        damage(path)
        with pytest.raises(ValueError, match=r"mnist\.npz is not .*`bppsa-nb fetch mnist`"):
            bp.Images("mnist")
        openml.fetch("mnist")
        assert "mnist.npz is not" in capsys.readouterr().err and path.read_bytes() == whole
    assert len(server.requests) == asked  # what OpenML sent is here


@pytest.mark.filterwarnings("ignore:Invalid cache")
@pytest.mark.parametrize(
    "wrong", [URLError("no such name"), HTTPError("https://openml.org", 503, "busy", {}, io.BytesIO()), TimeoutError()]
)
def test_a_fetch_goes_on_where_it_was_cut_off(project, serve, wrong):
    images, labels = some(5, (28, 28))
    server = serve("mnist", images, labels)
    server.pages["get/images.arff"] = wrong
    with pytest.raises(OSError, match="cannot download MNIST from OpenML: .*Try again later, or download the set"):
        openml.fetch("mnist")
    assert all(name.endswith(".gz") and "images.arff" not in name for name in contents(project))
    server.pages["get/images.arff"] = server.arff
    server.requests.clear()
    openml.fetch("mnist")
    assert server.requests == ["get/images.arff"]
    np.testing.assert_array_equal(bp.Images("mnist").labels, labels[:3])


@pytest.mark.filterwarnings("ignore:Invalid cache")
@pytest.mark.parametrize("place, junk", [(0, b"[]"), (1, b"null"), (2, b'{"data_features": []}'), (4, b"other")])
def test_junk_is_explained_and_not_taken_for_an_answer_the_next_time(project, serve, place, junk):
    images, labels = some(5, (28, 28))
    server = serve("mnist", images, labels)
    path = list(server.pages)[place]
    answer, server.pages[path] = server.pages[path], junk
    with pytest.raises(ValueError, match="what OpenML sent is not MNIST, and deleted: "):
        openml.fetch("mnist")
    assert not contents(project)
    server.pages[path] = answer
    openml.fetch("mnist")
    np.testing.assert_array_equal(bp.Images("mnist").labels, labels[:3])


@pytest.mark.filterwarnings("ignore:Invalid cache")
@pytest.mark.parametrize(
    "change, message",
    [
        (lambda images, labels: (images[:4], labels[:4]), r"images \(4, 784\), labels \(4,\), expected \(5, 784\)"),
        (lambda images, labels: (images[:, :27], labels), "is not MNIST"),
        (lambda images, labels: (images.astype(int) + 1000, labels), "is not MNIST"),
        (lambda images, labels: (images, labels + 10), "labels must be integers from 0 to 9"),
        (lambda images, labels: (images, np.array(["cat"] * 5)), "is not MNIST, and deleted: .*cat"),
    ],
)
def test_another_set_is_refused(project, serve, change, message):
    images, labels = some(5, (28, 28))
    serve("mnist", *change(images, labels.astype(int)))
    with pytest.raises(ValueError, match=message):
        openml.fetch("mnist")
    assert not list(project.rglob("*.npz"))


@pytest.mark.parametrize("values", [[np.nan], [np.inf], [-1.0], [256.0], [0.5]])
def test_bytes_are_checked_whatever_their_type(values):
    with pytest.raises(ValueError, match="pixels must be integers from 0 to 255"):
        openml._bytes("pixels", np.array(values), 255)
    np.testing.assert_array_equal(openml._bytes("pixels", np.array([0.0, 255.0]), 255), [0, 255])
    np.testing.assert_array_equal(openml._bytes("labels", np.array(["3", "'9'"], object), 9), [3, 9])


def test_an_interrupted_conversion_leaves_nothing_half_made(project, serve, monkeypatch):
    server = serve("mnist", *some(5, (28, 28)))

    def stop(file, **arrays):
        file.write(b"half of it")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(openml.np, "savez", stop)
        with pytest.raises(KeyboardInterrupt):
            openml.fetch("mnist")
    assert not [name for name in contents(project) if "mnist" in Path(name).name and not name.endswith(".gz")]
    server.requests.clear()
    openml.fetch("mnist")
    assert server.requests == [] and len(bp.Images("mnist")) == 3  # what came is kept


def test_a_silent_server_is_not_waited_for_forever(project, serve, monkeypatch):
    server, limits, before = serve("mnist", *some(5, (28, 28))), [], socket.getdefaulttimeout()
    monkeypatch.setattr(
        "sklearn.datasets._openml.urlopen", lambda request: limits.append(socket.getdefaulttimeout()) or server(request)
    )
    openml.fetch("mnist")
    assert set(limits) == {30} and socket.getdefaulttimeout() == before


def test_the_names_of_classes_are_those_of_the_sets():
    assert all(len(set(names)) == 10 for names in image_files.CLASSES.values())
    assert {wanted.title for wanted in openml.SETS.values()} == set(image_files.CLASSES)
