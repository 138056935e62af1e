"""Measure on MPI ranks: ``mpiexec -n 4 python -m bppsa_nb.papers.ranks --steps 30000``, or ``layers --depth 1024``."""

import argparse
import sys
from functools import partial
from pathlib import Path

import numpy as np

from bppsa_nb.distributed import ranks
from bppsa_nb.machine import backends, files, process
from bppsa_nb.papers.ranks import chain, layers

PROGRAMS = {"chain": chain, "layers": layers}
_THREADS = """Ranks share the machine: on fewer cores than ranks times threads, limit the threads, as in
NUMBA_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 mpiexec -n 4 python -m bppsa_nb.papers.ranks"""
_HIDDEN = "command", "output", "parts"


def main(argv=None):
    """Run a program, the first by default, on all processes of mpiexec or this one; an error ends all."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] not in (*PROGRAMS, "-h", "--help"):
        argv = ["chain", *argv]
    if code := process.run(_main, argv):
        sys.exit(code)


def _main(argv):
    comm = ranks.world()
    rank, size = (0, 1) if comm is None else (comm.rank, comm.size)
    with ranks.rank_0_output(rank, "stdout", "stderr"):  # wrong usage is wrong on all ranks
        parser = _parser()
        arguments = parser.parse_args(argv)
        try:
            _check(arguments, size)
        except (ValueError, RuntimeError) as error:
            parser.error(str(error))
    with ranks.abort_on_error(comm, (FloatingPointError, MemoryError, RuntimeError)):
        chosen = {name: value for name, value in vars(arguments).items() if name not in _HIDDEN} | {"ranks": size}
        if rank == 0:
            print(", ".join(f"{name} {value}" for name, value in chosen.items()), flush=True)
        here = PROGRAMS[arguments.command].measure(arguments, comm)
        every = [here] if comm is None else comm.allgather(here)
        measured = {name: sum((found[name] for found in every), []) for name in here}
        if rank == 0:
            _report(measured)
            if arguments.output:
                files.write_json(arguments.output, {"arguments": chosen} | measured)


def _parser():
    parser = argparse.ArgumentParser("python -m bppsa_nb.papers.ranks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, program in PROGRAMS.items():
        how = {"formatter_class": argparse.RawDescriptionHelpFormatter, "epilog": _THREADS}
        command = commands.add_parser(name, help=program.__doc__.split("\n")[0], description=program.__doc__, **how)
        program.add_options(command, _add)
        measuring = partial(_add, command.add_argument_group("the measurement"))
        measuring("backend", ("auto", *backends.BACKENDS), "auto", "what computes")
        measuring("seed", int, 0, "of everything random")
        measuring("repeat", int, 5, "rounds that count")
        measuring("output", str, None, "a JSON file for all that is measured")
    return parser


def _add(parser, name, kind, default, text, **how):
    """Add an option whose help says its default; `kind` is a type, or a tuple of choices."""
    how |= {"choices": kind} if isinstance(kind, tuple) else {"type": kind}
    parser.add_argument(f"--{name}", default=default, help=text + ("" if default is None else f" ({default})"), **how)


def _check(arguments, size):
    """Complete the arguments, or raise ValueError or RuntimeError."""
    program = PROGRAMS[arguments.command]
    for name in ("repeat", *program.COUNTS):
        value = getattr(arguments, name)
        if value is not None and np.min(value) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {np.min(value)}")
    if arguments.seed < 0:
        raise ValueError(f"--seed must be at least 0, got {arguments.seed}")
    path = arguments.output
    if path is not None and (not Path(path).parent.is_dir() or (Path(path).exists() and not Path(path).is_file())):
        raise ValueError(f"--output must be a file in a folder that exists, got {path!r}")
    arguments.backend = backends.resolve(arguments.backend)
    program.check(arguments, size)


def _report(measured):
    """Print every list of rows: medians over rounds of what has a fraction, by everything else."""
    for name, rows in measured.items():
        groups = {}
        for row in rows:
            numbers = {column: value for column, value in row.items() if isinstance(value, float)}
            key = tuple((column, row[column]) for column in row if column not in numbers and column != "round")
            groups.setdefault(key, []).append(numbers)
        if groups:
            print(f"\n{name}")
        for key, found in groups.items():
            medians = [(column, f"{np.median([numbers[column] for numbers in found]):.4g}") for column in found[0]]
            print("  " + ", ".join(f"{column} {value}" for column, value in (*key, *medians)))


if __name__ == "__main__":
    main()
