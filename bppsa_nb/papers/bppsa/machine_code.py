"""Machine code of a kernel without a GPU: its registers, and what its loops take. Needs the `gpu` extra.

NVIDIA's assembler writes into every instruction for how many cycles a warp stalls before it issues the next one. Summed
up over a loop, that is the time that one warp needs to issue it once; waiting for memory, barriers and special
functions comes on top. So it says how long a step takes at least, and which of two kernels has less to do.

`compiled` reads any kernel's, and `read` that of the hot kernels, at the papers' size: H = 20, float32, a GPU of the
ninth generation. Toolkits from 12.9 to 13.5 make code that takes the same time to within a tenth. `chains/prices.json`
has prices that follow from it.
"""

import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

import bppsa_nb as bp

H, GENERATION = 20, "sm_90"
CLOCK = 1.98e9  # cycles a second, of an H100 or H200
WAIT = 10  # cycles, on average: some wait long for memory or a barrier, but most at the same time as others
LAUNCH = 4e-6  # seconds between a launch and the next, from Python
LANES = 132 * 128  # multiply-adds at once on such a GPU
BYTES = 3e12  # a second, from its memory
_LABEL = re.compile(r"^(\.L_x_\d+):")
# All but the predicate before it, and its name, without the modifiers behind it.
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,5}\*/\s+(?:@\S+\s+)?(([^\s.;]+).*?);\s*/\* 0x[0-9a-f]+ \*/")
_JUMP = re.compile(r"BRA `\((\.L_x_\d+)\)")
_SHORTEST = 4  # instructions of a loop; what is shorter only waits


@dataclass
class Part:
    """Some of a kernel's instructions: `code` has names, cycles until the next one, and who waits for a slow unit.

    `instructions`, multiply-adds (`products`), `cycles` to issue them, and `waits` (for memory, a special function or
    another slow unit) are added up.
    """

    code: list

    def __post_init__(self):
        self.names = [name for name, *_ in self.code]
        self.instructions, self.products = len(self.code), sum(name in ("FFMA", "DFMA") for name in self.names)
        self.cycles, self.waits = (sum(each[column] for each in self.code) for column in (1, 2))


@dataclass
class MachineCode:
    """What a kernel takes: registers of a thread, bytes of local memory, all its code, and where its loops stand.

    Loops are ranges of instructions, inner loops included; the longest comes first. `seldom` are ranges that a warp
    jumps over when its threads have voted to.
    """

    registers: int
    local: int
    whole: Part
    loops: list
    seldom: list

    def part(self, places, but=(), more=()):
        """Return the instructions at some places, without those in some ranges, and with those at others."""
        kept = [i for i in places if not any(i in each for each in but)]
        return Part([self.whole.code[i] for i in (*kept, *more)])

    def step(self, trips=0):
        """Return what a pass through the longest loop takes.

        Of the loops inside it, the one with the most multiply-adds is passed `trips` times. Others are for what seldom
        happens, and are left out, as is what is `seldom`.
        """
        longest, *others = self.loops
        inside = [loop for loop in others if set(loop) <= set(longest)]
        repeated = max(inside, key=lambda loop: self.part(loop).products) if trips else []
        return self.part(longest, inside + self.seldom, trips * [*repeated])

    def innermost(self, *needed):
        """Return the loop with the largest share of multiply-adds that has none with multiply-adds inside.

        Loops without the instructions that are `needed` do not count. It may have been unrolled.
        """
        counting = [loop for loop in self.loops if self.part(loop).products and {*needed} <= {*self.part(loop).names}]
        leaves = [a for a in counting if not any(a != b and set(b) <= set(a) for b in counting)]
        return max(map(self.part, leaves), key=lambda part: part.products / part.instructions)


def compiled(kernel, signature, generation=GENERATION, **options):
    """Compile a kernel for types of arguments and a generation of GPUs, with options; return its `MachineCode`.

    Without compiler or disassembler there is a ModuleNotFoundError or a FileNotFoundError.
    """
    from bppsa_nb.machine.cuda_compiler import compile_ptx

    cubin, log = link(compile_ptx(kernel.py_func, signature, divmod(int(generation[3:]), 10), **options), generation)
    registers = re.search(r"Used (\d+) registers", log)
    local = re.search(r"(\d+) bytes stack frame", log)
    return MachineCode(int(registers[1]), int(local[1]), *_parse(_disassemble(cubin)))


def link(ptx, generation):
    """Return a kernel's machine code, and what NVIDIA's linker says of its registers and spills."""
    import cuda.core as core

    told = core.LinkerOptions(arch=generation, verbose=True)
    linker = core.Linker(core.ObjectCode.from_ptx(ptx.encode()), options=told)
    return linker.link("cubin").code, linker.get_info_log()


def _disassemble(cubin):
    found = (path for folder in sys.path for path in Path(folder).glob("nvidia/*/bin/nvdisasm"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [next(found, "nvdisasm"), "-hex", "-c", path]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def _parse(lines):
    """List the instructions, and the loops, which are what jumps back, as ranges of them."""
    code, jumps, labels = [], [], {}
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
    return Part(code), sorted((loop for loop in loops if len(loop) >= _SHORTEST), key=lambda loop: -len(loop)), over


class Cost(NamedTuple):
    """What a kernel takes: registers of a thread, bytes that it spills, and what one warp has to do for a step."""

    registers: int
    spilled: int
    instructions: float
    products: float  # multiply-adds among them
    cycles: float  # to issue them
    waits: float  # instructions that wait for memory, a barrier or a special function

    @property
    def seconds(self):
        """How long a step takes, as predicted."""
        return (self.cycles + WAIT * self.waits) / CLOCK


def kernels():
    """List the hot kernels by name: each with the types of its arguments, a part of its code, and how much that does.

    The part is the "innermost" loop, the loop that "waits" at a barrier, the "whole" code, or the longest loop, with so
    many passes of its inner loop. It does so many time steps, or as many as it has multiply-adds, if that is None.
    """
    from bppsa_nb.cells import cell_cuda, chunked_cuda, layer_cuda, weight_gradients_cuda
    from bppsa_nb.chains import kernels_cuda, levels_cuda, multiply_cuda
    from bppsa_nb.machine.arrays_cuda import EACH
    from bppsa_nb.machine.cuda_compiler import types
    from bppsa_nb.operands import products_cuda

    real, number, flag = np.float32, types.int64, types.boolean
    a1, a2, a3, a4 = (types.Array(types.float32, ndim, "C") for ndim in (1, 2, 3, 4))
    i1, i2, i3 = (types.Array(types.int32, ndim, "C") for ndim in (1, 2, 3))
    sweep, product = (a2, a4, a3, number, number, a3, a3), (number, number, a4, i3, i1)
    forward, loop_of, chunks_of = (a3, a2, a1, a4, a4), layer_cuda.run_forward_of, chunked_cuda.run_chunks_of
    chunks = *forward, number, number, types.float32, number, a3, a3, a3, a3, i1
    rnn, gru, lstm = ((cell_cuda.steps_of(kind.cell, H, real), kind.cell.states) for kind in (bp.RNN, bp.GRU, bp.LSTM))
    lines = a1, a1, number, number, a1, a1
    outer = a1, a1, a1, number, number, a3
    sparse = i1, i1, a2, i1, i1, a2, number, number, i1, i1, a2
    return {
        "RNN forward": (loop_of(*rnn), forward, "waits", 4),
        "GRU forward": (loop_of(*gru), forward, "waits", 4),
        "LSTM forward": (loop_of(*lstm), forward, "waits", 4),
        "RNN forward, chunks": (chunks_of(*rnn), chunks, "waits", 4),
        "GRU forward, chunks": (chunks_of(*gru), chunks, "waits", 4),
        "RNN sweep": (kernels_cuda.sweep_chunks_of(H, 1, False, True, real), sweep, "waits", 4),
        "GRU sweep": (kernels_cuda.sweep_chunks_of(H, 3, True, True, real), sweep, "waits", 4),
        "RNN products": (multiply_cuda.multiply_chunks_of(H, 1, False, 4, real), (a1, a1, a1, *product), 0, 1),
        "GRU products": (multiply_cuda.multiply_chunks_of(H, 3, True, 10, real), (a1, a1, a1, *product), 0, 1),
        "dense products": (multiply_cuda.multiply_stored_of(H, real), (a4, *product), 2, 1),
        "across chunks": (kernels_cuda.across_chunks_of(H, True, real), (a1, i3, a3, a3, i1), "waits", 4),
        "up-sweep": (levels_cuda.up_level_of(H, real), (a4, i2, a3, flag, number, i1), "innermost", None),
        "down-sweep": (levels_cuda.across_blocks_of(H, real), (a4, i2, a3, flag, number, i1), 0, None),
        "weight gradients": (weight_gradients_cuda.outer_products_of(5, 3, real), outer, "innermost", None),
        "RNN assembly": (cell_cuda.derive_of(bp.RNN.cell, 0, real), lines, "whole", EACH),
        "GRU assembly": (cell_cuda.derive_of(bp.GRU.cell, 0, real), lines, "whole", EACH),
        "sparse products": (products_cuda.sums, sparse, "innermost", None),
    }


def toolkit():
    """Return the version of CUDA's toolkit that makes machine code here, such as "12.9", or raise as `read` does."""
    from cuda.bindings import nvjitlink

    return "{}.{}".format(*nvjitlink.version())


def step_of(name):
    """Say in a few words what a step of a kernel is."""
    *_, part, per = kernels()[name]
    if per is None:
        return "a multiply-add"
    if part == "whole":
        return "a state's Jacobian"
    if name == "across chunks":
        return "a chunk"
    return "a time step" if part == "waits" else "a time step of every row"


def read(name):
    """Read what a kernel takes, a `Cost`; raise what `compiled` raises if the `gpu` extra is not installed."""
    kernel, types, wanted, per = kernels()[name]
    code = compiled(kernel, types)
    if wanted == "whole":
        part = code.whole
    elif wanted == "innermost":
        part = code.innermost()
    else:
        part = code.innermost("BAR") if wanted == "waits" else code.step(wanted)
    numbers = part.instructions, part.products, part.cycles, part.waits
    return Cost(code.registers, code.local, *(round(number / (per or part.products), 1) for number in numbers))
