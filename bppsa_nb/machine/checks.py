"""How values are shown, and what arguments are checked for: errors name the argument, what came, what was expected."""

import math
import numbers
import os
from dataclasses import dataclass, field

import numpy as np

from bppsa_nb.machine.dispatch import implementation

_FEW = 4  # entries of which not all are shown
_LETTERS = 500  # letters of which not all are shown


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
        return text if len(text) <= _LETTERS else f"{text[:_LETTERS]}..."
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
    texts = list(texts) if count <= _FEW else [next(texts), next(texts), f"... {count} in all"]
    return ", ".join(texts)


FLOATS = np.dtype(np.float32), np.dtype(np.float64)
_MOST = 2**31 - 1  # what 32 bits hold, as the indices of sparse matrices do
_MANY = 2**20  # numbers that are not looked at one by one, for which a second array would be needed
_GENERATORS = np.random.Generator, np.random.BitGenerator, np.random.SeedSequence, np.random.RandomState
_SEED = "an integer of at least 0, several of them, or a numpy.random.Generator"
_SINGLE = {"K": "weight", "T": "step", "B": "sample"}


class Fixed:
    """Attributes named in `_fixed` are set once, or by `_fix`: compiled code relies on what they were checked for."""

    __slots__ = ()
    _fixed: tuple[str, ...] = ()

    def _fix(self, **attributes):
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name, value):
        if name in self._fixed and hasattr(self, name):
            kind = type(self).__name__
            raise AttributeError(f"{name} of this {kind} cannot be replaced; make another {kind}")
        object.__setattr__(self, name, value)


@dataclass(frozen=True, eq=False)
class Made:
    """What `forward` left for `backward`, made by a model of a kind: compiled code relies on shapes that fit it.

    What `dataclasses.replace` makes of it is made by no model.
    """

    made_by: tuple | None = field(default=None, init=False)

    def sign(self, kind):
        """Say what made it, and return it."""
        object.__setattr__(self, "made_by", kind)
        return self

    def check(self, kind, whose):
        """Raise ValueError unless it is what `forward` of a model of this kind returned."""
        if self.made_by != kind:
            how = ", made by hand or by dataclasses.replace" * (self.made_by is None)
            raise ValueError(f"activations must be what forward of {whose} returned, got {self}{how}")


def on_gpu(array):
    """Tell whether an array is in a GPU's memory: Numba's, CuPy's, PyTorch's, or of what stands in for one."""
    return hasattr(array, "__cuda_array_interface__") or hasattr(array, "copy_to_host")


def on_host(array):
    """Return what to check in place of an array on a GPU: one on the host with its shape and dtype, a single zero."""
    return np.broadcast_to(np.zeros((), array.dtype), array.shape) if on_gpu(array) else array


def as_array(name, value):
    """Return `value` as an array, or raise TypeError for a masked one, whose mask would be lost, or what makes none."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} must not be masked: say which entries to take, as in {name}[~{name}.mask].data")
    try:
        return np.asarray(value)
    except Exception as error:  # a PyTorch tensor that is not plain; lists of different lengths; an `__array__`'s own
        got = short_repr(value).removesuffix(f": {error}")  # which cannot be shown, either
        raise TypeError(f"{name} must be an array, got {got}: {error}") from error


def read_only(array):
    """View an array so that a caller's function that writes to it raises ValueError."""
    view = array.view()
    view.flags.writeable = False
    return view


def as_list(name, value, what):
    """Return `value` as a list, or raise TypeError for texts, sets, dicts, and what is none; `what` it should be."""
    try:
        if isinstance(value, (str, bytes, set, frozenset, dict)):
            raise TypeError
        entries = iter(value)
    except TypeError:
        raise TypeError(f"{name} must be {what}, got {short_repr(value)}") from None
    return list(entries)


def check_plain(name, array):
    """Raise TypeError unless `array` is a NumPy array, and none that gives operators another meaning."""
    if type(array) not in (np.ndarray, np.memmap):  # as masked arrays and matrices do
        raise TypeError(f"{name} must be a numpy.ndarray, got {type(array).__name__}")


def check_floats(name, array, *shapes):
    """Raise TypeError or ValueError unless `array` is of float32 or float64, with as many axes as one of the shapes."""
    if type(array) is not np.ndarray:
        check_plain(name, array)
    if array.dtype not in FLOATS:
        check_dtype(name, array.dtype)
    if shapes and array.ndim not in map(len, shapes):
        raise wrong_shape(name, array, *shapes)


def check_dtype(name, dtype, expected=None, of="grad_output"):
    """Raise TypeError for another dtype than float32 and float64, or than the one `of` another argument."""
    if dtype not in FLOATS:
        raise TypeError(f"{name} must be float32 or float64, got {dtype}")
    if expected is not None and dtype != expected:
        raise TypeError(f"{name} has dtype {dtype}, but {of} has {expected}: they must be the same")


def check_array(name, array, dtype, shape):
    """Raise TypeError or ValueError unless `array` has the dtype and the shape, where an axis's name fits any size."""
    if type(array) is not np.ndarray:
        check_plain(name, array)
    if array.dtype != dtype:
        raise TypeError(f"{name} must have the model's dtype {dtype}, got {array.dtype}")
    if array.shape != shape and (
        array.ndim != len(shape)
        or any(not isinstance(size, str) and size != found for found, size in zip(array.shape, shape, strict=True))
    ):
        raise wrong_shape(name, array, shape)


def wrong_shape(name, array, *shapes, expected=""):
    """Return a ValueError that says which shapes an array may have: sizes, and names of axes that may have any.

    If the array lacks an axis of weights, steps or samples, the error says how to give it one; `expected` says the
    shapes in other words.
    """
    expected = expected or " or ".join(str(shape).replace("'", "") for shape in shapes)
    single = []
    for shape in shapes if all(len(shape) > len(array.shape) for shape in shapes) else ():
        for place, axis in enumerate(shape if len(shape) == len(array.shape) + 1 else ()):
            others = zip((*shape[:place], *shape[place + 1 :]), array.shape, strict=True)
            if axis in _SINGLE and all(not str(size).isdecimal() or int(size) == found for size, found in others):
                single.append(f"one {_SINGLE[axis]} is {name}[{':, ' * place}None]")
    got = f"{tuple(array.shape) or short_repr(array.tolist())}{', which is empty' * (0 in array.shape)}"
    return ValueError("; ".join([f"{name} must have shape {expected}, got {got}", *single]))


def all_finite(array):
    """Tell whether an array of real numbers holds neither NaN nor infinity."""
    if array.size < _MANY:
        return bool(np.logical_and.reduce(np.isfinite(array), axis=None))
    with np.errstate(invalid="ignore"):  # extremes are NaN if anything is; unlike np.isfinite they need no memory
        return math.isfinite(array.min()) and math.isfinite(array.max())


def is_finite(array):
    """Tell whether an array, or a list of arrays, holds neither NaN nor infinity, on the host or on a GPU."""
    if isinstance(array, list):
        return all(map(is_finite, array))
    return implementation("bppsa_nb.machine.arrays", "cuda").all_finite(array) if on_gpu(array) else all_finite(array)


def why_lost(function, *given):
    """Call a function again that gave what is not finite; return what NumPy says: ": overflow encountered in exp"."""
    try:
        with np.errstate(all="raise", under="ignore"):
            function(*given)
    except FloatingPointError as error:
        return f": {error}"
    return ""


def check_finite(**arrays):
    """Raise ValueError at the first NaN or infinity, naming the array and the place."""
    for name, array in arrays.items():
        if not is_finite(array):
            array = array.copy_to_host() if on_gpu(array) else array
            index = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
            raise ValueError(f"{name} must be finite, got {array[index]} at {list(index)}")


def is_integer(value):
    """Tell whether `value` is an integer; True and False are none, nor is a time."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.timedelta64))


def is_number(value):
    """Tell whether `value` is a real number; True and False are none, nor is a time."""
    return isinstance(value, numbers.Real) and not isinstance(value, (bool, np.timedelta64))


def check_count(name, value, least=0, most=None, why=""):
    """Return `value` as an int, or raise TypeError or ValueError unless it is one from `least` to `most` (`why`)."""
    if not is_integer(value):
        raise TypeError(f"{name} must be an integer, got {short_repr(value)}")
    limit = _MOST if most is None else most
    if not least <= value <= limit:
        bounds = f"at least {least}" if value < least and most in (None, math.inf) else f"from {least} to {limit}"
        raise ValueError(f"{name} must be {bounds}{why}, got {value}")
    return int(value)


def as_float(name, value):
    """Return a real number as a float, infinite where it is too large for one, or raise TypeError."""
    if not is_number(value):
        raise TypeError(f"{name} must be a number, got {short_repr(value)}")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def check_choice(name, value, choices):
    """Raise ValueError unless `value` is one of a few texts."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {short_repr(value)}")


def check_flag(name, value):
    """Raise TypeError unless `value` is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False, got {short_repr(value)}")


def check_kind(name, value, kind, what, show=lambda value: type(value).__name__):
    """Raise TypeError unless `value` is of a kind; `what` says which, and `show` what came."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {what}, got {show(value)}")


def float_dtype(dtype, name="dtype"):
    """Return float32 or float64 as a `numpy.dtype`, or raise TypeError for everything else."""
    try:
        found = None if dtype is None else np.dtype(dtype)  # NumPy makes float64 of None
    except Exception as error:  # whatever NumPy makes of what is no dtype
        raise TypeError(f"{name} must be float32 or float64, got {short_repr(dtype)}") from error
    if found is None or found not in FLOATS:
        raise TypeError(f"{name} must be float32 or float64, got {found}")
    return found


def check_has(name, thing, attributes, example):
    """Raise TypeError unless `thing` is an object, and no class, that has these attributes, as `example` has."""
    if isinstance(thing, type):
        raise TypeError(f"{name} must be an object such as {example}, got the class {thing.__name__}")
    missing = [attribute for attribute in attributes if not hasattr(thing, attribute)]
    if missing:
        raise TypeError(f"{name} must be such as {example}, got {type(thing).__name__}, which has no {missing[0]!r}")


def generator(rng, name="rng"):
    """Return the numpy.random.Generator of a seed, or the one given; raise TypeError or ValueError that names it."""
    several = isinstance(rng, (list, tuple, range)) or (isinstance(rng, np.ndarray) and rng.ndim == 1)
    seeds = list(rng) if several else [rng]
    if rng is not None and not isinstance(rng, _GENERATORS) and not all(map(is_integer, seeds)):
        raise TypeError(f"{name} must be {_SEED}, got {short_repr(rng)}")
    try:
        return np.random.default_rng(rng)
    except ValueError as error:
        raise ValueError(f"{name} must be {_SEED}, got {short_repr(rng)}") from error
