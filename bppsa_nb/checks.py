"""What models check of the arrays they are given."""

import numpy as np


def check_array(name, array, dtype, shape):
    """Raise TypeError or ValueError unless `array` has the dtype and the shape, where None fits any size."""
    if type(array) not in (np.ndarray, np.memmap):
        raise TypeError(f"{name} must be a numpy.ndarray, got {type(array).__name__}")
    if array.dtype != dtype:
        raise TypeError(f"{name} must have the model's dtype {dtype}, got {array.dtype}")
    if array.ndim != len(shape) or any(b not in (None, a) for a, b in zip(array.shape, shape, strict=True)):
        expected = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} must have shape ({expected}), got {array.shape}")


def check_finite(**arrays):
    """Raise ValueError at the first NaN or infinity, naming the array and the place."""
    for name, array in arrays.items():
        finite = np.isfinite(array)
        if not finite.all():
            index = tuple(int(i) for i in np.argwhere(~finite)[0])
            raise ValueError(f"{name} must be finite, got {array[index]} at {list(index)}")


def check_params(params, dtype, shapes):
    """Raise unless `params` holds an array of every name's shape, in the model's dtype."""
    for name, shape in shapes.items():
        if name not in params:
            raise ValueError(f"params must have an entry {name!r}, got {sorted(params)}")
        check_array(f"params[{name!r}]", params[name], dtype, shape)
