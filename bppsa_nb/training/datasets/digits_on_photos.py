"""A stand-in for CIFAR-10 where it is not downloaded: handwritten digits over photographs.

Both ship with scikit-learn: its 1797 digits of 8x8 pixels, and its two sample photographs. Each sample is a digit,
scaled, turned and colored, over a darkened piece of a photograph. Digits and pieces of the test set are not those of
the training set: its digits are the last of scikit-learn's, and its pieces come from the right-hand quarter.
"""

import numpy as np

from bppsa_nb.machine import extras
from bppsa_nb.machine.checks import generator

SIZE = 32
COUNTS = {"train": 6000, "test": 1500}  # samples, if nothing else is said

_FIRST_TEST_DIGIT = 1347  # about a quarter of the digits follows
_FIRST_TEST_COLUMN = 480  # of 640
_CHUNK = 1000  # samples composed at once
# What is drawn at random for each sample, evenly from 0 to 1.
_DRAWS = ("digit", "photo", "top", "left", "height", "angle", "down", "right", "shade", "opacity", "color")


def compose(count, split, rng) -> tuple[np.ndarray, np.ndarray]:
    """Return pixels [shape=(count, 3, 32, 32), dtype=uint8] and labels [shape=(count,), dtype=int64], the digits.

    Sample k is a pure function of the seed `rng`, the split and its number k. Pillow reads the photographs.
    """
    with extras.explained():
        from sklearn.datasets import load_digits, load_sample_images

    train = split == "train"
    key = generator(rng).integers(2**64, size=2, dtype=np.uint64)
    stream = np.random.Philox(key=key, counter=[0, 0, 0, ("train", "test").index(split)])
    digits = slice(None, _FIRST_TEST_DIGIT) if train else slice(_FIRST_TEST_DIGIT, None)
    columns = slice(None, _FIRST_TEST_COLUMN) if train else slice(_FIRST_TEST_COLUMN, None)
    bunch = load_digits()
    ink, names = bunch.images[digits].astype(np.float32) / 16, bunch.target[digits]
    photos = np.stack(load_sample_images().images)[:, :, columns]
    pixels, labels = np.empty((count, 3, SIZE, SIZE), np.uint8), np.empty(count, np.int64)
    for start in range(0, count, _CHUNK):
        part = slice(start, min(start + _CHUNK, count))
        words = stream.random_raw((part.stop - start) * (len(_DRAWS) + 2)).reshape(part.stop - start, -1)
        numbers = (words >> np.uint64(32)) * 2.0**-32
        draws = dict(zip(_DRAWS, numbers.T, strict=False)) | {"color": numbers[:, len(_DRAWS) - 1 :]}
        chosen = _choose(len(ink), draws["digit"])
        labels[part] = names[chosen]
        pixels[part] = _blend(_pieces(photos, draws), _strokes(ink[chosen], draws), draws)
    return pixels, labels


def _choose(count, draw):
    return (count * draw).astype(np.int64)


def _pieces(photos, draws):
    """Cut a piece out of a photograph for each sample: (B, 32, 32, 3)."""
    count, height, width = photos.shape[:3]
    photo = _choose(count, draws["photo"])[:, None, None]
    rows = _choose(height - SIZE + 1, draws["top"])[:, None] + np.arange(SIZE)
    columns = _choose(width - SIZE + 1, draws["left"])[:, None] + np.arange(SIZE)
    return photos[photo, rows[:, :, None], columns[:, None, :]]


def _strokes(ink, draws):
    """Scale digits (B, 8, 8) to a height of 22 to 30 pixels, turn and move them: (B, 32, 32), bilinear."""
    height = 22 + 8 * draws["height"]
    angle = 0.4 * (draws["angle"] - 0.5)  # radians
    room = (SIZE - height) / 2
    middle = (SIZE - 1) / 2
    y = (np.arange(SIZE) - middle - (room * (2 * draws["down"] - 1))[:, None])[:, :, None]
    x = (np.arange(SIZE) - middle - (room * (2 * draws["right"] - 1))[:, None])[:, None, :]
    cos, sin = (8 / height * part for part in (np.cos(angle), np.sin(angle)))
    cos, sin = cos[:, None, None], sin[:, None, None]
    framed = np.pad(ink, ((0, 0), (1, 2), (1, 2)))  # a margin, so that all neighbors are inside
    row = np.clip(cos * y - sin * x + 4.5, 0, 9).astype(np.float32)  # 4.5 is the middle of the frame's first 10
    column = np.clip(sin * y + cos * x + 4.5, 0, 9).astype(np.float32)
    i, j = row.astype(np.int32), column.astype(np.int32)
    v, u = row % 1, column % 1
    sample = np.arange(len(ink))[:, None, None]
    upper = (1 - u) * framed[sample, i, j] + u * framed[sample, i, j + 1]
    lower = (1 - u) * framed[sample, i + 1, j] + u * framed[sample, i + 1, j + 1]
    return (1 - v) * upper + v * lower


def _blend(pieces, strokes, draws):
    """Draw bright strokes of any color on darkened pieces: (B, 3, 32, 32)."""
    shade = (0.1 + 0.3 * draws["shade"]).astype(np.float32)[:, None, None, None]
    opacity = (0.8 + 0.2 * draws["opacity"]).astype(np.float32)[:, None, None, None]
    color = (150 + 105 * draws["color"]).astype(np.float32)[:, :, None, None]
    alpha = opacity * strokes[:, None]
    return np.rint((1 - alpha) * (shade * pieces.transpose(0, 3, 1, 2)) + alpha * color).astype(np.uint8)
