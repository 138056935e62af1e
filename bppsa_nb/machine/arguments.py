"""Arguments of public calls, described once: by annotations, which editors complete by, and `checked` checks by.

=============================================  =========================================================================
annotation                                     what is taken
=============================================  =========================================================================
``Annotated[np.ndarray, "float[T, B, I]"]``    an array of floats (32 or 64 bits, as all others and the object itself),
                                               floating, real, int, bool, any. A letter is one size everywhere, from 1;
                                               T (steps), K (weights) and n may be 0. A longer name is an
                                               argument or an attribute, as ``pattern.nnz``, or ``*input_shape``, a
                                               shape; ``...`` is any axes. There may be sums, ``T + 1``, and
                                               alternatives, ``float[B] or float[B, n]``.
``Annotated[ArrayLike, "int[B]"]``             the same, or what NumPy makes an array of
``Annotated[Array, "float[T, B, I]"]``         the same, or an array on a GPU, of any library
``Annotated[int, ">= 1, < num_layers"]``       a number within bounds; of 32 bits, or finite
``Literal[...]``, ``bool``, ``str``, a class   one of these; ``X | None`` takes None, too, ``X | Steps`` an integer
``Sequence[X]``, ``tuple[X, Y]``               each entry is checked; so is each value of ``Mapping[str, X]``
``Annotated[X, function]``                     what ``function(value, name)`` returns
=============================================  =========================================================================
"""

import functools
import inspect
import math
import operator
import os
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol, TypeVar, Union, get_args, get_origin

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from bppsa_nb.machine import checks
from bppsa_nb.machine.checks import short_repr
from bppsa_nb.machine.files import check_path
from bppsa_nb.machine.process import over_ranks


class Array(Protocol):
    """An array of NumPy or of another library, on the host or on a GPU."""

    @property
    def shape(self) -> tuple[int, ...]: ...  # noqa: D102

    @property
    def dtype(self) -> Any: ...  # noqa: D102


Backend = Literal["auto", "numpy", "cpu", "cuda"]
Method = Literal["auto", "linear", "blelloch", "truncated", "chunked"]
Count = Annotated[int, ">= 0"]
Size = Annotated[int, ">= 1"]
Steps = Annotated[int, ">= 0", "instead of an array"]
Rng = Annotated[int | Sequence[int] | np.random.Generator | None, checks.generator]
Dtype = Annotated[DTypeLike, checks.float_dtype]
Path = Annotated[str | os.PathLike[str], check_path]
Comm = Annotated[Any, "mpi4py.MPI.Intracomm | None"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_SIGNS = {">=": ("at least", operator.ge), ">": ("above", operator.gt)}
_SIGNS |= {"<=": ("at most", operator.le), "<": ("below", operator.lt)}
_EMPTY = "TKn"  # axes without which there is nothing to compute, but a right answer
_ALONE = (), (), {}  # names and arguments of a call, where an argument is looked at without one
_MOST = 2**31 - 1  # what 32 bits hold, as the indices of sparse matrices do
# Kinds of numbers that arrays hold: letters of NumPy, and what they must do.
_KINDS = {"float": ("f", "be float32 or float64"), "floating": ("f", "be floating point")}
_KINDS |= {"real": ("fiu", "hold real numbers")}
_KINDS |= {"int": ("iu", "hold integers"), "bool": ("b", "hold True and False"), "any": ("biufcOSUmMV", "")}


def checked(function: _Function) -> _Function:
    """Decorate a function, or a class (its `__init__`): check each argument by its annotation, then call the function.

    Numbers become Python's int and float, sequences tuples, an `Rng` a NumPy generator. An argument without annotation,
    or that is the default itself, is not checked. If the call has a communicator (an argument `comm` or ``self.comm``),
    an error on one rank is an error on all. A TypeError or ValueError names the argument, and says what came and what
    was expected.
    """
    if isinstance(function, type):
        function.__init__ = checked(function.__init__)
        return function
    parameters = inspect.signature(function).parameters
    names = [name for name, each in parameters.items() if each.kind is each.POSITIONAL_OR_KEYWORD]
    looks = {name: (look_of(each.annotation), each.default) for name, each in parameters.items()}
    looks = {name: look for name, look in looks.items() if look[0] is not None}
    in_order = [(place, name, *looks[name]) for place, name in enumerate(names) if name in looks]
    owned, shared = names[:1] == ["self"], "comm" in parameters
    place_of_comm = names.index("comm") if "comm" in names else len(names)

    def look_at(args, kwargs):
        known = {"": (names, args, kwargs)}
        if in_order and args:
            args = list(args)
            for place, name, look, default in in_order:
                if place >= len(args):
                    break
                if args[place] is not default:
                    args[place] = look(name, args[place], known)
        for name in looks if kwargs else ():  # in this order, whatever the caller's
            if name in kwargs:
                look, default = looks[name]
                if kwargs[name] is not default:
                    kwargs[name] = look(name, kwargs[name], known)
        return args

    @functools.wraps(function)
    def call(*args, **kwargs):
        comm = None
        if shared:
            comm = args[place_of_comm] if len(args) > place_of_comm else kwargs.get("comm")
        elif owned and args:
            comm = getattr(args[0], "comm", None)
        if comm is None:
            args = look_at(args, kwargs)
        else:
            with over_ranks("ranks").group(comm).collective_check():
                args = look_at(args, kwargs)
        return function(*args, **kwargs)

    return call


@functools.cache
def look_of(kind):
    """Return what checks a value of an annotation and returns it, ``look(name, value, known)``; None for any value.

    `known` is a dict of what is known of the call: sizes by letter, "dtype" of its arrays, "" its names and arguments.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        kind, said = arguments[:2]
        if callable(said):
            return lambda name, value, known: said(value, name)
        if kind in (int, float):
            return _number(kind, said)
        return _array(kind, said) if kind in (np.ndarray, ArrayLike, Array) else None  # said for readers only
    if origin is Literal:
        return _choice(arguments)
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if origin is tuple and arguments[-1] is not ...:
        return _entries(arguments, len(arguments))
    if origin in (list, tuple, Sequence):
        return _entries(arguments[:1], None)
    if origin in (dict, Mapping):
        return _values(arguments[1])
    if kind in (int, float):
        return _number(kind, "")
    if kind is bool:
        return lambda name, value, known: checks.check_flag(name, value) or bool(value)
    if kind is np.ndarray:
        return lambda name, value, known: checks.check_plain(name, value) or value
    kind = origin or kind
    return _instance((kind,)) if isinstance(kind, type) and kind not in (object, Any, inspect.Parameter.empty) else None


def _choice(choices):
    def look(name, value, known):
        if type(value) is not str or value not in choices:
            checks.check_choice(name, value, choices)
        return value

    return look


def _union(kinds):
    """Look at a value of several kinds: an instance of a class is taken, any other is looked at as described first."""
    kinds = [os.PathLike if get_origin(kind) is os.PathLike else kind for kind in kinds]
    plain = tuple(kind for kind in kinds if isinstance(kind, type) and kind not in (int, float, bool, np.ndarray))
    others = [look for kind in kinds if kind not in plain and (look := look_of(kind))]
    count = look_of(Steps) if Steps in kinds else None

    def look(name, value, known):
        if isinstance(value, plain):
            return value
        if count is not None and checks.is_integer(value):
            return count(name, value, known)
        try:
            return others[0](name, value, known)
        except (TypeError, ValueError) as error:
            said = str(error)
            if count is not None:
                error.args = (said.replace(", got", ", or be a number of steps, got", 1),)
            elif types.NoneType in plain and isinstance(error, TypeError) and said.startswith(f"{name} must be"):
                error.args = (said.replace(", got", " or None, got", 1),)
            raise

    return look if others else _instance(plain)


def _instance(kinds):
    shown = " or ".join("None" if kind is types.NoneType else _named(kind) for kind in kinds)

    def look(name, value, known):
        if not isinstance(value, kinds) or (Callable in kinds and isinstance(value, type)):
            alike = kinds[0].__name__ == type(value).__name__  # of another room
            expected, got = map(_named, (kinds[0], type(value)), (True, True)) if alike else (shown, short_repr(value))
            raise TypeError(f"{name} must be {expected}, got {got}")
        return value

    return look


def _named(kind, room_too=False):
    """Name a class as its users do, with an article: a schedule.Network, an SGD."""
    word = {Callable: "function", str: "text"}.get(kind, kind.__name__)
    room = (*kind.__module__.split("."), "")[1]
    if room_too or word in getattr(sys.modules.get(f"bppsa_nb.{room}"), "__all__", ()):
        word = f"{room}.{word}"
    return f"{'an' if word[0] in ('AEFHILMNORSX' if word[:2].isupper() else 'AEIOU') else 'a'} {word}"


def _number(kind, text):
    limits = re.findall(r"([<>]=?) *([\w.-]+)", text)
    if kind is int and "<" not in text:
        limits.append(("<=", str(_MOST)))
    plain = not any(limit[0].isalpha() for _, limit in limits)  # as nearly all are, and most values right
    fixed = [(_SIGNS[sign][1], _limit(limit, {})) for sign, limit in limits if plain]
    fixed += [(operator.lt, math.inf), (operator.gt, -math.inf)] * (kind is float)

    def look(name, value, known):
        if plain and type(value) is kind:
            for compare, bound in fixed:
                if not compare(value, bound):
                    break
            else:
                return value
        if kind is int and not checks.is_integer(value):
            raise TypeError(f"{name} must be an integer, got {short_repr(value)}")
        number = int(value) if kind is int else checks.as_float(name, value)
        bounds = [(sign, limit, _limit(limit, known)) for sign, limit in limits]
        bounds = [each for each in bounds if each[2] is not None]  # of what is missing, as Python will say
        right = kind is int or math.isfinite(number)
        if right and all(_SIGNS[sign][1](number, bound) for sign, _, bound in bounds):
            return number
        said = ["finite"] * (not right and "<" not in text)
        for sign, limit, bound in bounds:
            if bound is not _MOST or number > bound:
                said.append(f"{_SIGNS[sign][0]} {f'{limit} = ' * limit[0].isalpha()}{bound}")
        said = re.sub("^at least (.*) and at most", r"from \1 to", " and ".join(said))
        raise ValueError(f"{name} must be {said}, got {short_repr(value)}")

    return look


def _limit(text, known):
    if text == str(_MOST):
        return _MOST
    return _looked_up(text, known) if text[0].isalpha() else float(text) if "." in text else int(text)


def _looked_up(name, known):
    """Return the number that is an argument, or an attribute of the object; None if it is neither."""
    names, args, kwargs = known.get("", _ALONE)
    first, *rest = name.split(".")
    if first in kwargs:
        found = kwargs[first]
    elif first in names[: len(args)]:
        found = args[names.index(first)]
    else:
        found = getattr(_owner(names, args, kwargs), first, None)
    for each in rest:
        found = getattr(found, each, None)
    return found


def _owner(names, args, kwargs):
    """Return the object whose method is called, None for a function."""
    return (args[0] if args else kwargs.get("self")) if names[:1] == ["self"] else None


def _entries(kinds, count):
    """Look at a sequence: of `count` entries, each of its kind, or of any number, of one kind."""
    looks, what = [look_of(kind) for kind in kinds], "a sequence" + f" of {count} entries" * (count is not None)
    if count is None and isinstance(kinds[0], type):
        what += f" of {'text' if kinds[0] is str else kinds[0].__name__}s"

    def look(name, values, known):
        found = checks.as_list(name, values, what)
        if count not in (None, len(found)):
            raise ValueError(f"{name} must be {what}, got {short_repr(values)}")
        every = enumerate(zip(found, looks * len(found) if count is None else looks, strict=True))
        return tuple(each if look is None else look(f"{name}[{i}]", each, known) for i, (each, look) in every)

    return look


def _values(kind):
    each, what = look_of(kind), "a dict" + " of arrays" * (np.ndarray in (kind, *get_args(kind)[:1]))

    def look(name, values, known):
        checks.check_kind(name, values, Mapping, what)
        for key in values if each is not None else ():
            each(f"{name}[{key!r}]", values[key], known)
        return values

    return look


def _array(kind, text):
    """Look at an array: at its kind of numbers, and whether it has one of several shapes."""
    said = [re.fullmatch(r"(\w+)\[(.*)\]", one).groups() for one in text.split(" or ")]
    kind_of, starred = said[0][0], "*" in text
    shapes = [axes.split(", ") if axes else [] for _, axes in said]

    def look(name, array, known):
        seen = given = array
        if type(array) is not np.ndarray:
            if kind is Array and checks.on_gpu(array):
                seen = checks.on_host(array)
            elif kind is ArrayLike:
                array = seen = checks.as_array(name, array)
            else:
                checks.check_plain(name, array)
        if kind is ArrayLike and not seen.size and kind_of in ("int", "bool"):  # NumPy makes floats of an empty list
            array = seen = seen.astype(kind_of)
        if seen.dtype is not known.get("dtype") or kind_of != "float":
            _check_numbers(name, seen.dtype, kind_of, known, given)
        shape = seen.shape
        every = [_spread(axes, known) for axes in shapes] if starred else shapes
        if starred and None in every:  # a shape of what is missing, as Python will say
            return array
        for axes in every:
            if _fits(axes, shape, known):
                known[name, ""] = axes
                return array
        raise _wrong_shape(name, seen, every, known)

    return look


def _spread(axes, known):
    """Return axes with the sizes that ``*shape`` stands for in its place."""
    parts = [_looked_up(axis[1:], known) if axis[0] == "*" else [axis] for axis in axes]
    return None if None in parts else [str(axis) for part in parts for axis in part]


def _check_numbers(name, dtype, kind, known, given):
    """Raise TypeError unless an array's numbers are of a kind, floats those of the object or of the first array."""
    letters, must = _KINDS[kind]
    if dtype.kind not in letters or (kind == "float" and dtype not in checks.FLOATS):
        raise TypeError(f"{name} must {must}, got {dtype if hasattr(given, 'dtype') else short_repr(given)}")
    if kind == "float" and "dtype" not in known:
        own = _owner(*known.get("", _ALONE))
        fixed = getattr(own, "dtype", None)
        known["dtype"], known["of"] = (dtype, name) if fixed is None else (fixed, f"the {type(own).__name__}")
    if kind == "float" and dtype != known["dtype"]:
        raise TypeError(f"{name} must have dtype {known['dtype']}, as {known['of']} has, got {dtype}")


def _fits(axes, shape, known):
    """Tell whether a shape has these axes; if it has, it says the sizes of letters that were not known."""
    if len(axes) != len(shape) or axes[-1:] == ["..."]:
        if axes[-1:] != ["..."] or len(shape) < len(axes) - 1:
            return False
        axes = axes[:-1]
    before = len(known)
    for axis, size in zip(axes, shape):  # noqa: B905  those that are said
        name, expected, more = axis, known.get(axis), 0
        if expected is None and (len(axis) > 1 or axis.isdecimal()):
            name, expected, more = _size(axis, known)
        if expected is None and size - more >= (name not in _EMPTY):
            known[name] = expected = size - more
        if expected is None or size != expected + more:
            while len(known) > before:
                known.popitem()
            return False
    return True


def _size(axis, known):
    """Return the name of an axis, the size that the name stands for, None if it is not known yet, and what is added."""
    name, _, more = axis.partition(" + ")
    if name.isdecimal():
        return name, int(name), 0
    size = known.get(name)
    return name, _looked_up(name, known) if size is None and len(name) > 1 else size, int(more or 0)


def _wrong_shape(name, array, shapes, known):
    """Return a ValueError that says which shapes an array may have: names of axes, and their sizes where known."""
    said, letters = [], set()
    for axes in shapes:
        sizes = [_size(axis, known) for axis in axes]
        letters |= {base for base, *_ in sizes}
        found = [axis if size is None else str(size + more) for axis, (_, size, more) in zip(axes, sizes, strict=True)]
        named, found = (f"({', '.join(each)}{',' * (len(each) == 1)})" for each in (axes, found))
        said.append(named if named == found else f"{named} = {found}")
    seen = [(each[0], {axis[0] for axis in known[each]}) for each in known if isinstance(each, tuple)]
    first = [next((other for other, axes in seen if letter in axes), None) for letter in sorted(letters)]
    others = [other for other in dict.fromkeys(first) if other]
    expected = " or ".join(said) + f" to fit {' and '.join(others)}" * bool(others)
    return checks.wrong_shape(name, array, *map(tuple, shapes), expected=expected)
