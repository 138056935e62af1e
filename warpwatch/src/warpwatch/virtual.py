"""A device that runs compiled kernels on the CPU: while it is on, launches and copies of Numba's `cuda` come here.

Whatever is launched is done when the call returns; what streams and events let it wait for, `streams.py` knows.
Launches are caught at the compiler's dispatcher; what `host.py` has stands in for its driver meanwhile.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial, partialmethod
from types import SimpleNamespace

import numpy as np

from warpwatch import compilers, host
from warpwatch.launch import Arguments, empty, launch
from warpwatch.memory import owner_of
from warpwatch.report import Report
from warpwatch.streams import LEGACY, Stream

_on = []  # the devices that are on, the latest last


class Device:
    """What launches come to while it is on.

    `found(report)` gets the report of each launch, and `refused(name, error)` gets to know of those that are not run.
    """

    def __init__(self):
        self.watch, self.steps, self.before = False, None, {}
        self.found, self.refused = Report.assert_clean, lambda *_: None

    def turn_on(self):
        """Take the places of each compiler's dispatcher and driver, where they are not taken yet; return the device."""
        if not (there := compilers.present()):
            raise ModuleNotFoundError(compilers.MISSING, name="numba_cuda")
        for each in there:
            kernels, places = each.dispatcher, host.places(each, self.copy) | compilers.places(each)
            places[kernels, "__getitem__"] = lambda kernel, launched: self.configure(kernel, *launched)
            for name in ("configure", "forall", "compile"):
                places[kernels, name] = partialmethod(_called, getattr(self, name))
            for place in places if (kernels, "compile") not in self.before else ():
                self.before[place] = vars(place[0]).get(place[1], _NOTHING)
                setattr(*place, places[place])
        if self not in _on:
            _on.append(self)
        return self

    def turn_off(self):
        """Give them back."""
        _on.remove(self)
        for place, value in self.before.items():
            delattr(*place) if value is _NOTHING else setattr(*place, value)
        self.before = {}

    def configure(self, kernel, griddim, blockdim, stream=0, sharedmem=0):
        """Return what launches a kernel."""
        return partial(self.launch, kernel, griddim, blockdim, stream, sharedmem)

    def forall(self, kernel, ntasks, tpb=0, stream=0, sharedmem=0):
        """Return what launches a kernel with a thread for each task, at least."""
        if ntasks < 0:
            raise ValueError(f"Can't create ForAll with negative task count: {ntasks}")
        block = tpb or host.BLOCK
        return self.configure(kernel, -(-ntasks // block), block, stream, sharedmem) if ntasks else lambda *args: None

    def compile(self, kernel, signature, **how):
        """Note a signature of a kernel, which is compiled when it is launched: then, numba-cuda-mlir says how."""
        if how:
            return self.before[compilers.of(kernel).dispatcher, "compile"](kernel, signature, **how)
        types, _ = compilers.of(kernel).part("core.sigutils").normalize_signature(signature)
        kernel.overloads[types] = SimpleNamespace(entry_point=None)  # nothing that would be freed

    def launch(self, kernel, grid, block, stream, shared, *arguments):
        """Run a kernel in a stream."""
        taken, after = [], []
        for argument in arguments:
            for extension in reversed(kernel.targetoptions.get("extensions") or ()):
                _, argument = extension.prepare_args(kernel.typeof_pyval(argument), argument, stream=stream, retr=after)
            taken.append(_taken(argument, after))
        run = partial(self.run, kernel, grid, block, shared, tuple(map(kernel.typeof_pyval, arguments)))
        self.issue(*_issued(stream, kernel.py_func.__name__), run, taken)
        for each in after:
            each()

    def run(self, kernel, grid, block, shared, types, operation, arguments):
        """Run a kernel now."""
        how = {"shared": shared, "watch": self.watch and (operation or True), "steps": self.steps}
        try:
            report = launch(kernel, grid, block, Arguments(arguments, None, types), **how)
        except Exception as error:
            self.refused(kernel.py_func.__name__, error)
            raise
        if self.watch or not report.error:
            self.found(report)
        if report.error:  # which a GPU's launch raises, too
            raise report.error

    def copy(self, name, source, target, stream):
        """Set one array to another, in a stream."""
        self.issue(*_issued(stream, name), self.copy_now, (np.asarray(source), target))

    def issue(self, stream, title, run, arguments):
        """Run, in a stream, what a function of an operation and arguments does."""
        stream.begin(title, run, arguments)

    def copy_now(self, operation, arrays):
        """Copy; what is written then counts as written, but for bytes that were not, in their place."""
        source, target = arrays
        if operation and self.watch:
            operation.copy(source, target)
        target[...] = source
        if owner_of(target) is not None and target.size:
            written(target)[...] = written(source) if source.itemsize == target.itemsize else 255


def written(array):
    """Return which bytes of an array's elements were written; of one of the host, all."""
    if (owner := owner_of(array)) is None:
        return 255
    place, strides = array.ctypes.data - owner.ctypes.data, (*array.strides, 1)
    return np.ndarray((*array.shape, array.itemsize), "u1", owner.written, place, strides)


_NOTHING = object()
_called = lambda kernel, method, *args, **how: method(kernel, *args, **how)  # noqa: E731


def _issued(stream, name):
    """Return one of our streams for what a launch or a copy names, and its title there."""
    stream = stream if isinstance(stream, Stream) else Stream.numbered.get(int(stream or 0), LEGACY)
    return stream, stream.title(name)


def _taken(argument, after):
    """Return an argument as `launch` takes it; `after` gets what is to be done after the launch."""
    way = type(argument).__name__ if hasattr(argument, "value") else ""
    if way in ("In", "Out", "InOut"):  # which way an array of the host goes
        argument = argument.value
    if hasattr(argument, "__cuda_array_interface__") or getattr(argument, "__cuda_memory__", False):
        return host.array_of(argument)
    if isinstance(argument, tuple):
        made = [_taken(each, after) for each in argument]
        return type(argument)(*made) if hasattr(argument, "_fields") else tuple(made)
    if not isinstance(argument, np.ndarray) or way not in ("In", "Out"):
        return argument
    if way == "In":
        return argument.copy("K")
    made = empty(argument.T.shape, argument.dtype).T if argument.flags.fnc else empty(argument.shape, argument.dtype)
    after.append(lambda: np.copyto(argument, made))
    return made


def current():
    """Return the device that is on, or None."""
    return _on[-1] if _on else None


def turn_on():
    """Run kernels on the CPU from now on, unless they are already; return the device."""
    return (current() or Device()).turn_on()


@contextmanager
def device(watch: bool = False) -> Iterator[list[Report]]:
    """Inside the ``with`` block, run kernels of Numba's `cuda.jit` on the CPU, from their PTX.

    Parameters
    ----------
    watch
        Whether every access is watched, which takes a few times as long: findings raise an AssertionError at the
        launch. Without it, only accesses outside of arrays do, and kernels raise their own exceptions.

    Yields
    ------
    list
        The `Report` of every launch, in order, as they come, if accesses are watched.
    """
    if not isinstance(watch, (bool, np.bool_)):
        raise TypeError(f"watch must be True or False, got {watch!r}")
    reports, around, made = [], current(), Device()

    def found(report):
        if watch:
            reports.append(report)
        if around:  # which may be that of a program that is watched
            around.found(report)
        report.assert_clean()

    made.found, made.watch = found, watch
    if around:
        made.watch, made.steps, made.refused = watch or around.watch, around.steps, around.refused
    made.turn_on()
    try:
        yield reports
    finally:
        made.turn_off()


def use_without_gpu() -> str:
    """Run kernels on the CPU from now on if there is no GPU, for notebooks that teach them; say what they run on."""
    if not any(compiler.cuda.is_available() for compiler in compilers.present()):
        turn_on()
    return "the CPU, from their PTX (no GPU was found)" if current() else "the GPU"
