"""What a compiler's host side finds in place of CUDA's driver: one device, its context, and memory of the process.

Arrays, views, ufuncs and reductions are the compiler's own; what they ask of the driver comes here, under the names
that the compiler has for it. Memory of the device is NumPy's (`memory.Allocation`), found again by its address.
"""

import logging
import tomllib
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from warpwatch.compilers import GENERATION
from warpwatch.memory import Allocation, allocate, bytes_at, found_at, register
from warpwatch.streams import LEGACY, Event, Stream

FREE = 1 << 36  # bytes of memory that are said to be free
BLOCK = 256  # threads of a block where `forall` may choose
ATTRIBUTES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def array_of(thing, size=None):
    """Return the NumPy array that an array of the device is, or a record; of that, or of memory, so many bytes."""
    if isinstance(thing, np.ndarray):  # mapped or managed
        return np.asarray(thing) if size is None else bytes_at(thing.ctypes.data, size, thing)
    if getattr(thing, "__cuda_memory__", False):
        address, about = thing.device_ctypes_pointer.value or 0, thing
    else:
        about = SimpleNamespace(**thing.__cuda_array_interface__)
        address, about.dtype = about.data[0] or 0, np.dtype(about.typestr)
    if size is not None or not hasattr(about, "dtype"):  # or a pointer
        about = SimpleNamespace(shape=(about.size if size is None else size,), dtype=np.dtype("u1"))
    shape = getattr(about, "shape", ())
    if 0 in shape:
        return np.empty(shape, about.dtype)
    if (owner := found_at(address)) is None:
        raise ValueError(f"{address:#x} is no address of the device that runs on the CPU")
    place = address - owner.ctypes.data
    return Allocation(shape, about.dtype, owner, place, getattr(about, "strides", None) or None)


class Device:
    """The one device."""

    id, name, uuid = 0, "warpwatch (PTX on the CPU)", "GPU-00000000-0000-0000-0000-000000000000"
    compute_capability, supports_float16, supports_bfloat16, supports_fp8 = GENERATION, True, True, True
    reset = release_primary_context = staticmethod(lambda: None)

    def __init__(self, context):
        self.primary_context, self.get_primary_context = context, lambda: context

    def __getattr__(self, name):
        if not name.isupper():
            raise AttributeError(f"the device that runs PTX on the CPU has no {name!r}")
        return ATTRIBUTES.get(name, 0)


class Context:
    """The device's context: it gives memory, streams and events, as the compiler's `driver` has them."""

    handle, can_access_peer, defer_cleanup = 0, staticmethod(lambda peer: False), staticmethod(nullcontext)
    push = pop = reset = prepare_for_use = staticmethod(lambda: None)
    create_stream, create_event, synchronize = Stream, Event, LEGACY.synchronize
    get_default_stream = get_legacy_default_stream = get_per_thread_default_stream = staticmethod(lambda: LEGACY)
    create_external_stream = staticmethod(lambda number: Stream.numbered.get(number, LEGACY))

    def __init__(self, driver):
        self.driver, self.allocations, self.device, self.memory_manager = driver, {}, Device(self), self
        # Memory is freed at once, and nothing waits for that.
        self.deallocations = SimpleNamespace(clear=lambda: None, disable=nullcontext, is_disabled=False)

    def give(self, kind, size, array, **how):
        """Return memory as the compiler holds it, of a class of its driver; free when nothing holds it any more."""
        (start, end), pinned = register(array), kind == "PinnedMemory"  # which no object of the device views

        def free():
            end()
            self.allocations.pop(start, None)

        pointer = start if pinned else self.driver.binding.CUdeviceptr(start)
        made = getattr(self.driver, kind)(self, pointer, size, finalizer=free, **how)
        if not pinned:
            self.allocations[start] = made
        return made.own()

    def memalloc(self, bytesize):
        """Return memory of the device, which nothing has written."""
        return self.give("AutoFreePointer", bytesize, allocate(bytesize))

    def memallocmanaged(self, bytesize, attach_global=True):
        """Return memory that host and device share."""
        return self.give("ManagedMemory", bytesize, np.zeros(bytesize, "u1"))

    def memhostalloc(self, bytesize, mapped=False, portable=False, wc=False):
        """Return memory of the host, which the device sees if it is mapped."""
        return self.give("MappedMemory" if mapped else "PinnedMemory", bytesize, np.zeros(bytesize, "u1"))

    def mempin(self, owner, pointer, size, mapped=False):
        """Pin memory of the host, and map it."""
        return self.give("MappedMemory" if mapped else "PinnedMemory", size, bytes_at(pointer, size), owner=owner)

    def get_memory_info(self):
        """Return free and total bytes."""
        return self.driver.MemoryInfo(free=FREE, total=FREE)


TITLES = {"host_to_device": "copy_to_device", "device_to_host": "copy_to_host", "device_to_device": "copy_to_device"}


def places(compiler, issue):
    """Return what is exchanged in a compiler's modules while a device is on: (object, name) -> value.

    `issue(name, source, target, stream)` sets one array to another.
    """
    driver, devices, cuda = compiler.part("cudadrv.driver"), compiler.part("cudadrv.devices"), compiler.cuda

    def move(name, dst, src, size, stream=0):
        held = lambda at: (at, size) if isinstance(at, int) else ((a := np.asarray(at)).ctypes.data, size, a)  # noqa: E731
        source, target = (array_of(each, size) if of == "device" else bytes_at(*held(each))
                          for each, of in zip((src, dst), name.split("_to_"), strict=True))  # fmt: skip
        issue(TITLES[name], source, target, stream)

    def memset(dst, val, size=None, stream=0):
        issue("memset", np.uint8(val & 255), array_of(dst, array_of(dst).nbytes if size is None else size), stream)

    def set_item(array, key, value, stream=0):
        key = key if isinstance(key, tuple) else (key,)
        whole = array_of(array)
        part = whole[key if Ellipsis in key else (*key, ...)]
        if not np.may_share_memory(part, whole) and part.size:
            raise NotImplementedError(f"an array of the device is set by numbers and slices, not by {key!r}")
        value = array_of(value) if hasattr(value, "__cuda_array_interface__") else np.asarray(value)
        issue("setitem", value, part, stream or array.stream)

    context, lists = Context(driver), type(devices.gpus)
    gpus = [devices._DeviceContextManager(context.device)]
    runtime = SimpleNamespace(gpus=gpus, ensure_context=nullcontext, reset=lambda: None,
                              get_or_create_context=lambda n: gpus[n or 0]._device.primary_context)  # fmt: skip
    singleton = {"is_initialized": True, "initialization_error": None, "get_device_count": lambda: 1,
                 "get_device": lambda n=0: context.device, "get_version": lambda: (12, 9),
                 "cuMemHostGetDevicePointer": lambda pointer, flags: pointer, "cuProfilerStart": lambda: None,
                 "cuProfilerStop": lambda: None}  # fmt: skip
    return {**{(driver, name): partial(move, name) for name in TITLES}, (driver, "device_memset"): memset,
            **{(driver.driver, name): value for name, value in singleton.items()},
            (devices, "_runtime"): runtime, (driver, "_logger"): logging.getLogger("numba.cuda.cudadrv.driver"),
            (lists, "lst"): property(lambda self: gpus), (lists, "current"): property(lambda self: gpus[0]),
            (compiler.part("cudadrv.devicearray").DeviceNDArray, "_do_setitem"): set_item,
            (driver.MemoryPointer, "memset"): memset, (cuda, "event_elapsed_time"): Event.elapsed_time,
            (cuda, "is_available"): lambda: True}  # fmt: skip
