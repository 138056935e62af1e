"""The pruned VGG-11 of Section 5.3, and the products of a truncated scan over it."""

import numpy as np

from bppsa_nb.scan.trace import span_label, trace
from bppsa_nb.sparse import VGG11, prune
from bppsa_nb.training.datasets.images import Images

RATE, LEVELS = 0.97, 2


def operators():
    """Name the operators that the scan covers, from the image on: "conv1", "relu1", "pool1" ..."""
    words, numbers, names = {"Conv2d": "conv", "ReLU": "relu", "MaxPool2d": "pool"}, {}, []
    for operator in VGG11().linked(from_input=True):
        word = words[type(operator).__name__]
        numbers[word] = numbers.get(word, 0) + 1
        names.append(f"{word}{numbers[word]}")
    return names


def pruned(rng):
    """Make a VGG-11 whose initial weights are pruned: the same share of each layer."""
    network = VGG11(rng)
    network.masks = prune(network.params, RATE, "class_uniform")
    return network


def on_an_image(rng):
    """Make a pruned VGG-11, and let it see an image: network, the image's data set, activations, links."""
    seed = np.random.default_rng(rng).integers(2**32, size=2)
    network, images = pruned(seed[0]), Images(rng=seed[1], num_samples=1)
    activations = network.forward(images.batch([0])[0])
    return network, images, activations, network.links(activations, from_input=True)


def without_zeros(matrix):
    """Copy a scipy.sparse matrix, but for the zeros that it stores."""
    matrix = matrix.copy()
    matrix.eliminate_zeros()
    return matrix


def products(patterns, levels):
    """Trace a truncated scan over a chain's patterns, from the image to the loss; list its products, a row each.

    `left` and `right` are positions that went into the operands; `dense` multiply-adds with dense matrices.
    """
    run = trace(len(patterns), "truncated", levels)
    sizes = [patterns[-1].shape[1], *(pattern.shape[0] for pattern in reversed(patterns))]  # of x_n ... x_0
    rows = []
    for number, level in enumerate(run.levels, 1):
        for product in level.products:
            a, b = product.parents  # a stands closer to the loss: the product is b @ a
            dense = sizes[b.span[1]] * sizes[a.span[1]] * (sizes[a.span[0] - 1] if a.kind == "matrix" else 1)
            row = {"level": number, "phase": level.level.phase, "d": level.level.d, "kind": product.product}
            rows.append(row | {"left": span_label(a), "right": span_label(b), "dense": dense})
    return run, rows
