"""Machine code of a kernel without a GPU: its registers, and what its loops take. Needs the `gpu` extra.

NVIDIA's assembler writes into every instruction for how many cycles a warp stalls before it issues the next one. Summed
up over a loop, that is the time that one warp needs to issue it once; waiting for memory, barriers and special
functions comes on top. So it says how long a step takes at least, and which of two kernels has less to do.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from bppsa_nb.machine import content

_LABEL = re.compile(r"^(\.L_x_\d+):")
# All but the predicate before it, and its name, without the modifiers behind it.
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,5}\*/\s+(?:@\S+\s+)?(([^\s.;]+).*?);\s*/\* 0x[0-9a-f]+ \*/")
_JUMP = re.compile(r"BRA `\((\.L_x_\d+)\)")
_SHORTEST = 4  # instructions of a loop; what is shorter only waits


class Part(list):
    """Some of a kernel's instructions: names, cycles until the next one, and whether it waits for a slow unit."""

    @property
    def names(self):
        """What each of them is called."""
        return [name for name, *_ in self]

    @property
    def instructions(self):
        """How many there are."""
        return len(self)

    @property
    def products(self):
        """How many multiply-adds are among them."""
        return sum(name in ("FFMA", "DFMA") for name in self.names)

    @property
    def cycles(self):
        """How long a warp takes to issue them."""
        return sum(cycles for _, cycles, _ in self)

    @property
    def waits(self):
        """How many wait for memory, a special function or another slow unit."""
        return sum(waits for *_, waits in self)


class MachineCode(NamedTuple):
    """What a kernel takes: registers of a thread, bytes of local memory, all its code, and where its loops stand.

    Loops are ranges of instructions, inner loops included; the longest comes first. `seldom` are ranges that a warp
    jumps over when its threads have voted to.
    """

    registers: int
    local: int
    whole: Part
    loops: list
    seldom: list

    def part(self, places, but=()):
        """Return the instructions at some places, but without those in some loops."""
        return Part(self.whole[i] for i in places if not any(i in loop for loop in but))

    def step(self, trips=0):
        """Return what a pass through the longest loop takes.

        Of the loops inside it, the one with the most multiply-adds is passed `trips` times. Others are for what seldom
        happens, and are left out, as is what is `seldom`.
        """
        longest, *others = self.loops
        inside = [loop for loop in others if set(loop) <= set(longest)]
        repeated = max(map(self.part, inside), key=lambda part: part.products) if trips else []
        return Part(self.part(longest, but=inside + self.seldom) + trips * repeated)

    def innermost(self, *needed):
        """Return the loop with the largest share of multiply-adds that has none with multiply-adds inside.

        Loops without the instructions that are `needed` do not count. It may have been unrolled.
        """
        counting = [loop for loop in self.loops if self.part(loop).products and {*needed} <= {*self.part(loop).names}]
        leaves = [a for a in counting if not any(a != b and set(b) <= set(a) for b in counting)]
        return max(map(self.part, leaves), key=lambda part: part.products / part.instructions)


def verdict(ptx, generation):
    """Return what NVIDIA's linker says of a kernel's registers and spills; it is kept for PTX, generation and toolkit.

    Without the linker there is a ModuleNotFoundError.
    """
    from cuda.bindings import nvjitlink

    return content.kept(lambda: _link(ptx, generation)[1], "verdict", ptx, generation, nvjitlink.version())


def _link(ptx, generation):
    """Return a kernel's machine code, and what the linker says of it."""
    import cuda.core as core

    told = core.LinkerOptions(arch=generation, verbose=True)
    linker = core.Linker(core.ObjectCode.from_ptx(ptx.encode()), options=told)
    return linker.link("cubin").code, linker.get_info_log()


def read(kernel, signature, generation="sm_90", **options):
    """Compile a kernel for types of arguments and a generation of GPUs, with options; return its `MachineCode`.

    Without compiler or disassembler there is a ModuleNotFoundError or a FileNotFoundError.
    """
    from bppsa_nb.machine.cuda_compiler import compile_ptx

    ptx = compile_ptx(kernel.py_func, signature, divmod(int(generation[3:]), 10), **options)
    cubin, log = _link(ptx, generation)
    registers = re.search(r"Used (\d+) registers", log)
    local = re.search(r"(\d+) bytes stack frame", log)
    return MachineCode(int(registers[1]), int(local[1]), *_parse(_disassemble(cubin)))


def _disassemble(cubin):
    found = (path for folder in sys.path for path in Path(folder).glob("nvidia/*/bin/nvdisasm"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [next(found, "nvdisasm"), "-hex", "-c", path]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def _parse(lines):
    """List the instructions, and the loops, which are what jumps back, as ranges of them."""
    code, jumps, labels = Part(), [], {}
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if label := _LABEL.match(line):
            labels[label[1]] = len(code)
        if found := _INSTRUCTION.search(line):
            # The control bits are in the upper half of an instruction's 128 bits, which is a line of its own.
            control = int(re.search(r"/\* (0x[0-9a-f]+) \*/", following)[1], 16)
            if jump := _JUMP.search(found[1]):
                jumps.append((jump[1], len(code)))
            code.append((found[2], max(1, control >> 41 & 15), (control >> 52 & 63) > 0))
    loops = [range(labels.get(label, last), last + 1) for label, last in jumps]
    over = [range(last + 1, labels.get(label, last)) for label, last in jumps if "B2R" in Part(code[:last][-4:]).names]
    return code, sorted((loop for loop in loops if len(loop) >= _SHORTEST), key=lambda loop: -len(loop)), over
