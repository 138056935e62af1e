"""The command `bppsa-nb`: measure, draw, explain and check figures, run the notebooks, train, look around."""

import argparse
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from bppsa_nb.distributed import ranks
from bppsa_nb.machine import backends, files, process
from bppsa_nb.papers import (
    check,
    cli_puzzles,
    cli_train,
    experiment,
    experiments,
    explain,
    notebooks,
    provenance,
    report,
)
from bppsa_nb.training.datasets import downloads


class _Explained(Exception):
    """An error whose message says all there is to say."""


_EXPLAINED = (_Explained, OSError, backends.UnavailableError, process.MissingError)
_EXPLAINED += (files.CorruptFileError, notebooks.NotebookError, provenance.UncommittedError)


def main(argv=None):
    """Run the command line, by default the process's own arguments, and return its exit code.

    It is 0 if all went well, 1 after an error that is explained, where something is found in a kernel, or where nobody
    reads what is printed; 130 after Ctrl-C, 143 after SIGTERM, which stops as Ctrl-C does. Wrong usage exits with 2; an
    error without explanation shows its traceback.
    """
    return process.run(_run, argv)


def _run(argv):
    os.environ["MPLBACKEND"] = "agg"  # figures go to files, never to a window
    rank, _ = ranks.rank_and_size()
    with ranks.rank_0_output(rank, "stdout", "stderr"):  # which all ranks find wrong, or none
        arguments = _parser().parse_args(argv)
    with _ended_once() as signals:
        try:
            with process.explained():
                return arguments.command(arguments) or 0
        except BrokenPipeError:
            raise
        except (*_EXPLAINED, *arguments.foreseen) as error:
            said, code = f"bppsa-nb: {error}", 1
        except KeyboardInterrupt as stop:
            said, code = f"\nStopped. {stop}".rstrip(), 128 + (signals[0] if signals else signal.SIGINT)
    if rank == 0:
        print(said, file=sys.stderr)
    return code


@contextmanager
def _ended_once():
    """Have SIGTERM raise KeyboardInterrupt as Ctrl-C does, and neither of them a second time within a second.

    Whoever presses Ctrl-C twice means it once; what is saved for the next time must not be lost over that. Signals that
    are ignored, or handled by something else, are left alone. The block gets the list of signals that arrived.
    """
    arrived, last = [], -1.0

    def end(number, frame):
        nonlocal last
        arrived.append(number)
        if time.monotonic() > last + 1:
            last = time.monotonic()
            raise KeyboardInterrupt

    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    handlers = {number: handler for number, handler in handlers.items() if signal.getsignal(number) is handler}
    try:
        for number in handlers:
            signal.signal(number, end)
        yield arrived
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _measure(arguments):
    with experiments.references(arguments.reference):
        _each(_named(arguments), lambda name: experiments.run(name, arguments.scale, arguments.seed))


def _draw(arguments):
    names = _named(arguments) if arguments.name else explain.drawn_by_no_notebook()

    def read(name):
        if experiments.load(name).FIGURE.origin == "collected" and arguments.scale == "quick" and not arguments.of:
            return experiments.run(name, arguments.scale)  # which puts together what is recorded
        return experiments.table(name, arguments.scale, arguments.of)

    with experiments.references(arguments.reference):
        _each(names, read)


def _each(names, read):
    """Draw the figures of tables that are read or measured, one by one."""
    done = []
    with _keeping("figures", done):
        for name in names:
            start = time.perf_counter()
            experiments.draw(read(name))
            done.append(name)
            print(f"{name:<24} {time.perf_counter() - start:7.1f} s   figures/{name}.png", flush=True)


def _explain(arguments):
    chosen = _named(arguments)
    with experiments.references(arguments.reference):
        decided = explain.evaluated(chosen)
        for name in chosen:
            print(explain.text(explain.explain(name, arguments.scale, arguments.of), decided), end="\n\n")
    print("JupyterLab (`make lab`) goes to a cell where its #cell-id= is put behind the address of the open notebook.")


def _notebooks(arguments):
    known, done = notebooks.names(), []
    by_number = {name.split("_")[0]: name for name in known}
    wanted = [by_number.get(name, name) for name in arguments.name]
    with _keeping("notebooks", done):
        names = _chosen(wanted, known, "notebook")
        if arguments.jobs > 1:
            return _side_by_side(names, arguments, done)
        for name in names:
            seconds = notebooks.run(name, arguments.scale, arguments.keep)
            done.append(name)
            print(f"{name:<40} {seconds:7.1f} s", flush=True)


def _side_by_side(waiting, arguments, done):
    """Run notebooks, each by a process of its own; the first that fails ends the others."""
    command = [sys.executable, "-m", "bppsa_nb.papers.cli", "notebooks", "--scale", arguments.scale]
    command += [] if arguments.keep is None else ["--keep", arguments.keep]
    running = {}
    try:
        while waiting or running:
            while waiting and len(running) < arguments.jobs:
                name = waiting.pop(0)
                running[name] = subprocess.Popen([*command, name])
            time.sleep(0.05)
            for name in [name for name, process in running.items() if process.poll() is not None]:
                if code := running.pop(name).returncode:
                    raise _Explained(f"{name} " + ("failed, as said above" if code > 0 else f"ended by signal {-code}"))
                done.append(name)
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()


@contextmanager
def _keeping(what, done):
    """Say after Ctrl-C what is `done`, and what is kept of a sweep."""
    try:
        yield
    except KeyboardInterrupt:
        kept = [f"Finished {what}: {', '.join(done) or 'none'}."]
        for name, scale, points in experiments.unfinished():
            kept.append(f"{name} at scale {scale}: {points} measured points are kept; the next run resumes there.")
        raise KeyboardInterrupt("\n".join(kept)) from None


def _named(arguments):
    return _chosen(arguments.name, experiments.names(), "figure")


def _chosen(wanted, known, what):
    for name in wanted or []:
        if name not in known:
            raise _Explained(f"there is no {what} {name!r}; there are {', '.join(known)}")
    return [*dict.fromkeys(wanted or known)]


def _list(arguments):
    here = explain.cells()
    for name in experiments.names():
        module = experiments.load(name)
        chapters = dict.fromkeys(cell.notebook.split("_")[0] for cell in here.get(name, []) if cell.draws)
        print(f"{name:<25}{module.FIGURE.origin:<11}{', '.join(chapters) or '-':<5}{experiment.title(module)}")
    print(f"\n{len(experiments.names())} figures: how their numbers are made, and the notebook that draws them.")


def _info(arguments):
    if arguments.kernels:
        _kernels()
        return
    gpu = provenance.gpu_name()
    executor = "the CPU, from their PTX (to check kernels; its times mean nothing)"
    print(f"processor   {provenance.cpu_name()}, {provenance.cores()} cores usable")
    print("backends    numpy")
    print(f"            cpu: {'compiled by Numba' if backends.compiles() else 'off, because NUMBA_DISABLE_JIT is set'}")
    print(f"            cuda: {gpu or (executor if backends.emulated() else 'no GPU found')}")
    print(f"            auto: takes {backends.resolve('auto')}")
    print(f"planner     {_planner()}")
    for place, (package, version) in enumerate(provenance.versions().items()):
        print(f"{'' if place else 'versions':<11} {package} {version or 'not installed'}")
    print("data sets   bitstreams, digits over photographs: made from a seed, nothing to download")
    for key, wanted in downloads.SETS.items():
        try:
            where = f"in {downloads.find(key)}"
        except FileNotFoundError:
            where = f"not here, `bppsa-nb fetch {key}` downloads {wanted.size}"
        print(f"            {wanted.title}: {where}")


def _kernels():
    from bppsa_nb.papers.bppsa import machine_code

    titles = "registers", "spilled", "instructions", "multiply-adds", "cycles", "microseconds"
    try:
        for place, name in enumerate(machine_code.kernels()):
            cost = machine_code.read(name)
            if place == 0:
                print(f"Hot kernels, compiled by CUDA {machine_code.toolkit()} for an H100 (H = 20, float32).")
                print("A row is one step of one warp. Microseconds are predicted from machine code, not measured.\n")
                print(f"{'':<18}{''.join(f'{title:>14}' for title in titles)}  a step is")
            numbers = cost.registers, cost.spilled, cost.instructions, cost.products, cost.cycles, 1e6 * cost.seconds
            numbers = "".join(f"{number:14.4g}" for number in numbers)
            print(f"{name:<18}{numbers}  {machine_code.step_of(name)}", flush=True)
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise _Explained(f"no compiler for kernels here; `pip install 'bppsa-nb[gpu]'` brings it: {error}") from error


def _planner():
    from bppsa_nb.cells import calibrate
    from bppsa_nb.chains import prices

    try:
        stored = {backend: prices.load(backend) for backend in calibrate.runnable()}
    except ValueError as error:
        return error
    except OSError as error:
        return f"the package's defaults: this machine's prices cannot be read: {error}"
    dates = [f"{backend} ({record['date']})" for backend, record in stored.items() if record]
    missing = [backend for backend, record in stored.items() if not record]
    said = [f"calibrated: {', '.join(dates)}"] if dates else []
    if missing:
        said.append(f"not calibrated: {', '.join(missing)}; `bppsa-nb calibrate` takes a quarter of a minute for each")
    return f"\n{'':<12}".join(said)


def _calibrate(arguments):
    import numpy as np

    from bppsa_nb.cells import calibrate
    from bppsa_nb.chains import prices

    try:
        records, errors = calibrate.run(arguments.backend, progress=sys.stderr.isatty())
    except KeyboardInterrupt:
        raise KeyboardInterrupt("Nothing is stored; the prices from before are kept.") from None
    for backend, record in records.items():
        print(f"{backend} on {record['machine']}, nanoseconds:")
        print(f"{'':<16}{'start':>12}{'step':>12}{'multiply-add':>14}")
        for kind, (start, step, multiply_add) in record["prices"].items():
            print(f"{kind:<16}{1e9 * start:12.3g}{1e9 * step:12.3g}{1e9 * multiply_add:14.3g}")
        off = errors[backend]
        print(f"predictions of {len(off)} points are {np.median(off):.0%} off (median), {max(off):.0%} at worst\n")
    print(f"stored in {prices.path()}")
    if arguments.backend is None and find_spec("torch"):
        import bppsa_nb.torch as layers

        print(f"of layers for PyTorch in {layers.calibrate(progress=sys.stderr.isatty())}")


def _fetch(arguments):
    try:
        place = downloads.fetch(arguments.dataset)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("The downloaded part is kept; the same command resumes.") from None
    print(f"{downloads.SETS[arguments.dataset].title} is in {place}")


def _report(arguments):
    print(f"wrote {report.write(arguments.output)}")


def _add_figures(command):
    """Add the commands that have names of figures or of notebooks."""
    scale = {"choices": experiments.SCALES, "default": "quick"}
    scale["help"] = "sizes for a laptop, or those of the paper (default: %(default)s)"
    names = {"metavar": "NAME", "help": "figures; `bppsa-nb list` names all"}
    add = command(_measure, "measure", "measure experiments, and draw their figures",
        "Measure experiments on this machine, record their tables in data/measured/, which git ignores, and draw them "
        "in figures/. Ctrl-C keeps the finished measurements; the same command resumes.")
    add("name", nargs="+", **names)
    add("--scale", **scale)
    add("--seed", type=cli_train.natural, default=0, help="seed of all random numbers (default: %(default)s)")
    add("--reference", action="store_true",
        help="record references in data/results/, which git tracks, and say what they replace")
    add = command(_draw, "draw", "draw figures from what is recorded",
        "Draw figures from their recorded tables, and measure nothing: what was measured here, or else the reference.")
    add("name", nargs="*", **names | {"help": f"{names['help']} (default: those that no notebook draws)"})
    add("--scale", **scale)
    add("--of", metavar="DEVICE", help="the machine whose recordings are drawn, such as nvidia-h200")
    add("--reference", action="store_true", help="references, even if something was measured here")
    add = command(_explain, "explain", "say where figures come from",
        "Say where figures come from: code, table, columns, notebooks, claims. Measures and draws nothing.")
    add("name", nargs="+", **names)
    add("--scale", **scale | {"default": None, "help": "of the table (default: that of the picture in figures/)"})
    add("--of", metavar="DEVICE", help="the machine whose table it is")
    add("--reference", action="store_true", help="references, even if something was measured here")
    add = command(lambda arguments: check.run(arguments.name), "check", "hold claims against what is measured now",
        "Measure again at the quick scale what claims are held against, and compare it with the references. The exit "
        "code is 1 if a claim is outside its tolerance.", (ValueError,))
    add("name", nargs="*", metavar="NAME", help="experiments (default: all, but for what this source has measured)")
    add = command(_notebooks, "notebooks", "run the notebooks headless",
        "Run copies of the notebooks from top to bottom; they regenerate their figures. What the same source measured "
        "here before is not measured again; `bppsa-nb measure` does so.", (ValueError,))
    add("name", nargs="*", metavar="NAME", help="only these notebooks, by name or by number")
    add("--scale", **scale)
    add("--jobs", type=int, choices=range(1, 9), default=1, help="run so many at once, but for cells that are timed")
    add("--keep", type=Path, metavar="FOLDER", help="keep the copies with their outputs in this folder")  # fmt: skip


def _parser():
    parser = argparse.ArgumentParser(
        prog="bppsa-nb", description="Back-propagation as a parallel scan: an executable paper."
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(run, name, help, description, foreseen=(), **more):
        added = commands.add_parser(name, help=help, description=description, **more)
        added.set_defaults(command=run, foreseen=foreseen)
        return added.add_argument

    _add_figures(command)
    command(_list, "list", "show all figures, a line each", "Show all figures, a line each.")
    cli_train.add_options(command(cli_train.run, "train", "train an RNN on bitstreams, or a GRU on audio",
        "Train the RNN of Equation 9 on the bitstreams of Equation 8, or with --audio the GRU of Equation 10 on "
        "recordings of instruments; both have 20 hidden units, and learn by Adam.", cli_train.FORESEEN))
    sizes = [f"{wanted.title}, {wanted.size}" for wanted in downloads.SETS.values()]
    add = command(_fetch, "fetch", "download a data set",
        "Download a data set into data/downloads/. After Ctrl-C, the same command resumes.", (ValueError,))
    add("dataset", choices=[*downloads.SETS], help=f"the training set of {'; '.join(sizes)}")
    add = command(_info, "info", "show devices, backends, versions and data sets", "Show what this machine has.")
    add("--kernels", action="store_true",
        help="compile the CUDA kernels and show statistics of their machine code instead (no GPU needed)")
    cli_puzzles.add_options(command(cli_puzzles.run, "puzzles", "export or grade answers to the puzzles",
        cli_puzzles.DESCRIPTION, (ValueError,)))
    add = command(_calibrate, "calibrate", "measure the cost of methods on this machine",
        "Measure for a quarter of a minute per backend what a start, a step and a multiply-add cost, best on an idle "
        "machine. Store it in the user's cache folder (or the folder that the environment variable BPPSA_NB_CACHE "
        'names), where method="auto" finds it. Ctrl-C keeps the stored costs. Where PyTorch is installed, and no '
        "backend is named, go on for some ten minutes: time layers for PyTorch beside PyTorch's own.", (ValueError,))
    add("--backend", nargs="+", choices=backends.BACKENDS, help="only these backends (default: all that run here)")
    add = command(_report, "report", "write the reproduction report",
        "Compare every claim of the papers with the recorded tables. REPRODUCTION.md, which git tracks, is written "
        "from references. With --output, measurements of this machine are used, and references for the rest.")
    add("--output", type=Path, metavar="PATH", help="where to write it (default: REPRODUCTION.md)")
    return parser  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
