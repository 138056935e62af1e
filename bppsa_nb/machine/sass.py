"""Machine code of a kernel without a GPU: its registers, and what its loops take. Needs the `gpu` extra.

NVIDIA's assembler writes into every instruction for how many cycles a warp stalls before it issues the next one. Summed
up over a loop, that is the time that one warp needs to issue it once; waiting for memory, barriers and special
functions comes on top. So it says how long a step takes at least, and which of two kernels has less to do.
"""

import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from bppsa_nb.machine import backends

_LABEL = re.compile(r"^(\.L_x_\d+):")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,5}\*/\s+(.*?);\s*/\* 0x[0-9a-f]+ \*/")
_JUMP = re.compile(r"BRA `\((\.L_x_\d+)\)")
_SHORTEST = 4  # instructions of a loop; what is shorter only waits


class Loop(NamedTuple):
    """A loop, inner loops included: where it stands, its instructions by name, cycles to issue them, and waits."""

    first: int
    last: int
    names: Counter
    cycles: int
    waits: int  # instructions that wait for memory, a special function or another slow unit

    @property
    def instructions(self):
        """How many instructions there are."""
        return self.names.total()

    @property
    def products(self):
        """How many multiply-adds are among them."""
        return sum(self.names[name] for name in ("FFMA", "DFMA"))


class MachineCode(NamedTuple):
    """What a kernel takes: registers of a thread, bytes of local memory, all its code as if it were a loop, its loops.

    The longest loop comes first. Instructions are listed by name, in the order in which they stand.
    """

    registers: int
    local: int
    whole: Loop
    loops: list
    names: list

    def step(self, trips=0):
        """Return what a pass through the longest loop takes, as a `Loop`.

        Of the loops inside it, the one with the most multiply-adds is passed `trips` times. Others are for what seldom
        happens, and are left out.
        """
        longest, *others = self.loops
        inside = [loop for loop in others if longest.first <= loop.first and loop.last <= longest.last]
        outermost = [a for a in inside if not any(b.first <= a.first and a.last <= b.last for b in inside if a != b)]
        names, cycles, waits = Counter(longest.names), longest.cycles, longest.waits
        for loop in outermost:
            names, cycles, waits = names - loop.names, cycles - loop.cycles, waits - loop.waits
        if trips:
            repeated = max(inside, key=lambda loop: loop.products)
            names += Counter({name: trips * count for name, count in repeated.names.items()})
            cycles, waits = cycles + trips * repeated.cycles, waits + trips * repeated.waits
        return Loop(longest.first, longest.last, names, cycles, waits)

    def innermost(self, needed=None):
        """Return the innermost loop with the most multiply-adds among its instructions; it may have been unrolled.

        With an instruction that is `needed`, only loops that have it count.
        """
        counting = [loop for loop in self.loops if loop.products and (needed is None or loop.names[needed])]
        leaves = [a for a in counting if not any(a.first <= b.first and b.last <= a.last for b in counting if a != b)]
        return max(leaves, key=lambda loop: loop.products / loop.instructions)


def read(kernel, signature, generation="sm_90"):
    """Compile a kernel for a signature, a tuple of Numba's types, and a generation of GPUs; return its `MachineCode`.

    Raises ModuleNotFoundError or FileNotFoundError if the compiler, or the disassembler, is not installed, and
    UnavailableError on the simulator, which compiles nothing.
    """
    if backends.simulated():
        raise backends.UnavailableError("machine code: Numba's simulator compiles nothing; unset NUMBA_ENABLE_CUDASIM")
    import cuda.core as core
    from numba import cuda

    ptx, _ = cuda.compile_ptx(kernel.py_func, signature, cc=divmod(int(generation[3:]), 10))
    options = core.LinkerOptions(arch=generation, verbose=True)
    linker = core.Linker(core.ObjectCode.from_ptx(ptx.encode()), options=options)
    cubin, log = linker.link("cubin").code, linker.get_info_log()
    registers = re.search(r"Used (\d+) registers", log)
    local = re.search(r"(\d+) bytes stack frame", log)
    code, labels = _instructions(_disassemble(cubin))
    names = [_name(text) for text, *_ in code]
    return MachineCode(int(registers[1]), int(local[1]), _loop(code, 0, len(code) - 1), _loops(code, labels), names)


def _disassemble(cubin):
    found = (path for folder in sys.path for path in Path(folder).glob("nvidia/*/bin/nvdisasm"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [next(found, "nvdisasm"), "-hex", "-c", path]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def _instructions(lines):
    """List instructions (text, cycles, whether it waits), and at which of them labels stand."""
    code, labels = [], {}
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if label := _LABEL.match(line):
            labels[label[1]] = len(code)
        if found := _INSTRUCTION.search(line):
            # The control bits are in the upper half of an instruction's 128 bits, which is a line of its own.
            control = int(re.search(r"/\* (0x[0-9a-f]+) \*/", following)[1], 16)
            code.append((found[1], max(1, control >> 41 & 15), (control >> 52 & 63) > 0))
    return code, labels


def _loops(code, labels):
    """Find the loops: what jumps back."""
    loops = []
    for last, (text, *_) in enumerate(code):
        jump = _JUMP.search(text)
        first = labels.get(jump[1], last) if jump else last
        if last - first + 1 >= _SHORTEST:
            loops.append(_loop(code, first, last))
    return sorted(loops, key=lambda loop: -loop.instructions)


def _loop(code, first, last):
    part = code[first : last + 1]
    names = Counter(_name(text) for text, *_ in part)
    return Loop(first, last, names, sum(cycles for _, cycles, _ in part), sum(waits for *_, waits in part))


def _name(text):
    """Return the name of an instruction: without the predicate before it, and the modifiers behind it."""
    words = text.split()
    return words[text.startswith("@")].split(".")[0]
