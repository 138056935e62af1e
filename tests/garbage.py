"""What a hostile user passes, one argument at a time, and the good calls of everything public, of `garbage.toml`."""

import functools
import pathlib
import pkgutil
import re
import tomllib

import numpy as np
from scipy import sparse as scipy_sparse

from bppsa_nb import graphs, sparse


def numbers(*shape):
    return np.random.default_rng(0).uniform(-0.5, 0.5, shape).astype(np.float32)


# What no argument takes for good. Those below may be good for some.
NEVER = {"object": object(), "class": int, "function": lambda *arguments: None, "module": np, "bytes": b"x"}
NEVER |= {"complex": 1j, "list of None": [None], "ragged": [[1, 2], [3]], "objects": np.array([None, "x"], object)}
NEVER |= {"text": np.array(["a", "b"]), "dates": np.array(["2020-01-01"], "M8[D]")}
NEVER |= {"records": np.zeros(2, [("a", float)]), "NaN": float("nan"), "mixed": (1.5, "x"), "dict": {"a": 1}}
NEVER |= {"duration": np.timedelta64(1, "s")}
PERHAPS = {"None": None, "True": True, "-1": -1, "0": 0, "1": 1, "2**70": 2**70, "1.5": 1.5, "infinity": float("inf")}
PERHAPS |= {"empty text": "", "nonsense": "nonsense", "path": pathlib.Path("nowhere/at/all"), "empty list": []}
PERHAPS |= {"numbers": (1, 2), "set": set(), "NumPy's int": np.int64(3), "NumPy's float": np.float32(2)}
PERHAPS |= {"NumPy's text": np.str_("x"), "no numbers": np.zeros(0), "0-d": np.zeros(()), "1-d": np.ones(3)}
PERHAPS |= {"2-d": np.ones((2, 3)), "4-d": np.ones((2, 2, 2, 2), np.float32)}
PERHAPS |= {"sparse": scipy_sparse.csr_array(np.eye(3))}
SAME = {"read-only", "in Fortran's order", "strided"}  # the same numbers: the same result


def twisted(value):
    """Yield a good argument with something wrong about it, and what that is."""
    if isinstance(value, np.ndarray):
        yield from _twisted_array(value)
    elif isinstance(value, (list, tuple)) and value and not any(hasattr(each, "_fields") for each in (value, value[0])):
        kind = type(value)
        yield "without the last", value[:-1]
        yield "one more", value + value[:1]
        yield "None for the first", kind([None, *value[1:]])
        yield "nested", kind([value])
        yield "all -1", kind([-1] * len(value))
        yield "all NaN", kind([float("nan")] * len(value))
        yield from ((f"first {what}", kind([first, *value[1:]])) for what, first in twisted(value[0]))
    elif isinstance(value, dict) and value:
        key = next(iter(value))
        yield "an entry missing", {other: entry for other, entry in value.items() if other != key}
        yield "an entry more", value | {"more": value[key]}
        yield "a number for a name", value | {3: value[key]}
        yield from ((f"{key} {what}", value | {key: entry}) for what, entry in twisted(value[key]))
        yield from ((f"{key} {what}", value | {key: NEVER[what]}) for what in ("object", "objects", "list of None"))
    elif isinstance(value, str):
        yield "another text", value + " "


def _twisted_array(array):
    frozen = array.copy()
    frozen.flags.writeable = False
    yield "read-only", frozen
    yield "in Fortran's order", np.asfortranarray(array)
    yield "more axes", array[None]
    yield "of bytes in another order", array.astype(array.dtype.newbyteorder(">"))
    yield from ((f"of dtype {dtype}", array.astype(dtype)) for dtype in "f2 f8 c8 i4 ? O S3 g".split())
    if array.ndim:
        wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
        wide[..., ::2] = array
        yield "strided", wide[..., ::2]
        yield "masked", np.ma.masked_array(array, array == array.flat[0])
        yield "shorter", array[:-1]
        yield "longer", np.concatenate([array, array[:1]])
        yield "empty", array[:0]
        yield "narrower", array[..., :-1]
        yield "fewer axes", array[0]
        yield "transposed", array.T
        yield "a list", array.tolist()
    if array.dtype.kind == "f":
        limits = np.finfo(array.dtype)
        for number in (np.nan, np.inf, limits.max, limits.smallest_subnormal):
            yield f"with {number}", _with(array, number)
        yield "all as large as can be", np.full_like(array, limits.max)
    else:
        yield "with -1", _with(array, -1)
        yield "with a large one", _with(array, np.iinfo(array.dtype).max)


def _with(array, number):
    array = array.copy()
    array.flat[array.size // 2] = number
    return array


# -- Good calls ----------------------------------------------------------------------------------------------------

SAID = tomllib.loads(pathlib.Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
NAMES = {name: pkgutil.resolve_name(place) for name, place in SAID["names"].items()}


def expanded(name, *texts):
    """Yield cases: a name with a {word} is of as many as the word has values."""
    versions = [(name, *texts)]
    for word, values in SAID["each"].items():
        if f"{{{word}}}" in name:
            versions = [[text.replace(f"{{{word}}}", value) for text in each] for each in versions for value in values]
    for name, call, arguments in versions:
        yield name, (call, arguments)


CASES = dict(case for name, texts in SAID["cases"].items() for case in expanded(name, *texts))


def evaluate(text, **names):
    """Return what a text of Python gives, which may name what this module and its table name, and these."""
    return eval(text, globals() | NAMES | names)


NAMES |= {name: functools.partial(evaluate, text) for name, text in SAID["made"].items()}


def good(name, folder):
    """Return what a case calls, and its arguments."""
    call, arguments = CASES[name]
    return evaluate(call), evaluate(f"dict({arguments})", folder=folder)


def saved(folder):
    evaluate("trainer()").save(folder / "saved.npz")
    return folder / "saved.npz"


def weights(folder):
    sparse.save_weights(evaluate("network()"), folder / "weights.npz")
    return folder / "weights.npz"


def graph():
    graph = graphs.Graph("g")
    graph.output(y=graphs.tanh(graph.input("x", "B", "H") @ graph.parameter("w", "H", "H")))
    return graph


def badly_shown(*things):
    """Return reprs of this package's things that do not say in a line, without numbers, what they are."""
    flat = [thing for each in things for thing in (each[:3] if isinstance(each, list) else [each])]
    flat = [thing for thing in flat if not isinstance(thing, np.ndarray)]
    ours = [thing for thing in flat if type(thing).__module__.startswith("bppsa_nb.")]
    form = r"(?!.*(object at 0x|array\(|<))(Timeline|{})[( ].{{0,380}}\Z"
    return [repr(thing) for thing in ours if not re.match(form.format(type(thing).__name__), repr(thing))]
