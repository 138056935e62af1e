"""What annotations of a call say that it takes: `bppsa_nb.machine.arguments` read a second time, without its code."""

import functools
import inspect
import math
import re
import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from bppsa_nb.machine.arguments import Array

ARRAYS = np.ndarray, ArrayLike, Array
KINDS = {"float": "f", "floating": "f", "real": "fiu", "int": "iu", "bool": "b", "any": "biufcOSUmMV"}


class Call:
    """A call, and good arguments for it."""

    def __init__(self, call, good):
        self.good, self.owner = good, getattr(call, "__self__", call)
        call = call.func if isinstance(call, functools.partial) else call
        call = call if inspect.isroutine(call) or isinstance(call, type) else type(call).__call__
        self.kinds = {name: each.annotation for name, each in inspect.signature(call).parameters.items()}

    def describes(self, argument):
        """Tell whether the annotation of an argument says what it takes, and not for readers only."""
        return _describes(self.kinds.get(argument, Any))

    def takes(self, argument, value):
        """Tell whether the annotation of an argument allows a value, the other arguments being good."""
        self.sizes, self.dtypes = [{}], []
        if isinstance(getattr(self.owner, "dtype", None), np.dtype):
            self.dtypes.append(self.owner.dtype)
        for name, kind in self.kinds.items():
            said, array = _said(kind), self.good.get(name)
            if said and name != argument and array is not None:
                array = np.asarray(array)
                self.dtypes += [array.dtype] * said.startswith("float[")
                self.sizes = [more for sizes in self.sizes for more in self.fitting(said, array.shape, sizes)] or [{}]
        return self.allows(self.kinds[argument], value)

    def allows(self, kind, value):
        origin, inner = get_origin(kind), get_args(kind)
        if kind in (Any, DTypeLike) or isinstance(kind, (TypeVar, str)):
            return True
        if origin is Annotated:
            kind, said = inner[:2]
            if kind in ARRAYS:
                return self.is_array(kind, said, value)
            if kind in (int, float) and not callable(said):
                return self.allows(kind, value) and self.is_within(said, value)
            return self.allows(kind, value) if callable(said) else True
        if origin is Literal:
            return isinstance(value, str) and value in inner
        if origin in (Union, types.UnionType):
            return any(self.allows(each, value) for each in inner)
        if origin in (tuple, Sequence):
            if isinstance(value, (str, bytes, set, dict)) or not hasattr(value, "__iter__") or np.shape(value) == ():
                return False
            kinds = inner[:1] * len(value) if len(inner) == 1 or inner[-1] is ... else inner
            return len(kinds) == len(value) and all(map(self.allows, kinds, value))
        if origin is Mapping or origin is dict:
            return isinstance(value, dict) and all(self.allows(inner[1], each) for each in value.values())
        if kind in (int, float):
            whole = isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.timedelta64))
            return whole or (kind is float and isinstance(value, (float, np.floating)) and math.isfinite(value))
        if kind is bool:
            return isinstance(value, (bool, np.bool_))
        return type(value) is np.ndarray if kind is np.ndarray else isinstance(value, origin or kind)

    def is_within(self, said, value):
        for sign, limit in re.findall(r"([<>]=?) *([\w.-]+)", said):
            limit = self.look_up(limit) if limit[0].isalpha() else float(limit)
            within = {">=": value >= limit, ">": value > limit, "<=": value <= limit, "<": value < limit}
            if not within[sign]:
                return False
        return True

    def look_up(self, name):
        first, *others = name.split(".")
        found = self.good[first] if first in self.good else getattr(self.owner, first)
        return functools.reduce(getattr, others, found)

    def is_array(self, kind, said, value):
        if kind is ArrayLike and not isinstance(value, np.ma.MaskedArray):
            try:
                value = np.asarray(value)
            except (ValueError, RuntimeError):
                return False
        numbers = said.split("[")[0]
        if type(value) is not np.ndarray or (value.dtype.kind not in KINDS[numbers] and value.size):
            return False
        alike = self.dtypes or [np.dtype(np.float32), np.dtype(np.float64)]
        if numbers == "float" and (value.dtype not in alike or len({*self.dtypes}) > 1):
            return False
        return any(self.fitting(said, value.shape, sizes) for sizes in self.sizes)

    def fitting(self, said, shape, sizes):
        """List what a shape says of sizes, more than is known, for each of the shapes of a description that it has."""
        every = [self.match(axes, shape, dict(sizes)) for axes in re.findall(r"\[(.*?)\]", said)]
        return [found for found in every if found is not None]

    def match(self, axes, shape, sizes):
        axes = [self.look_up(axis[1:]) if axis[0] == "*" else [axis] for axis in axes.split(", ")] if axes else []
        axes = [str(axis) for part in axes for axis in part]
        if axes[-1:] == ["..."]:
            axes, shape = axes[:-1], shape[: len(axes) - 1]
        for axis, size in zip(axes, shape, strict=len(axes) == len(shape)):
            base, _, more = axis.partition(" + ")
            size -= int(more or 0)
            if base.isdecimal():
                expected = int(base)
            elif len(base) > 1 and (base.split(".")[0] in self.good or hasattr(self.owner, base.split(".")[0])):
                expected = self.look_up(base)
            else:
                expected = sizes.setdefault(base, size) if size >= (base not in "TKn") else None
            if size != expected:
                return None
        return sizes if len(axes) == len(shape) else None


def _describes(kind):
    if get_origin(kind) in (Union, types.UnionType):
        return all(map(_describes, get_args(kind)))
    kind, said = get_args(kind)[:2] if get_origin(kind) is Annotated else (kind, None)
    if kind in (inspect.Parameter.empty, Any) or isinstance(kind, TypeVar):
        return False
    return said is None or callable(said) or kind in (int, float, *ARRAYS)


def _said(kind):
    """Return what an annotation says of an array, "" if nothing."""
    if get_origin(kind) in (Union, types.UnionType):
        return "".join(map(_said, get_args(kind)))
    return get_args(kind)[1] if get_origin(kind) is Annotated and get_args(kind)[0] in ARRAYS else ""
