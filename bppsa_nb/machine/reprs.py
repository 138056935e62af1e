"""How objects show themselves: in a notebook's last line, in a debugger, in an error."""

import os

import numpy as np

_MANY = 4  # entries of which not all are shown
_LONG = 500  # letters of which not all are shown


def repr_of(thing, *names, **more):
    """Return ``Kind(name=value, ...)``, for a `__repr__`: attributes by name, and what else there is to say.

    Attributes that are not there yet are left out, as a debugger may ask in the middle of `__init__`. Arrays are shown
    by dtype and shape, and of many things the first two.
    """
    parts = {name.lstrip("_"): getattr(thing, name) for name in names if hasattr(thing, name)} | more
    return f"{type(thing).__name__}({', '.join(f'{name}={short_repr(value)}' for name, value in parts.items())})"


def with_repr(*names):
    """Decorate a class: its `__repr__` is `repr_of` with these attributes."""

    def decorate(kind):
        kind.__repr__ = lambda self: repr_of(self, *names)
        return kind

    return decorate


def short_repr(value):
    """Return one line that says what a value is: its repr, but of arrays dtype and shape, and of many things two."""
    try:
        text = _shown(value)
        return text if len(text) <= _LONG else f"{text[:_LONG]}..."
    except Exception as error:  # JAX's, of an array that was deleted; of what only looks like an array
        return f"{type(value).__name__}: {error}"


def _shown(value):
    if isinstance(value, type):
        return repr(value)
    if hasattr(value, "nnz") and hasattr(value, "data"):  # SciPy's sparse arrays
        return f"{value.dtype}{list(value.shape)} with {value.nnz} entries"
    if hasattr(value, "strides") and hasattr(value, "dtype"):  # arrays, on a device too
        if not isinstance(value, np.generic):
            return f"{value.dtype}{list(value.shape)}"
        return str(value) if isinstance(value, (np.number, np.bool_)) else repr(value)
    if isinstance(value, np.dtype):
        return value.name
    if isinstance(value, os.PathLike):
        return repr(os.fspath(value))
    if type(value) in (list, tuple):
        text = _some(map(short_repr, value), len(value))
        return f"[{text}]" if type(value) is list else f"({text},)" if len(value) == 1 else f"({text})"
    if type(value) is dict:
        return f"{{{_some((f'{key!r}: {short_repr(entry)}' for key, entry in value.items()), len(value))}}}"
    return repr(value)


def _some(texts, count):
    texts = list(texts) if count <= _MANY else [next(texts), next(texts), f"... {count} in all"]
    return ", ".join(texts)
