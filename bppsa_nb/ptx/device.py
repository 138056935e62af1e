"""A device that runs compiled kernels on the CPU: while it is on, `cuda` has its arrays, and launches come here.

Whatever is launched is done when the call returns, so that streams and events have nothing to wait for. Numba compiles
kernels as for a GPU of compute capability 9.0; its dispatcher's ``kernel[grid, block]`` and those functions of
`cuda` that make arrays are exchanged meanwhile.
"""

import time
from contextlib import contextmanager, nullcontext
from functools import partial
from operator import attrgetter
from types import SimpleNamespace

import numpy as np

from bppsa_nb.machine import backends
from bppsa_nb.machine.checks import check_flag
from bppsa_nb.ptx.launch import empty, launch, written

FREE = 1 << 36  # bytes of memory that are said to be free
_on = []  # the devices that are on, the latest last


class DeviceArray:
    """An array of the device's memory, which is the process's own: what launchers ask of Numba's."""

    def __init__(self, array):
        self.array = array

    shape, dtype, ndim, size, strides, nbytes, itemsize, flags = (
        property(attrgetter(f"array.{name}"))
        for name in ("shape", "dtype", "ndim", "size", "strides", "nbytes", "itemsize", "flags")
    )

    def __len__(self):
        return len(self.array)

    def __getitem__(self, index):
        part = self.array[index]
        return DeviceArray(part) if isinstance(part, np.ndarray) else part

    def __setitem__(self, index, value):
        self.array[index] = value.array if isinstance(value, DeviceArray) else value
        part = self.array[index]
        if isinstance(part, np.ndarray) and (known := written(part)) is not None:
            known[...] = 255

    def reshape(self, *shape):
        """Return a view of another shape."""
        view = self.array.view()
        view.shape = shape[0] if len(shape) == 1 else shape  # which copies nothing
        return DeviceArray(view)

    def copy_to_host(self, array=None, stream=0):
        """Return a copy, or write it into an array of the host."""
        if array is None:
            return np.array(self.array, copy=True, subok=False)
        array[...] = self.array
        return array

    def copy_to_device(self, array, stream=0):
        """Take the numbers of another array, on the host or here."""
        self[...] = array


class Event:
    """A moment; between two of them, the milliseconds that the process took, which are no GPU's."""

    def __init__(self, timing=True):
        self.at = None

    def record(self, stream=0):
        """Take the moment."""
        self.at = time.perf_counter()

    def elapsed_time(self, end):
        """Return milliseconds up to another event."""
        return 1e3 * (end.at - self.at)

    def synchronize(self):
        """Return at once."""


class Device:
    """What launches come to while it is on; `reports` are those of the launches that were watched."""

    def __init__(self, watch=False):
        self.watch, self.reports, self.before = watch, [], {}

    def turn_on(self):
        """Take the places of Numba's dispatcher and of those functions of `cuda` that make arrays."""
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

    def launch(self, kernel, configuration, *arguments):
        """Run a kernel, as ``kernel[configuration](*arguments)``; an AssertionError tells what was found."""
        grid, block, *rest = configuration
        arguments = [argument.array if isinstance(argument, DeviceArray) else argument for argument in arguments]
        shared = rest[1] if len(rest) > 1 else 0
        report = launch(kernel, grid, block, arguments, shared=shared, watch=self.watch)
        if self.watch:
            self.reports.append(report)
        if report.findings:
            raise AssertionError(str(report))


def current():
    """Return the device that is on, or None."""
    return _on[-1] if _on else None


@contextmanager
def device(watch=False):
    """Run what is launched with Numba's `cuda.jit` on the CPU, from its PTX, while the block runs.

    Parameters
    ----------
    watch : bool
        Whether every access is watched, which takes a few times as long: what is found raises an AssertionError at the
        launch. Without it, only accesses outside all arrays end a launch, with the same error.

    Yields
    ------
    list
        The `Report` of every launch, in order, as they come, if accesses are watched.
    """
    check_flag("watch", watch)
    made = Device(watch)
    made.turn_on()
    try:
        yield made.reports
    finally:
        made.turn_off()


def use_without_gpu():
    """Run kernels on the CPU from now on if there is no GPU, for notebooks that teach them; say what they run on."""
    if not backends.cuda_available():
        Device().turn_on()
    return "the CPU, from their PTX (no GPU was found)" if current() else "the GPU"


def _device_array(shape, dtype=np.float64, strides=None, order="C", stream=0):
    array = empty(shape, dtype)
    return DeviceArray(array if order == "C" else np.asfortranarray(array))


def _to_device(array, stream=0, copy=True, to=None):
    if to is not None:
        to.copy_to_device(array)
        return to
    return array if isinstance(array, DeviceArray) else DeviceArray(np.array(array, copy=True))


FUNCTIONS = {
    "device_array": _device_array,
    "device_array_like": lambda array, stream=0: _device_array(array.shape, array.dtype),
    "to_device": _to_device,
    "synchronize": lambda: None,
    "is_available": lambda: True,
    "event": Event,
    "default_stream": lambda: 0,
    "external_stream": lambda handle: 0,
    "defer_cleanup": nullcontext,
    "current_context": lambda: SimpleNamespace(get_memory_info=lambda: SimpleNamespace(free=FREE, total=FREE)),
}
