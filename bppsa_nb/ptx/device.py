"""A device that runs compiled kernels on the CPU: while it is on, `cuda` has its arrays, and launches come here.

Whatever is launched is done when the call returns, so that streams and events have nothing to wait for. Numba compiles
kernels as for a GPU of compute capability 9.0; its dispatcher's ``kernel[grid, block]`` and those functions of
`cuda` that make arrays are exchanged meanwhile.
"""

import time
from contextlib import contextmanager, nullcontext
from operator import attrgetter
from types import SimpleNamespace

import numpy as np

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


def on():
    """Tell whether the device is on."""
    return bool(_on)


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
    from bppsa_nb.machine.cuda_compiler import cuda

    reports, dispatcher_class = [], type(cuda.jit(lambda: None))

    def configured(dispatcher, configuration):
        grid, block, *rest = configuration
        shared = rest[1] if len(rest) > 1 else 0

        def start(*arguments):
            arguments = [argument.array if isinstance(argument, DeviceArray) else argument for argument in arguments]
            report = launch(dispatcher, grid, block, arguments, shared=shared, watch=watch)
            if watch:
                reports.append(report)
            if report.findings:
                raise AssertionError(str(report))

        return start

    changes = {(dispatcher_class, "__getitem__"): configured}
    changes |= {(cuda, name): function for name, function in FUNCTIONS.items()}
    before = {place: getattr(*place) for place in changes}
    for place, function in changes.items():
        setattr(*place, function)
    _on.append(reports)
    try:
        yield reports
    finally:
        _on.remove(reports)
        for place, function in before.items():
            setattr(*place, function)


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
