"""What an experiment is: a sweep, what its table says, a picture, words, and the claims that the table decides.

An experiment is one module in its paper's folder, with

    measure(scale, rng, progress)    # -> pandas.DataFrame, one row per measurement
    facts(table)                     # -> {name: number, text, or several by key}: all that words and claims say of it
    plot(table)                      # -> matplotlib.figure.Figure
    FIGURE = Figure(...)             # everything else

Its docstring is the figure's title. `facts` may be left out. What a table has no rows for is missing from it, or NaN,
or empty: claims that need it are then not decided by this table.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bppsa_nb.machine.checks import check_choice
from bppsa_nb.papers import words
from bppsa_nb.schedule.colors import COLORS  # noqa: F401, with which experiments draw

REPRODUCED, BETTER, MISSED = "reproduced", "better", "missed"
EVERY = ""  # a pattern that any column fits


@dataclass(frozen=True)
class Tolerance:
    """How far from the reference numbers may be where they are measured again, and why."""

    says: str
    why: str
    factor: float = 1.0  # a number may be so many times as large, or as small
    apart: float = 0.0  # or so much larger or smaller, in the units that are printed
    cells: str | None = None  # a pattern of columns: their cells count, too, and with EVERY also which there are
    close: float = 1e-6  # how near they must be, relative to the reference's
    decides: bool = True  # a claim that held and is missed now is outside, whatever its numbers


TOLERANCES = {
    "counted": Tolerance("every cell", "counted, or simulated from stated costs: neither the processor nor chance has "
                         "a say", cells=EVERY),
    "printed": Tolerance("the same words", "counted, or computed to far more digits than are printed; other columns of "
                         "the table are times"),
    "memory": Tolerance("×1.25", "what an allocator holds depends on the system", factor=1.25),
    "rounding": Tolerance("×3, losses to 0.1 %", "rounding errors themselves, which other instructions make otherwise; "
                          "but losses along the training that they come from are those of the reference", factor=3,
                          cells="loss", close=1e-3),
    "iterations": Tolerance("×2, or ±12", "rounding decides when an iteration ends, and shares are of nine checks or "
                            "more", factor=2, apart=12),
    "trained": Tolerance("±3 points", "training multiplies rounding, and other seeds differ by more", apart=3),
    "timed": Tolerance("×3, whatever the verdict", "times are of this processor and its memory, and of what else runs",
                       factor=3, decides=False),
}
ORIGINS = *TOLERANCES, "collected", "waiting"  # drawn from what benchmarks recorded; not recorded by anyone yet


@dataclass(frozen=True)
class Claim:
    """What a paper says, what we found, as a template over `facts`, and a test of them.

    `holds` returns whether they agree, or a verdict, such as that of `compare`.
    """

    where: str  # a section, equation, figure or table
    says: str  # a sentence
    number: str  # its number, and on what machine
    found: str
    holds: Callable
    origin: str = ""  # of its numbers; the figure's if nothing else is said
    gpu: bool = False  # whether only a recording from a GPU decides
    recorded_by: str = ""  # the command that measures it, where the experiment only reads what that recorded
    heading: str = ""  # what it stands under in the report, if not the paper's


@dataclass(frozen=True)
class Figure:
    """All there is to say of an experiment but its code, and its title, which is what the module's docstring says."""

    origin: str  # where its numbers come from, one of ORIGINS; of several panels, the weakest
    caption: str
    alt: str
    phrases: Mapping[str, str] = field(default_factory=dict)  # templates for each item of a fact
    claims: Sequence[Claim] = ()
    needs: Sequence[str] = ()  # the tables that it reads, such as "grid.paper" or "paper/table_4"
    backend: str | None = None  # which computed, where the table has no column of that name

    def __post_init__(self):
        check_choice("origin", self.origin, ORIGINS)
        for claim in self.claims:
            check_choice(f"origin of the claim of {claim.where}", claim.origin or "timed", TOLERANCES)


def compare(ours, theirs):
    """Give the verdict on numbers of which more is better; of several pairs, the worst decides."""
    worst = np.min(np.divide(ours, theirs))
    return BETTER if worst > 1.1 else REPRODUCED if worst >= 0.9 else MISSED


def where(table, **columns):
    """Return the rows of a table in which columns have these values."""
    for column, value in columns.items():
        table = table[table[column] == value]
    return table


def title(module):
    """Return the title of an experiment's figure."""
    return (module.__doc__ or "").strip().removesuffix(".")


def grid(**values):
    """List the points of a grid, the values of the last name changing first: a dict for each."""
    return [dict(zip(values, point, strict=True)) for point in itertools.product(*values.values())]


def facts(module, table):
    """Return what an experiment's module says of its table."""
    return module.facts(table) if hasattr(module, "facts") else {}


def judge(claim, module, facts):
    """Return what facts say of a claim, in words, the numbers in them, and the verdict; or raise a LookupError."""
    said, numbers = words.fill(claim.found, facts, module.FIGURE.phrases)
    held = claim.holds(facts)
    return said, numbers, held if isinstance(held, str) else REPRODUCED if held else MISSED
