"""`run`: a kernel of Numba's, or PTX, with arrays and numbers as they would be handed to a GPU."""

import os
import warnings
from pathlib import Path

import numpy as np

from bppsa_nb.ptx.lanes import program_of
from bppsa_nb.ptx.machine import Launch
from bppsa_nb.ptx.memory import Allocation, Memory, allocate, owner_of
from bppsa_nb.ptx.parse import DTYPES, SIZES, short_name

MOST_SHARED, MOST_LOCAL = 227 * 1024, 512 * 1024  # bytes that a block, and a thread, may have, on sm_90


def empty(shape, dtype=np.float32):
    """Return an array that counts as never written, as `cuda.device_array` is: reading it is told.

    It holds NaN, or zeros. What a kernel has written counts as written in the launches that follow.
    """
    array = allocate(int(np.prod(shape)) * np.dtype(dtype).itemsize).view(dtype).reshape(shape)
    array.fill(np.nan if array.dtype.kind in "fc" else 0)
    return array


def run(kernel, grid, block, *arguments, shared=0, entry=None):
    """Run a CUDA kernel on the CPU, watch every access, and report.

    Parameters
    ----------
    kernel : a function decorated with Numba's cuda.jit, str or path
        The function is compiled for sm_90 as Numba does it, with the types of the arguments. Or PTX text, or the path
        of a .ptx file: of Numba, whose arrays are seven parameters and more, or of others, whose arrays are pointers.
    grid, block : int or tuple of int
        As at a launch.
    *arguments
        NumPy arrays, which kernels write to as they would to device arrays; numbers; tuples of both for Numba.
        `ptx.empty` makes arrays that count as never written.
    shared : int
        Bytes of dynamic shared memory.
    entry : str, optional
        The kernel's name, where PTX has several.

    Returns
    -------
    Report
        With `findings`, empty if nothing is wrong, `notes` and `counters`.

    Raises
    ------
    ValueError, TypeError
        Where an argument does not fit, the text is cut off, or has an instruction that is not known.
    """
    return launch(kernel, grid, block, arguments, shared=shared, entry=entry)


def assert_clean(kernel, grid, block, *arguments, shared=0, entry=None):
    """Run a kernel as `run` does; raise an AssertionError that tells what was found, or return the report."""
    report = run(kernel, grid, block, *arguments, shared=shared, entry=entry)
    if report.findings:
        raise AssertionError(str(report))
    return report


def launch(kernel, grid, block, arguments, *, shared=0, entry=None, watch=True, steps=None):
    """Run a kernel, up to `steps` basic blocks; `watch` may be the operation that it is on a stream.

    Without `watch`, addresses are checked and nothing else is.
    """
    sizes = {"grid": _sizes(grid, "grid"), "block": _sizes(block, "block")}
    threads = int(np.prod(sizes["block"]))
    if threads > 1024:
        raise ValueError(f"block has {threads} threads {block}; a GPU takes at most 1024")
    if int(np.prod(sizes["grid"])) >= 1 << 22:
        raise ValueError(f"grid has {int(np.prod(sizes['grid']))} blocks {grid}; at most {(1 << 22) - 1} are run here")
    if not isinstance(shared, (int, np.integer)) or isinstance(shared, bool) or shared < 0:
        raise ValueError(f"shared is a number of bytes, not {shared!r}")
    names = None
    if hasattr(kernel, "py_func"):
        text, names = _compiled(kernel, arguments)
    else:
        text = _text(kernel)
    program = program_of(text, entry)
    room = program.kernel.shared + int(shared)
    if room > MOST_SHARED:
        raise ValueError(f"a block needs {room} bytes of shared memory; a GPU has at most {MOST_SHARED}")
    if program.kernel.local > MOST_LOCAL:
        raise ValueError(f"a thread needs {program.kernel.local} bytes of local memory; it has at most {MOST_LOCAL}")
    memory = Memory()
    params = _parameters(program.kernel, _flat(arguments, names), memory)

    def form(who):
        return tuple(_form(n, size, given) for n, size, given in
                     zip(who, (sizes["grid"], sizes["block"]), (grid, block), strict=True))  # fmt: skip

    made = Launch(program, sizes["grid"], sizes["block"], params, int(shared), memory, watch=watch, form=form)
    if watch not in (True, False):
        made.space.begin(watch)
    return made.run(steps)


def _sizes(given, name):
    sizes = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    good = all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n > 0 for n in sizes)
    if not good or not 1 <= len(sizes) <= 3:
        raise ValueError(f"{name} is a positive whole number, or a tuple of up to three, not {given!r}")
    return (*map(int, sizes), 1, 1)[:3]


def _form(number, sizes, given):
    """Return a block's or a thread's number as an index, if its sizes came as a tuple."""
    if not isinstance(given, (tuple, list)):
        return number
    x, y, _ = sizes
    return (number % x, number // x % y, number // (x * y))[: len(given)]


def _text(kernel):
    if isinstance(kernel, str) and ("\n" in kernel or ".entry" in kernel):
        return kernel
    if not isinstance(kernel, (str, os.PathLike)):
        raise TypeError(f"kernel is a @cuda.jit function, PTX or the path of a .ptx file, not {type(kernel).__name__}")
    path = Path(kernel)
    if not path.is_file():
        raise ValueError(f"kernel is neither PTX nor the path of a file: {str(kernel)[:100]!r}")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"kernel is a file that holds no text: {path.name}") from None


def _flat(arguments, names=None, path=""):
    """List (name, array or number), tuples taken apart."""
    made = []
    for n, argument in enumerate(arguments):
        name = names[n] if names else f"{path}[{n}]" if path else f"argument {n}"
        made += _flat(argument, None, name) if isinstance(argument, tuple) else [(name, argument)]
    return made


_TEXTS = {}


def _compiled(kernel, arguments):
    """Return the PTX that Numba makes of a kernel for arguments of these types, and the arguments' names."""
    import inspect

    from bppsa_nb.machine.cuda_compiler import NumbaError, compile_ptx, require

    require()
    names, title = list(inspect.signature(kernel.py_func).parameters), f"kernel {kernel.py_func.__name__}"
    if len(arguments) != len(names):
        raise TypeError(f"{title} takes {len(names)} arguments ({', '.join(names)}), {len(arguments)} came")
    for name, argument in _flat(arguments, names):
        if not isinstance(argument, (np.ndarray, np.generic, int, float, complex)):
            raise TypeError(f"{name} is a NumPy array or a number, not {type(argument).__name__}")
    plain = [a.view(np.ndarray) if isinstance(a, Allocation) else a for a in arguments]
    types = tuple(kernel.typeof_pyval(a) for a in plain)
    key = kernel.py_func, types
    if key not in _TEXTS:
        passed_on = ("fastmath", "opt", "launch_bounds")
        options = {k: v for k, v in kernel.targetoptions.items() if k in passed_on and v is not None}
        try:
            with warnings.catch_warnings():  # of source that was never in a file: its lines are right all the same
                warnings.filterwarnings("ignore", "Could not find source for function")
                _TEXTS[key] = compile_ptx(kernel.py_func, types, lineinfo=True, **options)
        except NumbaError as error:
            raise TypeError(f"{title} does not compile for these arguments: {error}") from error
    return _TEXTS[key], names


def _parameters(kernel, arguments, memory):
    """Return the bytes of each parameter by name; arrays are registered."""
    arrays = [a for _, a in arguments if isinstance(a, np.ndarray)]
    numba = len(arguments) + sum(4 + 2 * a.ndim for a in arrays)
    wanted, name = len(kernel.params), short_name(kernel.name)
    if wanted not in (numba, len(arguments)):
        more = f", or {numba} as Numba passes arrays" if arrays else ""
        raise TypeError(f"kernel {name} has {wanted} parameters, the arguments are {len(arguments)}{more}")
    given, owners = [], {}
    for label, argument in arguments:
        if isinstance(argument, np.ndarray):
            pointer = _register(label, argument, memory, owners)
            flat = [0, 0, argument.size, argument.itemsize, pointer, *argument.shape, *argument.strides]
            given += [(label, v, True) for v in (flat if wanted == numba else [pointer])]
        else:
            given.append((label, argument, False))
    return {param[0]: _bytes(name, param, *each) for param, each in zip(kernel.params, given, strict=True)}


def _register(label, array, memory, owners):
    """Register an array, far from all others but those that share its memory; return its address on the device."""
    if array.dtype.hasobject:
        raise TypeError(f"{label} is an array of Python objects; a GPU takes numbers")
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    first = owner.ctypes.data
    shift = owners.setdefault(first, (len(owners) + 1 << 40) + first % 16 - first)
    low, high = np.lib.array_utils.byte_bounds(array) if array.size else 2 * (first,)
    whole = owner_of(array)
    known = {"writable": array.flags.writeable, "shift": shift, "owner": whole, "alive": whole is None or whole.alive}
    memory.add(low + shift, high - low, label, array=array.view(np.ndarray), **known)
    return array.ctypes.data + shift


def _bytes(kernel, param, label, value, pointer):
    """Return a parameter's bytes."""
    name, kind, size = param
    code = DTYPES[kind]
    if size != SIZES[kind]:  # a structure
        raw = value if isinstance(value, bytes) else value.tobytes() if isinstance(value, np.void) else b""
        if len(raw) != size:
            raise TypeError(f"{label}: parameter {name} of kernel {kernel} is a structure of {size} bytes, as bytes")
        return np.frombuffer(raw, "u1")
    if pointer and SIZES[kind] != 8:
        raise TypeError(f"{label} is an array; parameter {name} of kernel {kernel} is a number ({kind})")
    if isinstance(value, (complex, np.complexfloating)) or not isinstance(value, (int, float, np.number, np.bool_)):
        raise TypeError(f"{label}: parameter {name} of kernel {kernel} is a {kind}, what came is {value!r}")
    if code[0] != "f" and isinstance(value, (float, np.floating)):
        raise TypeError(f"{label}: parameter {name} of kernel {kernel} is a {kind}, what came is {value!r}")
    if code[0] == "f":
        return np.array([value], code).view("u1")
    bits = 8 * SIZES[kind]
    if not -(1 << bits - 1) <= int(value) < 1 << bits:
        raise ValueError(f"{label}: {value} is no number of type {kind}")
    return np.array([int(value) & (1 << bits) - 1], f"u{SIZES[kind]}").view("u1")
