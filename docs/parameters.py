"""What a parameter takes, as its annotation and its default say, written behind its name in the book's docstrings.

In sources, docstrings leave it out: editors and `help` show the annotations themselves.
"""

import inspect
import re
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import numpy as np
from numpy.typing import ArrayLike

from bppsa_nb.machine import arguments

_NAMES = {np.ndarray: "np.ndarray", ArrayLike: "array_like", arguments.Array: "array", Callable: "callable", Any: ""}
_NAMES |= {arguments.Rng: "seed or np.random.Generator", arguments.Dtype: "float32 or float64"}
_NAMES |= {arguments.Path: "str or os.PathLike", np.random.Generator: "np.random.Generator"}
_NAMES |= {Mapping: "dict", Sequence: "sequence"}
_ARRAY = r"(float|floating|real|int|bool|any)\[(.*?)\]"


def setup(app):
    """Have Sphinx write what parameters take, before numpydoc reads the docstrings."""
    app.connect("autodoc-process-docstring", lambda app, what, name, thing, how, lines: write(thing, lines), 400)
    return {"parallel_read_safe": True}


def write(thing, lines):
    """Write what parameters take behind their names, in the lines of the docstring of a function or a class."""
    if not callable(thing) or "Parameters" not in lines:
        return
    parameters = inspect.signature(thing).parameters
    for i in range(lines.index("Parameters") + 2, len(lines)):
        if re.fullmatch("-{3,}", lines[i]):
            return
        names = lines[i].split(", ")
        if parameters.keys() >= {name.lstrip("*") for name in names}:
            texts = {name: takes(parameters[name.lstrip("*")]) for name in names}
            groups = {text: ", ".join(name for name in names if texts[name] == text) for text in texts.values()}
            said = "; ".join(text if len(groups) == 1 else f"{who}: {text}" for text, who in groups.items())
            lines[i] += f" : {said}" if said and len(groups) < 5 else ""


def takes(parameter):
    """Return what a parameter takes: ``"float >= 0, default 0.001"``."""
    kind, default = _text(parameter.annotation), parameter.default
    if default is parameter.empty or not kind:
        return kind
    shown = getattr(default, "__name__", repr(default).replace("'", '"'))
    return f"{kind}, optional" if default is None or len(shown) > 40 else f"{kind}, default {shown}"


def _text(kind):
    origin, inner = get_origin(kind), get_args(kind)
    if kind in _NAMES or kind is inspect.Parameter.empty or isinstance(kind, TypeVar):
        return _NAMES.get(kind, "")
    if origin is Annotated:
        own, said = _text(inner[0]), inner[1]
        if callable(said):
            return own
        if inner[0] in (int, float):
            return f"{own} {said.replace(', ', ' and ')}"
        shapes = re.sub(_ARRAY, _shape, said.replace("*", r"\*")).removesuffix(" | None")
        own = own or ("array" if re.match(_ARRAY, said) else "")
        return f"{own}{': ' if ' or ' in own else ' of '}{shapes}".replace(" of any", "") if own else shapes
    if origin is Literal:
        return str(list(inner)).translate(str.maketrans("[]'", '{}"'))
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_text(each) for each in inner if each is not types.NoneType))
    name = _NAMES.get(origin or kind, getattr(kind, "__name__", str(kind)))
    if origin in (list, tuple, Sequence):
        many = len(inner) == 1 or inner[-1] is ...
        return f"{name.lower()} of {_text(inner[0])}" if many else f"({', '.join(map(_text, inner))})"
    return f"{name} of {_text(inner[1])}".removesuffix(" of ") if origin in (dict, Mapping) else name


def _shape(found):
    """Return what an array holds and its shape, of ``float[T, B]``."""
    kind, axes = found.groups()
    return kind if axes == "..." else f"{kind} [shape=({axes if ', ' in axes else f'{axes},'})]"
