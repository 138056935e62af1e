"""What a launch did: findings, told as a person would tell them, and counters."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from warpwatch.parse import short_name

KINDS = ("race", "out of bounds", "misaligned", "uninitialized", "read-only", "barrier", "shuffle", "mask",
         "exception", "trap", "endless")  # fmt: skip


@dataclass
class Finding:
    """Something wrong in a launch, at one instruction; `count` says how many accesses of threads showed it.

    Attributes
    ----------
    kind : str
        One of `KINDS`; a "mask" is that of a warp's operation.
    kernel, file, line : str, str and int
        Where it is; file is "" where the compiler kept no lines.
    block, thread : int or tuple
        Who did it first, in the form in which grid and block were given.
    other : tuple or None
        (block, thread) of the other one of a race in the launch, or of one that is missing at a barrier.
    array, place : str or None, and int, tuple or None
        What was touched, and its index, by the access's size where that of elements is not known.
    instruction : str
        The instruction, as PTX.
    """

    kind: str
    message: str
    kernel: str
    file: str
    line: int
    block: int | tuple[int, ...]
    thread: int | tuple[int, ...]
    other: tuple | None
    array: str | None
    place: int | tuple[int, ...] | None
    instruction: str
    count: int = 1

    def __str__(self):
        file = Path(self.file)
        name = "its cell" if file.parent.name.startswith("ipykernel_") else file.name
        where = f"{name}, line {self.line}" if self.file else f"at {self.instruction!r}"
        more = f" (and {self.count - 1} more)" if self.count > 1 else ""
        return f"{self.kind}: {self.kernel}, {where}: thread {self.thread} of block {self.block} {self.message}{more}"


class Report:
    """What a launch did.

    Attributes
    ----------
    findings : list of Finding
        What is wrong; empty for a kernel that is right.
    notes : list of Finding
        What is no fault by itself: threads that write the same value to the same place, or return before a barrier.
    counters : dict
        "warp instructions" (a Counter by class), "active lanes" (a share of 32), "sectors per request" (of 32 bytes, of
        global memory), "shared passes per request", "barriers" (that blocks passed), "atomics" and "multiply-adds" (by
        threads). Instructions are those of PTX; machine code has others.
    """

    def __init__(self, program, form):
        self.program, self.form, self.kernel, self.found = program, form, short_name(program.kernel.name), {}
        self.findings: list[Finding] = []
        self.notes: list[Finding] = []
        self.issued, self.lanes = Counter(), Counter()  # by basic block: per warp, and lanes
        by_instruction = np.zeros((4, len(program.instructions) + 1), int)
        self.requests, self.sectors, self.shared_requests, self.passes = by_instruction
        self.barriers = self.atomics = 0
        self.unchecked: list[str] = []  # what nobody looked at
        self.error = None  # the exception that the kernel has raised first

    def add(self, key, message, at, who, *, other=None, where=(None, None), count=1, note=False):
        """Note something; once per key, which begins with the kind, and instruction: others are counted."""
        kind, key = key[0], (key, at, note)
        if key in self.found:
            self.found[key].count += count
            return
        i, others = self.program.instructions[at], other and self.form(other)
        about = *(i.source or ("", 0)), *self.form(who), others, *where, i.text, count
        self.found[key] = Finding(kind, message, self.kernel, *about)
        (self.notes if note else self.findings).append(self.found[key])

    def assert_clean(self):
        """Raise an AssertionError that tells what was found, if something was."""
        if self.findings:
            raise AssertionError(str(self))

    @property
    def counters(self) -> dict:
        """What was counted, by name."""
        classes, issued, active, fmas = Counter(), 0, 0, 0
        for n, warps in self.issued.items():
            block = self.program.kernel.blocks[n]
            classes.update({name: warps * count for name, count in block.classes.items()})
            issued += warps * block.count
            active += self.lanes[n] * block.count
            fmas += self.lanes[n] * block.fmas
        sectors = float(self.sectors.sum() / max(self.requests.sum(), 1))
        passes = float(self.passes.sum() / max(self.shared_requests.sum(), 1))
        return {"warp instructions": classes, "active lanes": active / max(32 * issued, 1), "barriers": self.barriers,
                "sectors per request": sectors, "shared passes per request": passes, "atomics": self.atomics,
                "multiply-adds": fmas}  # fmt: skip

    def __repr__(self):
        found = len(self.findings)
        return f"Report(kernel {self.kernel}: {f'{found} finding' + 's' * (found > 1) if found else 'nothing found'})"

    def __str__(self):
        c, lines = self.counters, [repr(self)[7:-1]]
        lines += [f"  {finding}" for finding in self.findings]
        lines += [f"  note: {note}" for note in self.notes]
        lines += [f"  not checked: {text}" for text in self.unchecked]
        active, passes = c["active lanes"], f"{c['shared passes per request']:.2f} passes a request"
        lines.append(f"  {c['warp instructions'].total()} warp instructions, {active:.0%} of their lanes active")
        lines.append(f"  {c['sectors per request']:.2f} sectors a request of global memory, {passes} of shared memory")
        lines.append(f"  {c['barriers']} barriers, {c['atomics']} atomics, {c['multiply-adds']} multiply-adds")
        return "\n".join(lines)
