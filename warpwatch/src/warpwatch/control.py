"""A positive control: a race and an overrun that are planted here must be found before anything is called clean."""

from functools import cache
from pathlib import Path

import numpy as np

from warpwatch.launch import run


@cache
def check():
    """Raise a RuntimeError unless the race is found, the overrun too, and nothing in the kernel that is right."""
    text = Path(__file__).with_suffix(".ptx").read_text(encoding="utf-8").partition("\n")[2]
    for barrier, size, kinds in ("", 64, ["race"]), ("bar.sync 0;", 63, ["out of bounds"]), ("bar.sync 0;", 64, []):
        found = [each.kind for each in run(text.replace("BARRIER", barrier), 1, 64, np.zeros(size, "i4")).findings]
        if found != kinds:
            raise RuntimeError(f"warpwatch does not work here: a planted kernel gave {found}, and not {kinds}")
