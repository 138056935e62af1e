"""What models check of the arrays they are given."""

import math

import numpy as np

_SINGLE = {"K": "weight", "T": "step", "B": "sample"}


def check_array(name, array, dtype, shape):
    """Raise TypeError or ValueError unless `array` has the dtype and the shape, where an axis's name fits any size."""
    if type(array) not in (np.ndarray, np.memmap):
        raise TypeError(f"{name} must be a numpy.ndarray, got {type(array).__name__}")
    if array.dtype != dtype:
        raise TypeError(f"{name} must have the model's dtype {dtype}, got {array.dtype}")
    if array.ndim != len(shape) or any(
        not isinstance(size, str) and size != found for found, size in zip(array.shape, shape, strict=True)
    ):
        raise wrong_shape(name, array, shape)


def wrong_shape(name, array, *shapes):
    """Return a ValueError that says which shapes an array may have.

    Parameters
    ----------
    name : str
    array : array
        With `shape`.
    *shapes : tuple of int or str
        Sizes, and names of axes that may have any. If the array lacks an axis of weights, steps or samples, the error
        says how to give it one.
    """
    expected = " or ".join(str(shape).replace("'", "") for shape in shapes)
    single = [
        f"one {_SINGLE[axis]} is {name}[{':, ' * place}None]"
        for shape in shapes
        for place, axis in enumerate(shape)
        if axis in _SINGLE and len(shape) == len(array.shape) + 1
    ]
    return ValueError("; ".join([f"{name} must have shape {expected}, got {tuple(array.shape)}", *single]))


def check_finite(**arrays):
    """Raise ValueError at the first NaN or infinity, naming the array and the place."""
    for name, array in arrays.items():
        if not all_finite(array):
            index = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
            raise ValueError(f"{name} must be finite, got {array[index]} at {list(index)}")


def all_finite(array):
    """Tell whether an array of real numbers holds neither NaN nor infinity."""
    # A finite sum of squares has finite terms only, and is quickly found; others may be of large ones.
    return math.isfinite(np.vdot(array, array)) or bool(np.isfinite(array).all())


def check_params(params, dtype, shapes):
    """Raise unless `params` holds an array of every name's shape, in the model's dtype."""
    for name, shape in shapes.items():
        if name not in params:
            raise ValueError(f"params must have an entry {name!r}, got {sorted(params)}")
        check_array(f"params[{name!r}]", params[name], dtype, shape)


def check_count(name, value, least=0):
    """Raise TypeError or ValueError unless `value` is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def check_has(name, thing, attributes, example):
    """Raise TypeError unless `thing` is an object, and no class, that has these attributes, as `example` has."""
    if isinstance(thing, type):
        raise TypeError(f"{name} must be an object such as {example}, got the class {thing.__name__}")
    missing = [attribute for attribute in attributes if not hasattr(thing, attribute)]
    if missing:
        raise TypeError(f"{name} must be such as {example}, got {type(thing).__name__}, which has no {missing[0]!r}")


def generator(rng, name="rng"):
    """Return the numpy.random.Generator of a seed, or the one given; raise TypeError or ValueError that names it."""
    try:
        return np.random.default_rng(rng)
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"{name} must be an integer of at least 0, several of them, or a numpy.random.Generator, got {rng!r}"
        ) from error


def floating(dtype):
    """Return float32 or float64 as a numpy.dtype, or raise TypeError."""
    try:
        found = None if dtype is None else np.dtype(dtype)  # NumPy takes None for float64
    except TypeError:
        found = None
    if found not in (np.float32, np.float64):
        raise TypeError(f"dtype must be float32 or float64, got {dtype if found is None else found}")
    return found
