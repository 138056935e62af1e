"""A device that runs compiled kernels on the CPU: while it is on, `cuda` has its arrays, and launches come here.

Whatever is launched is done when the call returns; what streams and events let it wait for, `streams.py` knows. Numba
compiles kernels as for a GPU of compute capability 9.0; its dispatcher's ``kernel[grid, block]`` and those functions of
`cuda` that make arrays and streams are exchanged meanwhile.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from operator import attrgetter
from types import SimpleNamespace

import numpy as np

from bppsa_nb.machine import backends
from bppsa_nb.machine.checks import check_flag
from bppsa_nb.ptx.launch import empty, launch
from bppsa_nb.ptx.memory import owner_of
from bppsa_nb.ptx.report import Report
from bppsa_nb.ptx.streams import LEGACY, Event, Stream

FREE = 1 << 36  # bytes of memory that are said to be free
_on = []  # the devices that are on, the latest last


class DeviceArray:
    """An array of the device's memory, which is the process's own: what launchers ask of Numba's."""

    def __init__(self, array, stream=0):
        self.array, self.stream = array, stream  # the stream of copies that name none

    shape, dtype, ndim, size, strides, nbytes, itemsize, flags = (
        property(attrgetter(f"array.{name}"))
        for name in ("shape", "dtype", "ndim", "size", "strides", "nbytes", "itemsize", "flags")
    )

    def __len__(self):
        return len(self.array)

    def part(self, index):
        """Return a view of a part, or of a number."""
        part = self.array[index]
        if not isinstance(part, np.ndarray):
            part = self.array[(*index, ...) if isinstance(index, tuple) else (index, ...)]
        return DeviceArray(part, self.stream)

    def __getitem__(self, index):
        part = self.part(index)
        return part if part.ndim else part.copy_to_host()[()]

    def __setitem__(self, index, value):
        self.part(index).copy_to_device(value)

    def reshape(self, *shape):
        """Return a view of another shape."""
        view = self.array.view()
        view.shape = shape[0] if len(shape) == 1 else shape  # which copies nothing
        return DeviceArray(view, self.stream)

    def view(self, dtype):
        """Return the same bits as numbers of another dtype."""
        return DeviceArray(self.array.view(dtype), self.stream)

    def copy_to_host(self, array=None, stream=0):
        """Return a copy, or write it into an array of the host."""
        array = np.empty_like(self.array, subok=False) if array is None else array
        (stream or self.stream or LEGACY).issue("copy_to_host", _copy, (self.array, array))
        return array

    def copy_to_device(self, array, stream=0):
        """Take the numbers of another array, on the host or here."""
        array = array.array if isinstance(array, DeviceArray) else np.asarray(array)
        (stream or self.stream or LEGACY).issue("copy_to_device", _copy, (array, self.array))


def _copy(operation, arrays):
    source, target = arrays
    if operation and current() and current().watch:
        operation.copy(source, target)
    target[...] = source
    if (owner := owner_of(target)) is not None and target.size:
        low, high = np.lib.array_utils.byte_bounds(target)
        owner.written[low - owner.ctypes.data : high - owner.ctypes.data] = 255


class Device:
    """What launches come to while it is on; `reports`, if a list is given, gets those of the launches, if watched."""

    def __init__(self, watch=False, reports=None):
        self.watch, self.reports, self.before = watch, reports, {}

    def turn_on(self):
        """Take the places of Numba's dispatcher and of those functions of `cuda` that make arrays and streams."""
        from bppsa_nb.machine.cuda_compiler import cuda, require

        require()
        changes = {(type(cuda.jit(lambda: None)), "__getitem__"): lambda *launched: partial(self.launch, *launched)}
        changes |= {(cuda, name): function for name, function in FUNCTIONS.items()}
        self.before = {place: getattr(*place) for place in changes}
        for place, function in changes.items():
            setattr(*place, function)
        _on.append(self)

    def turn_off(self):
        """Give them back."""
        _on.remove(self)
        for place, function in self.before.items():
            setattr(*place, function)

    new_stream = staticmethod(Stream)  # for `machine/cuda.py`

    def launch(self, kernel, configuration, *arguments):
        """Run a kernel, as ``kernel[configuration](*arguments)``, or record it; an AssertionError tells what it did."""
        grid, block, stream, shared = (*configuration, 0, 0)[:4]
        arguments = [argument.array if isinstance(argument, DeviceArray) else argument for argument in arguments]
        (stream or LEGACY).issue(kernel.py_func.__name__, partial(self.run, kernel, grid, block, shared), arguments)

    def run(self, kernel, grid, block, shared, operation, arguments):
        """Run a kernel now."""
        report = launch(kernel, grid, block, arguments, shared=shared, watch=self.watch and (operation or True))
        if self.watch and self.reports is not None:
            self.reports.append(report)
        if report.findings:
            raise AssertionError(str(report))


def current():
    """Return the device that is on, or None."""
    return _on[-1] if _on else None


@contextmanager
def device(watch: bool = False) -> Iterator[list[Report]]:
    """Inside the ``with`` block, run kernels of Numba's `cuda.jit` on the CPU, from their PTX.

    Parameters
    ----------
    watch
        Whether every access is watched, which takes a few times as long: findings raise an AssertionError at the
        launch. Without it, only accesses outside all arrays end a launch, with the same error.

    Yields
    ------
    list
        The `Report` of every launch, in order, as they come, if accesses are watched.
    """
    check_flag("watch", watch)
    made = Device(watch, [])
    made.turn_on()
    try:
        yield made.reports
    finally:
        made.turn_off()


def use_without_gpu() -> str:
    """Run kernels on the CPU from now on if there is no GPU, for notebooks that teach them; say what they run on."""
    if not backends.cuda_available():
        Device().turn_on()
    return "the CPU, from their PTX (no GPU was found)" if current() else "the GPU"


def _device_array(shape, dtype=np.float64, strides=None, order="C", stream=0):
    shape = tuple(shape) if np.ndim(shape) else (shape,)
    return DeviceArray(empty(shape, dtype) if order == "C" else empty(shape[::-1], dtype).T, stream)


def _to_device(array, stream=0, copy=True, to=None):
    if isinstance(array, DeviceArray) and to is None:
        return array
    array = np.asarray(array)
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    to = _device_array(array.shape, array.dtype, order=order, stream=stream) if to is None else to
    to.copy_to_device(array, stream)
    return to


FUNCTIONS = {
    "device_array": _device_array,
    "device_array_like": lambda array, stream=0: _device_array(array.shape, array.dtype, stream=stream),
    "to_device": _to_device,
    "pinned_array": lambda shape, dtype=np.float64, strides=None, order="C": np.empty(shape, dtype, order),
    "pinned": lambda *arrays: nullcontext(),
    "stream": Stream,
    "default_stream": lambda: LEGACY,
    "event": Event,
    "event_elapsed_time": Event.elapsed_time,
    "synchronize": LEGACY.synchronize,
    "is_available": lambda: True,
    "defer_cleanup": nullcontext,
    "current_context": lambda: SimpleNamespace(get_memory_info=lambda: SimpleNamespace(free=FREE, total=FREE)),
}
