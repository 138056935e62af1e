"""How far from the reference a claim's numbers may be where they are measured again, and why."""

import re
from dataclasses import dataclass

import numpy as np

_NUMBER = r"[−-]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?"
_SPAN = re.compile(rf"({_NUMBER})(?:\S{{0,2}} to \+?({_NUMBER}))?")
EVERY = ""  # a pattern that any column fits


@dataclass(frozen=True)
class Tolerance:
    """How far apart the numbers of two sentences may be, in the order in which they stand there."""

    says: str
    why: str
    factor: float = 1.0  # a number may be so many times as large, or as small
    apart: float = 0.0  # or so much larger or smaller, in the units that are printed
    cells: str | None = None  # a pattern of columns: their cells count, too, and with EVERY also which there are
    close: float = 1e-6  # how near they must be, relative to the reference's
    decides: bool = True  # a claim that held and is missed now is outside, whatever its numbers

    def excess(self, found, expected):
        """Say what is too far apart in what a claim says of two tables; None if nothing is."""
        if found == expected:
            return None
        spans = [[_ends(*each) for each in _SPAN.findall(said)] for said in (found, expected)]
        if len(spans[0]) != len(spans[1]) or not (self.factor > 1 or self.apart):
            return "it says something else"
        for ends in zip(*spans, strict=True):
            for now, then in zip(*ends, strict=True):
                low, high = sorted((abs(now), abs(then)))
                if abs(now - then) > self.apart and not (now * then > 0 and high <= self.factor * low):
                    return f"{now:g} instead of {then:g}"
        return None

    def differs(self, table, reference):
        """Say in which cell that counts a table differs from the reference's; None if in none."""
        if self.cells is None:
            return None
        now, then = (f"{len(each)} rows of {', '.join(sorted(each))}" for each in (table, reference))
        if now != then:  # a machine with a GPU has rows of other backends
            return f"the table has {now}, not {then}" if self.cells == EVERY else None
        for column in filter(re.compile(self.cells).search, table):
            now, then = table[column], reference[column]
            close = np.isclose(now, then, rtol=self.close) if then.dtype.kind == "f" else now == then
            same = close | (now.isna() & then.isna())
            if not same.all():
                row = int(np.argmin(same))
                return f"{column} in row {row + 1} of the table is {now[row]}, not {then[row]}"
        return None


def _ends(*numbers):
    """Return both ends of a span; where both read alike, one of them is printed."""
    first, last = (each.replace(",", "").replace("−", "-") for each in numbers)
    return float(first), float(last or first)


EXACT = Tolerance("every cell", "counted, or simulated from stated costs: neither the processor nor chance has a say",
                  cells=EVERY)
PRINTED = Tolerance("the same words", "counted, or computed to far more digits than are printed; other columns of the "
                    "table are times")
MEMORY = Tolerance("×1.25", "what an allocator holds depends on the system", factor=1.25)
ROUNDING = Tolerance("×3, losses to 0.1 %", "rounding errors themselves, which other instructions make otherwise; but "
                     "losses along the training that they come from are those of the reference", factor=3,
                     cells="loss", close=1e-3)
ITERATIONS = Tolerance("×2, or ±12", "rounding decides when an iteration ends, and shares are of nine checks or more",
                       factor=2, apart=12)
TRAINED = Tolerance("±3 points", "training multiplies rounding, and other seeds differ by more", apart=3)
TIMED = Tolerance("×3, whatever the verdict", "times are of this processor and its memory, and of what else runs",
                  factor=3, decides=False)
ALL = EXACT, PRINTED, MEMORY, ROUNDING, ITERATIONS, TRAINED, TIMED
