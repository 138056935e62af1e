"""Whole CUDA programs: `cudart.c` stands in for the CUDA runtime under their host code, and asks here for the device.

All memory of the device is one sparse file, which this process and those of the program map at the same addresses, so
what kernels are handed needs no translation. An address is given once only, and far from others.
"""

import ctypes
import os
import re
import shutil
import struct
import subprocess
from contextlib import suppress
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingUnixStreamServer
from threading import Lock, Thread

import numpy as np

from warpwatch.blocks import Kernel, parse
from warpwatch.host import ATTRIBUTES, FREE
from warpwatch.lanes import Program
from warpwatch.launch import prepared, understood
from warpwatch.memory import Allocation, Region, allocate, bytes_at
from warpwatch.parse import short_name
from warpwatch.streams import LEGACY, Event, Stream, finish
from warpwatch.virtual import written

NAMES = "libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"
OPTIONS = "compile it with nvcc -lineinfo -cudart shared -no-compress"
BASE, HALF, GAP = 1 << 45, 1 << 43, 1 << 22  # the second half is memory that host and device share
ASKED, ANSWERED = struct.Struct("16sII12q"), struct.Struct("5q")  # as in cudart.c


def prepare(command, watch):
    """Let a command find the stand-in where it, or what it starts, needs a CUDA runtime; refuse what could not."""
    path, folder = Path(shutil.which(command[0]) or command[0]), Path(watch.path).parent
    data = path.read_bytes() if path.is_file() else b""
    needed = re.search(rb"\0(libcudart\.so\.[\d.]+)\0", data)
    if b".nvFatBinSegment" in data and not (needed and re.search(rb"\.version \d+\.\d+\s+\.target", data)):
        raise ValueError(f"{path} has {'no PTX as plain text' if needed else 'the CUDA runtime in it'}; {OPTIONS}")
    if needed and not shutil.which("cc"):
        raise ValueError(f"{path} is a CUDA program: to run it, a C compiler is needed, `cc`")
    if path.name.startswith("python") or re.match(rb"#!.*python", data) or not shutil.which("cc"):
        return
    made = [build(folder, name) for name in ([needed[1].decode()] if needed else NAMES)]
    if (library := ctypes.CDLL(made[0])).warpwatch_share(os.fsencode(folder)):
        raise ValueError("the device's memory finds no room among the addresses of this process")
    server = ThreadingUnixStreamServer(str(folder / "socket"), Process)
    server.daemon_threads, server.lock, server.next = True, Lock(), [BASE, BASE + HALF]
    server.watch, server.library = watch, library
    Thread(target=server.serve_forever, daemon=True).start()
    name, place = ("LD_PRELOAD", made[0]) if needed else ("LD_LIBRARY_PATH", folder)
    os.environ |= {name: f"{place}:{os.environ.get(name, '')}".rstrip(":"), "WARPWATCH_CUDART": str(folder)}


def build(folder, name):
    """Compile the stand-in for a library of this name; return its path."""
    (folder / "versions").write_text(f"{name} {{ global: *; }};")
    linked = f"-Wl,-soname,{name},--version-script={folder / 'versions'}"
    known = ATTRIBUTES | {"FREE": FREE, "BASE": BASE, "HALF": HALF, "CUDART": name.split(".")[2]}
    command = ["cc", "-w", "-O1", "-shared", "-fPIC", "-pthread", linked, "-o", made := folder / name,
               *(f"-D{key}={value}L" for key, value in known.items()), Path(__file__).with_suffix(".c")]  # fmt: skip
    if subprocess.run(command).returncode:
        raise ValueError(f"cc does not compile what stands in for {name}")
    return made


class Process(StreamRequestHandler):
    """What a process of the program has; it asks by names of methods, with a text and numbers, and gets numbers."""

    def handle(self):
        """Answer until the process ends."""
        self.texts, self.kernels, self.handles, self.broken = {}, {}, {0: LEGACY, 1: LEGACY}, 0
        self.memory, self.freed = {}, []  # regions by address; the latest that were freed, without size
        with suppress(OSError):
            while asked := self.rfile.read(ASKED.size):
                what, many, size, *numbers = ASKED.unpack(asked)
                what, given = what.rstrip(b"\0").decode(), self.rfile.read(size)
                given = given if what == "launch" else given.decode()
                with self.server.lock:
                    try:
                        made = (0, *(_ASKED[what](self, given, *numbers[:many]) or ()))
                    except Exception as error:
                        name = self.kernels[numbers[0]].kernel.name if what == "launch" else given
                        error = ValueError(f"{error} is no stream or event") if type(error) is KeyError else error
                        self.server.watch.refused(short_name(name), error)
                        made = (801 if what in ("launch", "kernel", "symbol") else 1,)  # not supported; invalid value
                self.wfile.write(ANSWERED.pack(self.broken or made[0], *made[1:], *(0,) * (5 - len(made))))
        for address in list(self.memory):
            self.free("", address)

    def reader(self, module, what, name):
        """Return what has read the text, one of a module's, that has a kernel or a variable."""
        for text, room in self.texts.get(module, ()):
            if name in getattr(reader := parse(text, room), what):
                return reader
        raise ValueError(f"the program has no PTX of it for sm_90 or older, as -arch=sm_90 makes; {OPTIONS}")

    def kernel(self, name, module, number, n):
        """Take a kernel by number; return a parameter's size, how many there are, and its shared and local memory."""
        if number not in self.kernels:
            with understood():
                self.kernels[number] = Program(Kernel(self.reader(module, "kernels", name), name))
        kernel = self.kernels[number].kernel
        sizes = [size for *_, size in kernel.params]
        return (sizes or [0])[n], len(sizes), kernel.shared - kernel.gaps, kernel.local

    def give(self, name, size, shared=True):
        """Give memory under a name; what the host shares is zero, and counts as written."""
        start, size = self.server.next[shared], max(size, 1)
        self.server.next[shared] = end = (start + size) // GAP * GAP + 2 * GAP
        if end > BASE + HALF * (1 + shared):
            raise MemoryError("all addresses of the device have been given once")
        array = allocate(size, bytes_at(start, size))
        if shared:
            array[...], array.written[...] = 0, 255
        self.memory[start] = Region(start, start + size, short_name(name), owner=array)
        return array

    def free(self, _, address):
        """Take memory back; where it was, nothing is from now on."""
        region = self.memory.pop(address)
        self.server.library.warpwatch_drop(ctypes.c_void_p(address), ctypes.c_size_t(region.end - address))
        self.freed = [*self.freed[-99:], Region(address, address, f"freed {region.name}")]

    def copy(self, name, *numbers):
        """Note a copy of rows, which the process then does itself; of those of the host, nothing is known here."""
        width, height, stream, *places = numbers
        source, target = (Allocation((height, width), "u1", self.memory[start].owner, place, (step, 1))
                          if start else np.empty(0) for start, place, step in (places[:3], places[3:]))  # fmt: skip

        def run(operation, _):
            if target.size:
                written(target)[...] = written(source)
            try:
                if operation:
                    operation.copy(source, target)
            except AssertionError as error:
                self.server.watch.write(name, [{"kind": "race", "file": "", "line": 0, "text": str(error)}])

        stream = self.handles[stream]
        stream.begin(f"{name} on {stream.name}", run, None)

    def launch(self, given, number, *sizes):
        """Run a kernel; what it prints comes at once."""
        program, (shared, stream, together), params, place = self.kernels[number], sizes[6:], {}, 0
        for name, _, size in program.kernel.params:
            params[name], place = np.frombuffer(given, "u1", size, place), place + size
        asked = [sizes[n] if sizes[n + 1] == sizes[n + 2] == 1 else sizes[n : n + 3] for n in (0, 3)]
        named = {int.from_bytes(arg, "little"): f"argument {n}" for n, arg in enumerate(params.values()) if arg.any()}
        known = sorted((Region(0, 0, "null"), *self.freed, *self.memory.values()), key=lambda each: each.start)
        for n, each in enumerate(known):
            if each.start in named:
                name = "freed " * (each.end == each.start) + named[each.start]
                known[n] = Region(each.start, each.end, name, owner=each.owner)

        def run(operation, _):
            made = prepared(program, asked, params, shared, known, operation or True)
            made.together, made.place = together > 0, made.place * (together > 0)
            with understood():
                report = made.run(self.server.watch.steps)
            print(end="", flush=True)
            self.server.watch.found(report)
            if {"trap", "endless"} & {found.kind for found in report.findings}:
                self.broken = 719  # cudaErrorLaunchFailure, whatever is asked from now on

        stream = self.handles[stream]
        stream.begin(f"{short_name(program.kernel.name)} on {stream.name}", run, None)


# What processes ask; streams and events have numbers.
_ASKED = {
    **{name: getattr(Process, name) for name in ("kernel", "free", "copy", "launch")},
    "module": lambda own, text, n: own.texts.setdefault(n, []).append((text, lambda *given: own.give(*given))),
    "symbol": lambda own, name, module: (own.reader(module, "variables", name).variables[name][3].ctypes.data,),
    "refuse": lambda own, said: own.server.watch.refused(
        short_name((told := said.split(": ", 1))[0]), ValueError(told[1])),
    "malloc": lambda own, name, size, shared: (own.give(name, size, shared).ctypes.data,),
    "hold": lambda own, _, n, kind: own.handles.update({n: Stream(kind > 1) if kind else Event()}),
    "forget": lambda own, _, n: own.handles.__delitem__(n),
    "wait": lambda own, _, n: own.handles[n].synchronize(),
    "order": lambda own, _, stream, event: own.handles[stream].wait(own.handles[event]),
    "record": lambda own, _, event, stream: own.handles[event].record(own.handles[stream]),
    "elapsed": lambda own, _, start, end: (int(1e6 * own.handles[start].elapsed_time(own.handles[end])),),
    "finish": lambda own, _: finish(),
}  # fmt: skip
