"""How activations and gradients are compared: to the bit, by name, and with difference quotients."""

import numpy as np


def same(found, loop):
    """Tell whether activations have the loop's bits."""
    pairs = [(found.hidden, loop.hidden), (found.gates, loop.gates), (found.logits, loop.logits)]
    return all(one is other is None or np.array_equal(one, other) for one, other in pairs)


def assert_gradients(found, expected, tolerance=0):
    """Check names in order, shapes, dtypes, and numbers, relative to the largest of each array."""
    assert list(found) == list(expected)
    for name, grad in expected.items():
        assert found[name].shape == grad.shape and found[name].dtype == grad.dtype
        assert np.abs(found[name] - grad).max() <= tolerance * np.abs(grad).max(), name


def central_differences(loss, arrays, step=1e-6):
    """Return the gradient of a loss by each of some arrays, which it reads, and which change in place meanwhile."""
    found = {name: np.empty_like(array) for name, array in arrays.items()}
    for name, array in arrays.items():
        for index in np.ndindex(array.shape):
            kept, losses = array[index], []
            for sign in (1, -1):
                array[index] = kept + sign * step
                losses.append(loss())
            array[index] = kept
            found[name][index] = (losses[0] - losses[1]) / (2 * step)
    return found
