"""Random chains of operators of every kind."""

import numpy as np

from bppsa_nb.sparse import AvgPool2d, Conv2d, Flatten, Linear, MaxPool2d, Network, ReLU, Sigmoid, Tanh


def random_network(rng, linears=4, convolutions=2, free_start=None, free_end=None, dtype=np.float64):
    """Convolutions, then linear operators, none or several operators without parameters between them.

    `free_start` and `free_end` say whether it begins and ends with some; by default, chance does.
    """
    rng = np.random.default_rng(rng)
    operators, names = [], iter(range(1000))
    shape = (2, 7, 6)

    def add(operator):
        nonlocal shape
        operators.append(operator)
        shape = operator.output_shape(shape)

    def some_free(least=0):
        for _ in range(least or rng.integers(3)):
            add(rng.choice([ReLU, Tanh, Sigmoid])(f"act{next(names)}"))
        if len(shape) == 3 and min(shape[1:]) > 2 and rng.random() < 0.5:
            add(rng.choice([AvgPool2d, MaxPool2d])(f"pool{next(names)}", 2, int(rng.integers(1, 3))))

    if free_start or (free_start is None and rng.random() < 0.5):
        some_free(1)
    for _ in range(convolutions):
        add(Conv2d(f"conv{next(names)}", shape[0], int(rng.integers(1, 4)), 3, padding=1))
        some_free()
    add(Flatten("flatten"))
    for _ in range(linears):
        add(Linear(f"fc{next(names)}", shape[0], int(rng.integers(3, 8))))
        some_free()
    add(Linear("last", shape[0], 4))
    if free_end or (free_end is None and rng.random() < 0.5):
        some_free(1)
    return Network((2, 7, 6), operators, rng=rng, dtype=dtype)


def random_batch(network, size, rng):
    """Images and labels."""
    rng = np.random.default_rng(rng)
    x = rng.standard_normal((size, *network.shapes[0])).astype(network.dtype)
    return x, rng.integers(network.shapes[-1][0], size=size)
