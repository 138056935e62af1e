"""What a compiler's host side finds in place of CUDA's driver: one device, its context, and memory of the process.

Arrays, views, ufuncs and reductions are the compiler's own; what they ask of the driver comes here, under the names
that the compiler has for it. Memory of the device is NumPy's (`memory.Allocation`), found again by its address.
"""

import ctypes
from bisect import bisect_right, insort
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import numpy as np

from warpwatch.compilers import GENERATION
from warpwatch.memory import Allocation, allocate
from warpwatch.streams import LEGACY, Event, Stream

FREE = 1 << 36  # bytes of memory that are said to be free
# Of an H100; whatever else is asked for is 0.
ATTRIBUTES = {
    "MAX_THREADS_PER_BLOCK": 1024, "MAX_BLOCK_DIM_X": 1024, "MAX_BLOCK_DIM_Y": 1024, "MAX_BLOCK_DIM_Z": 64,
    "MAX_GRID_DIM_X": (1 << 31) - 1, "MAX_GRID_DIM_Y": 65535, "MAX_GRID_DIM_Z": 65535, "WARP_SIZE": 32,
    "MULTIPROCESSOR_COUNT": 132, "MAX_THREADS_PER_MULTIPROCESSOR": 2048, "MAX_SHARED_MEMORY_PER_BLOCK": 48 * 1024,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 227 * 1024, "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 228 * 1024,
    "MAX_REGISTERS_PER_BLOCK": 65536, "TOTAL_CONSTANT_MEMORY": 65536, "COMPUTE_CAPABILITY_MAJOR": GENERATION[0],
    "COMPUTE_CAPABILITY_MINOR": GENERATION[1], "CAN_MAP_HOST_MEMORY": 1, "UNIFIED_ADDRESSING": 1, "MANAGED_MEMORY": 1,
    "CONCURRENT_KERNELS": 1, "ASYNC_ENGINE_COUNT": 1, "SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO": 2,
}  # fmt: skip
BLOCK = 256  # threads of a block where `forall` may choose


class Memories:
    """Memory that has an address on the device, by address."""

    def __init__(self):
        self.starts, self.by_start = [], {}

    def add(self, array):
        """Register bytes; return where they begin."""
        start = array.ctypes.data
        if start not in self.by_start:
            insort(self.starts, start)
        self.by_start[start] = array
        return start

    def remove(self, start):
        """Forget bytes that were freed."""
        if self.by_start.pop(start, None) is not None:
            del self.starts[bisect_right(self.starts, start) - 1]

    def at(self, address):
        """Return the bytes that have an address, and its place in them."""
        n = bisect_right(self.starts, address) - 1
        found = self.by_start[self.starts[n]] if n >= 0 else ()
        if n < 0 or address - self.starts[n] > len(found):
            raise ValueError(f"{address:#x} is no address of the device that runs on the CPU")
        return found, address - self.starts[n]


MEMORIES = Memories()


def array_of(thing, shape=None, dtype=None, strides=None):
    """Return the NumPy array that an array of the device is, or a record, or memory as bytes."""
    if isinstance(thing, np.ndarray):  # mapped or managed
        return np.asarray(thing)
    if getattr(thing, "__cuda_memory__", False):
        address, about = thing.device_ctypes_pointer.value or 0, thing
    else:
        about = SimpleNamespace(**thing.__cuda_array_interface__)
        address, about.dtype = about.data[0] or 0, np.dtype(about.typestr)
    if not hasattr(about, "dtype"):  # a pointer
        about = SimpleNamespace(shape=(about.size,), dtype=np.dtype("u1"), strides=None)
    shape = getattr(about, "shape", ())
    if 0 in shape:
        return np.empty(shape, about.dtype)
    owner, offset = MEMORIES.at(address)
    return Allocation(shape, about.dtype, owner, offset, getattr(about, "strides", None) or None)


def bytes_at(address, size):
    """Return memory of the host as an array of bytes."""
    return np.frombuffer((ctypes.c_uint8 * size).from_address(address), "u1")


class Device:
    """The one device."""

    id, name, uuid = 0, b"warpwatch, which runs PTX on the CPU", "GPU-00000000-0000-0000-0000-000000000000"
    compute_capability, supports_float16, supports_bfloat16, supports_fp8 = GENERATION, True, True, True

    def __init__(self, context):
        self.primary_context = context

    def __getattr__(self, name):
        if not name.isupper():
            raise AttributeError(f"the device that runs PTX on the CPU has no {name!r}")
        return ATTRIBUTES.get(name, 0)

    def get_primary_context(self):
        """Return the one context."""
        return self.primary_context

    def reset(self):
        """Let everything be as it is."""

    def get_device_identity(self):
        """Return where on the bus it is."""
        return {"pci_domain_id": 0, "pci_bus_id": 0, "pci_device_id": 0}

    release_primary_context = reset


class Deallocations:
    """What a context would free later; here memory is freed at once."""

    is_disabled, clear, __len__ = False, staticmethod(lambda: None), lambda self: 0
    disable = staticmethod(nullcontext)


class Context:
    """The device's context: it gives memory, streams and events."""

    handle = 0

    def __init__(self, driver):
        self.allocations, self.driver, self.deallocations, self.device = {}, driver, Deallocations(), Device(self)
        self.memory_manager = self

    def _pointer(self, kind, size, array=None, **how):
        """Return memory as the compiler holds it; it is free when nothing holds it any more."""
        array = allocate(size) if array is None else array
        start, pointer = MEMORIES.add(array), self.driver.binding.CUdeviceptr(array.ctypes.data)
        pointer = array.ctypes.data if kind == "PinnedMemory" else pointer

        def free():
            MEMORIES.remove(start)
            self.allocations.pop(start, None)

        made = getattr(self.driver, kind)(self, pointer, size, finalizer=free, **how)
        if kind != "PinnedMemory":  # is held by its views
            self.allocations[start] = made
        return made.own()

    def memalloc(self, bytesize):
        """Return memory of the device, which nothing has written."""
        return self._pointer("AutoFreePointer", bytesize)

    def memallocmanaged(self, bytesize, attach_global=True):
        """Return memory that host and device share."""
        return self._pointer("ManagedMemory", bytesize, np.zeros(bytesize, "u1"))

    def memhostalloc(self, bytesize, mapped=False, portable=False, wc=False):
        """Return memory of the host, which the device sees if it is mapped."""
        return self._pointer("MappedMemory" if mapped else "PinnedMemory", bytesize, np.zeros(bytesize, "u1"))

    def mempin(self, owner, pointer, size, mapped=False):
        """Pin memory of the host, and map it."""
        kind = "MappedMemory" if mapped else "PinnedMemory"
        return self._pointer(kind, size, bytes_at(pointer, size), owner=owner)

    def get_memory_info(self):
        """Return free and total bytes."""
        return self.driver.MemoryInfo(free=FREE, total=FREE)

    def get_max_potential_block_size(self, func, b2d_func, memsize, blocksizelimit, flags=None):
        """Return a grid's and a block's size."""
        return ATTRIBUTES["MULTIPROCESSOR_COUNT"], min(BLOCK, blocksizelimit or BLOCK)

    def get_active_blocks_per_multiprocessor(self, func, blocksize, memsize, flags=None):
        """Return how many blocks a multiprocessor has threads for."""
        return ATTRIBUTES["MAX_THREADS_PER_MULTIPROCESSOR"] // blocksize

    def get_default_stream(self):
        """Return the legacy default stream."""
        return LEGACY

    get_legacy_default_stream = get_per_thread_default_stream = get_default_stream

    def create_stream(self):
        """Return a stream."""
        return Stream()

    def create_external_stream(self, ptr):
        """Return the stream that has a number."""
        return Stream.numbered.get(ptr) or LEGACY

    def create_event(self, timing=True):
        """Return an event."""
        return Event(timing)

    def synchronize(self):
        """Let the host wait for all."""
        LEGACY.synchronize()

    def can_access_peer(self, peer_device):
        """Say that there is no other device."""
        return False

    def defer_cleanup(self):
        """Free as always."""
        return nullcontext()

    def push(self):
        """Let the context be current, which it always is."""

    reset = pop = prepare_for_use = push


class Runtime:
    """Finds the context, which is there already."""

    def __init__(self, context, manager):
        self.context, self.gpus = context, [manager(context.device)]

    def get_or_create_context(self, devnum):
        """Return the context of a device, 0 or the current one."""
        return self.gpus[devnum or 0]._device.primary_context

    @contextmanager
    def ensure_context(self):
        """Let a function run in the context."""
        yield

    def reset(self):
        """Let everything be as it is."""


def copied(issue):
    """Return what copies between host and device, or sets memory, under the compiler's names.

    `issue(name, source, target, bytes, stream)` copies.
    """

    def host(thing, size):
        return bytes_at(thing, size) if isinstance(thing, int) else thing

    def host_to_device(dst, src, size, stream=0):
        issue("copy_to_device", host(src, size), array_of(dst), size, stream)

    def device_to_host(dst, src, size, stream=0):
        issue("copy_to_host", array_of(src), host(dst, size), size, stream)

    def device_to_device(dst, src, size, stream=0):
        issue("copy_to_device", array_of(src), array_of(dst), size, stream)

    def device_memset(dst, val, size, stream=0):
        issue("memset", np.full(size, val & 255, "u1"), array_of(dst), size, stream)

    def _do_setitem(self, key, value, stream=0):
        key = key if isinstance(key, tuple) else (key,)
        part = array_of(self)[key if Ellipsis in key else (*key, ...)]
        value = array_of(value) if hasattr(value, "__cuda_array_interface__") else np.asarray(value)
        issue("setitem", value, part, None, stream or self.stream)

    return [host_to_device, device_to_host, device_to_device, device_memset], _do_setitem


def places(compiler, issue):
    """Return what is exchanged in a compiler's modules while a device is on: (object, name) -> value."""
    driver, devices, cuda = compiler.part("cudadrv.driver"), compiler.part("cudadrv.devices"), compiler.cuda
    runtime = Runtime(Context(driver), devices._DeviceContextManager)
    copies, set_item = copied(issue)
    made = {(driver, function.__name__): function for function in copies}
    made |= {(driver.driver, name): value for name, value in {
        "is_initialized": True, "initialization_error": None, "get_device_count": lambda: 1,
        "get_device": lambda devnum=0: runtime.context.device, "get_version": lambda: (12, 9),
        "cuMemHostGetDevicePointer": lambda pointer, flags: pointer,
        "cuProfilerStart": lambda: None, "cuProfilerStop": lambda: None,
    }.items()}  # fmt: skip
    lists = type(devices.gpus)
    made |= {(lists, "lst"): property(lambda self: runtime.gpus), (devices, "_runtime"): runtime,
             (lists, "current"): property(lambda self: runtime.gpus[0]),
             (driver.MemoryPointer, "memset"): lambda self, byte, count=None, stream=0: driver.device_memset(
                 self, byte, self.size if count is None else count, stream),
             (compiler.part("cudadrv.devicearray").DeviceNDArray, "_do_setitem"): set_item,
             (cuda, "event_elapsed_time"): Event.elapsed_time, (cuda, "is_available"): lambda: True}  # fmt: skip
    return made
