"""A stage of `first_minutes.py`, in a process of its own: ``python benchmarks/stages.py STAGE --seconds 60``."""

import argparse
import sys

from first_checks import counters, sanitize, smoke, tests
from first_times import figures, grid, layers, profile, quick, sizes, speed
from parts import SHORT, TINY, Part, device

from bppsa_nb.chains import plan
from bppsa_nb.papers import provenance

STAGES = {stage.__name__: stage for stage in (smoke, tests, quick, profile, sanitize, figures)}
STAGES |= {stage.__name__: stage for stage in (counters, speed, layers, grid, sizes)}


def main(arguments=None):
    """Run a stage; the exit status says whether it is done, to be begun again, or short of time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--seconds", type=float, default=500.0, help="after which nothing begins; %(default)s")
    chosen = parser.parse_args(arguments)
    plan.refresh()
    if TINY:
        provenance.device = device
    part = Part(chosen.stage, chosen.seconds)
    STAGES[chosen.stage](part)
    sys.exit(SHORT if part.short else 0)


if __name__ == "__main__":
    main()
