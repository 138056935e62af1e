"""`run`: a kernel of Numba's, or PTX, with arrays and numbers as they would be handed to a GPU."""

import inspect
import os
import re
from collections import namedtuple
from contextlib import contextmanager
from functools import lru_cache
from math import prod
from pathlib import Path

import numpy as np

from warpwatch import compilers
from warpwatch.blocks import MOST_LOCAL
from warpwatch.lanes import program_of
from warpwatch.machine import Launch
from warpwatch.memory import GlobalSpace, add, allocate, bytes_at, found_at, owner_of
from warpwatch.parse import DTYPES, SIZES, short_name
from warpwatch.report import Report

# What a kernel is called with: values, and names and types if they are known.
Arguments = namedtuple("Arguments", "values names types", defaults=(None, None))
Size = int | tuple[int, ...]  # of an array, a grid or a block
MOST_SHARED = 227 * 1024  # bytes that a block may have, on sm_90
# The parameters that an array becomes, by what compiled the kernel; others than Numba's two compilers take its address.
FORMS = {"numba-cuda": lambda a, at: [0, 0, a.size, a.itemsize, at, *a.shape, *a.strides],
         "numba-cuda-mlir": lambda a, at: [at, at, 0, *a.shape, *(step // a.itemsize for step in a.strides)],
         "pointers": lambda a, at: [at]}  # fmt: skip
MARKS = {"NumbaEnv": "numba-cuda", "_mlir_error_code": "numba-cuda-mlir"}  # what the two leave in every text


def is_integer(value):
    """Tell whether a value is an integer; True and False are none, nor is a time."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.timedelta64))


def empty(shape: Size, dtype: type | np.dtype | str = np.float32) -> np.ndarray:
    """Return an array of this `shape` and `dtype` that counts as never written: reading it is reported.

    Like `cuda.device_array`; it holds NaN, or -1. What a kernel has written counts as written from then on.
    """
    try:
        if isinstance(shape, (bytes, bool)) or np.dtype(dtype).kind not in "biufcV":
            raise TypeError("a shape is a tuple of whole numbers, and a dtype one of numbers")
        like = np.broadcast_to(np.zeros((), dtype), shape)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"no array has shape {shape!r} and dtype {dtype!r}: {error}") from None
    return allocate(like.nbytes).view(dtype).reshape(like.shape)


def run(kernel, grid: Size, block: Size, *arguments, shared: int = 0, entry: str | None = None,
        steps: int | None = None) -> Report:  # fmt: skip
    """Run a CUDA kernel on the CPU, watch every access, and report.

    Parameters
    ----------
    kernel
        A function decorated with Numba's `cuda.jit`, which is compiled for sm_90, with the types of the arguments. Or
        PTX, as text or the path of a file: of Numba, whose arrays are several parameters, or of others, with pointers.
    grid, block
        As at a launch.
    *arguments
        NumPy arrays, which kernels write to as they would to device arrays; numbers; tuples of both for Numba, and for
        structures in PTX of others, as in C: arrays are pointers, an int has 4 bytes, a float 8, a NumPy number those
        of its type. `warpwatch.empty` makes arrays that count as never written.
    shared
        Bytes of dynamic shared memory.
    entry
        The kernel's name, where PTX has several.
    steps
        After how many basic blocks, one after the other, a kernel is called endless. By default, after about five
        seconds in which it has touched no place anew.

    Returns
    -------
    Report
        With `findings`, empty if nothing is wrong, `notes` and `counters`.

    Raises
    ------
    ValueError, TypeError
        Where an argument does not fit, the text is cut off, or has an instruction that is not known.
    """
    return launch(kernel, grid, block, arguments, shared=shared, entry=entry, steps=steps)


def assert_clean(kernel, grid: Size, block: Size, *arguments, **how) -> Report:
    """Run a kernel as `run` does; raise an AssertionError that tells what was found, or return the report."""
    report = run(kernel, grid, block, *arguments, **how)
    report.assert_clean()
    return report


@lru_cache
def check_planted():
    """Raise a RuntimeError unless a planted race is found, and a planted overrun, and nothing in a right kernel."""
    text = Path(__file__).with_name("planted.ptx").read_text(encoding="utf-8").partition("\n")[2]
    for barrier, size, kinds in ("", 64, ["race"]), ("bar.sync 0;", 63, ["out of bounds"]), ("bar.sync 0;", 64, []):
        found = [each.kind for each in run(text.replace("BARRIER", barrier), 1, 64, np.zeros(size, "i4")).findings]
        if found != kinds:
            raise RuntimeError(f"warpwatch does not work here: a planted kernel gave {found}, and not {kinds}")


def launch(kernel, grid, block, arguments, *, shared=0, entry=None, watch=True, steps=None, space=GlobalSpace):
    """Run a kernel, up to `steps` basic blocks; `watch` may be the operation that it is on a stream.

    Without `watch`, only addresses are checked. `arguments` are a sequence, or `Arguments`; `space` makes the memory.
    """
    given = arguments if isinstance(arguments, Arguments) else Arguments(arguments)
    if steps is not None and (not is_integer(steps) or steps < 1):
        raise ValueError(f"steps is a number of basic blocks, at least 1, not {steps!r}")
    if entry is not None and (not isinstance(entry, str) or hasattr(kernel, "py_func")):
        raise ValueError(f"entry is the name of one of the kernels in PTX, not {entry!r} of {kernel!r:.99}")
    options = getattr(kernel, "targetoptions", {})
    text, given = _compiled(kernel, given) if hasattr(kernel, "py_func") else (_text(kernel), given)
    with understood():
        program = program_of(text, entry)
    flat, moved = [*_flat(*given)], []
    for n, (name, array) in enumerate(flat):  # a GPU gets copies of the host's arrays, which are aligned
        if isinstance(array, np.ndarray) and array.flags.forc and not array.flags.aligned and owner_of(array) is None:
            flat[n] = name, array.copy("K")
            moved += [(array, flat[n][1])] * array.flags.writeable
    params = _parameters(program.kernel, text, given.values, flat, regions := [])
    for number in _numbers(text) | {n for n in given.values if type(n) is int}:
        if (known := found_at(number)) is not None:  # memory of the device that a kernel knows by its address
            add(regions, known.ctypes.data, known.nbytes, "an array of the device", owner=owner_of(known))
    made = prepared(program, (grid, block), params, shared, regions, watch, space)
    bounds, threads = options.get("launch_bounds"), prod(made.block)
    if bounds and threads > (most := bounds if is_integer(bounds) else bounds[0]):
        raise ValueError(f"block has {threads} threads {block}; the kernel's launch_bounds allow {most}")
    if options.get("debug") and "NumbaEnv" not in text:
        made.report.unchecked.append("what debug=True asks for: exceptions, assertions and divisions by zero")
    with understood():
        report = made.run(steps)
    for array, copy in moved:
        array[...] = copy
    return report


def prepared(program, asked, params, shared, regions, watch, space=GlobalSpace):
    """Return the launch of a program, with the grid and the block that are asked for; refuse what no GPU has."""
    sizes = grid, block = [_sizes(size, name) for size, name in zip(asked, ("grid", "block"), strict=True)]
    if (threads := prod(block)) > 1024 or block[2] > 64:
        raise ValueError(f"block has {threads} threads {asked[1]}; a GPU takes at most 1024, and 64 along z")
    if (blocks := prod(grid)) >= 1 << 22 or max(grid[1:]) >= 1 << 16:
        raise ValueError(f"grid has {blocks} blocks {asked[0]}; at most 4194303 are run here, and 65535 along y and z")
    if not is_integer(shared) or shared < 0:
        raise ValueError(f"shared is a number of bytes, not {shared!r}")
    if (own := program.kernel.shared - program.kernel.gaps) > 48 * 1024:
        raise ValueError(f"the kernel's shared arrays take {own} bytes; only dynamic ones may take more than 49152")
    if (room := own + int(shared)) > MOST_SHARED:
        raise ValueError(f"a block needs {room} bytes of shared memory; a GPU has at most {MOST_SHARED}")
    if (room := program.kernel.local) > MOST_LOCAL:
        raise ValueError(f"a thread needs {room} bytes of local memory; it has at most {MOST_LOCAL}")

    def form(who):
        return tuple((n % x, n // x % y, n // (x * y))[: len(came)] if isinstance(came, (tuple, list)) else n
                     for n, (x, y, _), came in zip(who, sizes, asked, strict=True))  # fmt: skip

    made = Launch(program, sizes, params, int(shared), regions, watch, form, space)
    if watch not in (True, False):
        made.space.begin(watch)
    return made


@contextmanager
def understood():
    """Tell what a text was not understood for as a ValueError."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, NameError, SyntaxError, TypeError) as error:
        raise ValueError(f"the PTX text is not understood: {error!r}") from error


def _sizes(given, name):
    sizes = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    if not 1 <= len(sizes) <= 3 or not all(is_integer(n) and n > 0 for n in sizes):
        raise ValueError(f"{name} is a positive whole number, or a tuple of up to three, not {given!r}")
    return (*map(int, sizes), 1, 1)[:3]


def _text(kernel):
    if isinstance(kernel, str) and ("\n" in kernel or ".entry" in kernel):
        return kernel
    if not isinstance(kernel, (str, os.PathLike)):
        raise TypeError(f"kernel is a @cuda.jit function, PTX or the path of a .ptx file, not {type(kernel).__name__}")
    try:
        return Path(kernel).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ValueError(f"kernel is neither PTX nor the path of a file of text: {str(kernel)[:100]!r}") from error


def _flat(values, names=None, types=None, path=""):
    """List (name, what a parameter takes), of a compiled kernel's `types`; a TypeError names what no kernel takes."""
    for n, (value, kind) in enumerate(zip(values, types or (None,) * len(values), strict=True)):
        name = names[n] if names else f"{path}[{n}]" if path else f"argument {n}"
        of = {each.__name__ for each in type(kind).__mro__}
        if "EnumMember" in of:
            value, kind = value.value, kind.dtype
        if isinstance(value, tuple):
            yield from _flat(value, None, kind and tuple(kind), name)
            continue
        if "Complex" in of or isinstance(value, (complex, np.complexfloating)):
            value = np.dtype(f"c{kind.bitwidth // 8}" if kind else "c16").type(value)
        elif "Record" in of:
            if not isinstance(value, np.ndarray):  # kernels take it by its address, and may write to it
                place = np.frombuffer(value, "u1").ctypes.data
                value = bytes_at(place, value.nbytes, value).view(value.dtype).reshape(())
            value = value.view(np.recarray)
        elif kind and isinstance(value, (np.datetime64, np.timedelta64)):
            value = value.view("i8")
        elif isinstance(value, np.float16) or "Float" in of and kind.bitwidth == 16:
            value = np.float16(value).view("u2")
        if isinstance(value, np.ndarray):
            dtype, hidden = value.dtype, isinstance(value, np.ma.MaskedArray)
            known = dtype.kind in ("biufcV" if types is None else "biufcVmMSU") and dtype.char not in "gG"
            if hidden or not (known and dtype.isnative and dtype.itemsize) or dtype.hasobject:
                what = "a masked array" if hidden else f"an array of dtype {dtype}"
                raise TypeError(f"{name} is {what}; a kernel takes native numbers, and structures of them")
        yield name, value


def _compiled(kernel, given):
    """Return the PTX of a kernel for arguments, and these with their names and types."""
    title = f"kernel {kernel.py_func.__name__}"
    names, values, types = list(inspect.signature(kernel.py_func).parameters), given.values, given.types
    if len(values) != len(names):
        raise TypeError(f"{title} takes {len(names)} arguments ({', '.join(names)}), {len(values)} came")
    try:
        compiler = compilers.of(kernel)
        if types is None:
            plain = [np.asarray(value) if isinstance(value, np.ndarray) else value for value in values]
            types = tuple(map(kernel.typeof_pyval, plain))
        types = compilers.declared(kernel, types)
        return compilers.ptx_of(compiler, kernel, types), Arguments(values, names, types)
    except Exception as error:  # whatever the compiler stumbles over; on a device, it says that itself
        if given.types is not None or isinstance(error, ModuleNotFoundError):
            raise
        raise TypeError(f"{title} does not compile for these arguments: {type(error).__name__}: {error}") from error


def _parameters(kernel, text, values, arguments, regions):
    """Return the bytes of each parameter by name; arrays are registered."""
    name, wanted, owners, given = short_name(kernel.name), len(kernel.params), {}, {}
    at = [isinstance(a, np.ndarray) and _register(label, a, regions, owners) for label, a in arguments]
    large = [n for n, (_, kind, size) in enumerate(kernel.params[: len(values)]) if size > SIZES[kind]]
    if any(isinstance(values[n], tuple) for n in large) and not any(mark in text for mark in MARKS):
        leaves = iter(zip(arguments, at, strict=True))
        arguments, at = zip(*(_joined(f"argument {n}", value, leaves) for n, value in enumerate(values)), strict=True)
    for form in [form for mark, form in MARKS.items() if mark in text] or FORMS:
        given[form] = [(label, value, bool(address)) for (label, argument), address in zip(arguments, at, strict=True)
                       for value in _spread(form, argument, address)]  # fmt: skip
        if len(given[form]) == wanted:
            for label, a in arguments if form == "numba-cuda-mlir" else ():
                if isinstance(a, np.ndarray) and any(step % a.itemsize for step in a.strides):
                    raise TypeError(f"{label} has strides of {a.strides} bytes, and elements of {a.itemsize}")
            return {p[0]: _bytes(name, p, *each) for p, each in zip(kernel.params, given[form], strict=True)}
    made = ", ".join(f"{len(each)} ({form})" for form, each in given.items())
    raise TypeError(f"kernel {name} has {wanted} parameters; {len(arguments)} arguments came, which would be {made}")


def _joined(name, value, leaves):
    """Return an argument as (name, value) and its address, from those of its members if it is a structure."""
    if not isinstance(value, tuple):
        return next(leaves)
    members = []
    for (label, part), address in (_joined(name, each, leaves) for each in value):
        if type(part) is int and part.bit_length() > 31:
            raise ValueError(f"{label}: {part} is no number of type s32, as an int in a structure is")
        members.append(np.uint64(address) if address else np.int32(part) if type(part) is int else np.asarray(part))
        if members[-1].dtype.kind not in "biufcV":
            raise TypeError(f"{label}: a structure has arrays, numbers and structures, got {part!r}")
    made = np.zeros((), np.dtype([(f"f{n}", member.dtype) for n, member in enumerate(members)], align=True))
    made[()] = tuple(members)
    return (name, made[()]), False


def _spread(form, argument, address):
    """List the parameters that an argument becomes; a record is passed by its address, as an array without axes."""
    if isinstance(argument, np.complexfloating):
        return [argument.real, argument.imag] if form == "numba-cuda" else [argument.tobytes()]
    record = isinstance(argument, np.recarray) and not argument.ndim
    return FORMS["pointers" if record else form](argument, address) if address else [argument]


def _register(label, array, regions, owners):
    """Register an array, far from all others but those that share its memory; return its address on the device."""
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    first = owner.ctypes.data
    low, high = np.lib.array_utils.byte_bounds(array) if array.size else 2 * (first,)
    shift = owners.setdefault(first, (len(owners) + 1 << 40) + first % 16 - first)
    for met in regions:  # of the same memory, though no array of NumPy's has both
        if met.start - met.shift < high and low < met.end - met.shift:
            shift = owners[first] = met.shift
    known = {"writable": array.flags.writeable, "shift": shift, "owner": owner_of(array)}
    add(regions, low + shift, high - low, label, array=np.asarray(array), **known)
    return array.ctypes.data + shift


@lru_cache(256)
def _numbers(text):
    """Return the numbers of a text that may be addresses."""
    return {int(number) for number in re.findall(r"(?<![\w.])\d{13,16}(?![\w.])", text)}


def _bytes(kernel, param, label, value, pointer):
    """Return a parameter's bytes."""
    name, kind, size = param
    code = DTYPES[kind]
    if size != SIZES[kind]:  # a structure
        raw = value if isinstance(value, bytes) else value.tobytes() if isinstance(value, np.void) else b""
        if len(raw) != size:
            fields = (value.dtype.fields if isinstance(value, np.void) else None) or {}
            got = f"{len(raw)}: {', '.join(f'{part} at {place}' for part, place, *_ in fields.values()) or repr(value)}"
            raise TypeError(f"{label}: parameter {name} of kernel {kernel} is a structure of {size} bytes, got {got}")
        return np.frombuffer(raw, "u1")
    if pointer and SIZES[kind] != 8:
        raise TypeError(f"{label} is an array; parameter {name} of kernel {kernel} is a number ({kind})")
    wrong = (np.complexfloating, np.timedelta64) if code[0] == "f" else (np.inexact, np.timedelta64, float)
    if not isinstance(value, (int, float, np.number, np.bool_)) or isinstance(value, wrong):
        raise TypeError(f"{label}: parameter {name} of kernel {kernel} is a {kind}, got {value!r}")
    if code[0] == "f":
        return np.array([value], code).view("u1")
    bits = 8 * SIZES[kind]
    if not -(1 << bits - 1) <= int(value) < 1 << bits:
        raise ValueError(f"{label}: {value} is no number of type {kind}")
    return np.array([int(value) & (1 << bits) - 1], f"u{SIZES[kind]}").view("u1")
