"""A file that is cut, or changed at any place, is an error that names it and leaves nothing behind, or read as it was.

Where no checksum tells, it may be read as another sound one.
"""

import gzip
import math
import os
from functools import partial

import numpy as np
import pytest
import soundfile
from damage import Kept, changes, rewrite
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny_sets import CIFAR10, MNIST, SETS, pack, write
from trainers import new_trainer, pruned_trainer, state

import bppsa_nb as bp
from bppsa_nb.chains import counts, prices
from bppsa_nb.machine import files
from bppsa_nb.papers import dictionary, provenance, tables
from bppsa_nb.papers.progress import Progress
from bppsa_nb.puzzles import NAMES, answers
from bppsa_nb.sparse import load_weights, save_weights
from bppsa_nb.training.datasets import audio


def recorded_table(folder, patch):
    path = folder / "toy.quick.csv"
    rows = [{"n": n, "x": n / 3, "method": "linear", "exact": n > 1} for n in range(3)]
    tables.write(rows, provenance.describe("toy", "quick", 0), path)

    def read():
        table = tables.read(path)
        return table.to_dict("list"), provenance.KEYS <= table.attrs["provenance"].keys()

    return Kept([path, path.with_suffix(".json")], read)


def points_of_a_sweep(folder, patch):
    """Those that cannot be read are measured again."""
    path = folder / "toy.partial.json"

    def read():
        sweep = Progress(path, {"name": "toy"}, show=False)
        return len(sweep.collect([{"n": 1}, {"n": 2}], lambda point, rng: [{"twice": 2 * point["n"]}], 0))

    read()
    return Kept([path], read, sound=lambda rows: rows < 2)


def published_table(folder, patch):
    patch.setattr(files, "shipped", lambda *names: folder)
    write(folder, {"table_6.csv": b"B,forward\n16,0.4\n32,0.8\n", "table_6.json": b'{"table": 6}'})
    return Kept(list(folder.iterdir()), lambda: tables.published("table_6").to_csv(), sound=lambda table: True)


def meaning_of_columns(folder, patch):
    patch.setattr(files, "shipped", lambda *names: folder)
    write(folder, {"dictionary.toml": b'[units]\ns = "\xce\xb4"\n[columns."every table"]\nT = { means = "steps" }\n'})

    def read():
        dictionary._parsed.cache_clear()
        return dictionary.read()

    return Kept(list(folder.iterdir()), read, sound=lambda written: True)


def calibration(folder, patch):
    patch.setenv("BPPSA_NB_CACHE", str(folder))
    costs = dict.fromkeys(counts.KINDS, [1e-6, 1e-6, 1e-9])
    prices.store({"numpy": {"machine": prices.machine(), "date": "2026-01-02", "prices": costs}})

    def sound(record):
        return record is None or all(0 <= cost < math.inf for each in record["prices"].values() for cost in each)

    return Kept([prices.path()], lambda: prices.load("numpy"), sound)


def answers_to_puzzles(folder, patch):
    path = folder / "answers.json"
    answers.write(path, {"diamond": {"solved": "2026", "answer": "x"}, "reduce": {"solved": None, "answer": ""}})

    def sound(known):
        return all(name in NAMES and isinstance(each["answer"], str) for name, each in known.items())

    return Kept([path], lambda: answers.read(path), sound, ValueError)


def read_into(trainer, load, path):
    def target():
        return {name: array.tolist() for name, array in state(trainer).items()}

    def read():
        load(path)
        loaded = target()
        for param in trainer.model.params.values():
            param += 1  # so that half of the next load would be seen
        return loaded

    return Kept([path], read, errors=ValueError, target=target)


def weights(folder, patch):
    trainer, path = pruned_trainer(), folder / "weights.npz"
    save_weights(trainer.model, path)
    return read_into(trainer, partial(load_weights, trainer.model), path)


def checkpoint(folder, patch):
    trainer, path = new_trainer(), folder / "saved.npz"
    trainer.save(path)
    return read_into(trainer, trainer.load, path)


def recorded_sound(folder, patch):
    patch.setattr(audio, "_from_librosa", lambda: None)
    patch.setattr(audio, "mfcc", lambda waveform, features: waveform.mean())
    patch.setattr(files, "root", lambda: folder / "project")
    names = [f"{label}/[{label}]0001__1.wav" for label in audio.LABELS]
    for name in names:
        (folder / name).parent.mkdir()
        soundfile.write(folder / name, np.full((132300, 2), 0.1), 44100, "PCM_16")

    def read():
        return bp.Instruments(folder, workers=1, progress=False).x[0].tolist()

    return Kept([folder / names[3]], read, lambda found: np.isfinite(found).all(), ValueError, named=names[3])


def read_images(source):
    data = bp.Images(source)
    return data.pixels.tobytes(), data.labels.tolist()


def images(title, contents, given="", sealed=False):
    """Make files of a set, of which their folder is given, or one of them."""
    count = len(SETS[title]["train"][1])

    def sound(found):
        return not sealed and len(found[0]) == 3072 * count and len(found[1]) == count and max(found[1]) < 10

    def make(folder, patch):
        paths = [write(folder, contents) / name for name in contents if not name.startswith(("test", "t10k"))]
        return Kept(paths, lambda: read_images(folder / given), sound, named=str(folder / given))

    return make


MAKERS = [
    *(recorded_table, points_of_a_sweep, published_table, meaning_of_columns, calibration, answers_to_puzzles),
    *(weights, checkpoint, recorded_sound),
]
FORMATS = {make.__name__: make for make in MAKERS} | {
    "cifar10": images("CIFAR-10", CIFAR10),
    "cifar10_archive": images("CIFAR-10", {"a.tar": pack(CIFAR10, "w")}, "a.tar"),
    "cifar10_compressed": images("CIFAR-10", {"a.tar.gz": pack(CIFAR10)}, "a.tar.gz", sealed=True),
    "mnist": images("MNIST", MNIST),
    "mnist_compressed": images("MNIST", {f"{name}.gz": gzip.compress(MNIST[name]) for name in MNIST}, sealed=True),
}


@pytest.fixture(scope="module", params=FORMATS)
def kept(request, tmp_path_factory):
    """Give files of a format, and what is read from them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda number: None)
        made = FORMATS[request.param](tmp_path_factory.mktemp("kept"), patch)
        yield made, made.read()


def check(kept, path, content):
    (_, read, sound, errors, target, named), found = kept
    whole = path.read_bytes()
    rewrite(path, content)
    there, before = sorted(path.parent.iterdir()), target()
    try:
        again = read()
        assert again == found or sound(again)
    except (errors, FileNotFoundError) as error:
        assert (named or str(path.with_suffix(""))) in str(error)
        assert target() == before
    except BaseException as error:
        error.add_note(f"{path.name} held {content[:1000]}")
        raise
    finally:
        assert sorted(path.parent.iterdir()) == there
        rewrite(path, whole)


@settings(max_examples=2 * settings().max_examples)
@example(0, -3, 0)  # where the archive of an .npz says where its list of entries begins
@given(st.integers(0, 9), st.integers(-64, 63) | st.integers(0, 2**20), st.integers(-8, 7))
def test_what_is_cut_or_has_another_bit_is_named_or_read_as_it_was(kept, which, at, bit):
    path = kept[0].paths[which % len(kept[0].paths)]
    content = bytearray(path.read_bytes())
    at %= len(content)  # near an end, or anywhere
    if bit < 0:
        del content[at:]
    else:
        content[at] ^= 1 << bit
    check(kept, path, content)


def test_what_holds_something_else_is_named_or_read_as_it_was(kept):
    for path in kept[0].paths:
        for content in changes(path):
            check(kept, path, content)
