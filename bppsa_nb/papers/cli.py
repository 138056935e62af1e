"""The command `bppsa-nb`: run the notebooks, measure and draw figures, train, look around."""

import argparse
import signal
import sys
import time

from bppsa_nb.distributed import ranks
from bppsa_nb.machine import backends, extras, files, output
from bppsa_nb.machine.interrupts import ended_once
from bppsa_nb.papers import cli_train, experiments, notebooks, provenance
from bppsa_nb.papers.cli_train import option, path, seed
from bppsa_nb.training.datasets import openml


def main(argv=None):
    """Run the command line.

    Parameters
    ----------
    argv : list of str, optional
        Arguments; the process's own by default.

    Returns
    -------
    int
        Exit code: 0 if all went well, 1 after an error that is explained, as one about a file that is named, or where
        what is printed cannot be written, as to `head` after its last line; 130 after Ctrl-C, 143 after SIGTERM, which
        stops as Ctrl-C does. Wrong usage exits with 2; an error without explanation shows its traceback.
    """
    return output.run(_run, argv)


def _run(argv):
    rank, _ = ranks.rank_and_size()
    with ranks.rank_0_output(rank, "stdout", "stderr"):  # which all ranks find wrong, or none
        arguments = _parse(argv)
    with ended_once() as signals:
        try:
            with extras.explained():
                arguments.command(arguments)
        except (*_EXPLAINED, files.CorruptFileError, OSError) as error:
            if isinstance(error, OSError) and not isinstance(error, FileNotFoundError) and error.filename is None:
                raise  # it is about no file
            if rank == 0:
                print(f"bppsa-nb: {error}", file=sys.stderr)
            return 1
        except ValueError as error:
            if not str(error).startswith("Key backend: "):  # Matplotlib's, of a name in the environment
                raise
            if rank == 0:
                why = str(error).removeprefix("Key backend: ")
                print(f"bppsa-nb: MPLBACKEND must name a backend of Matplotlib: {why}", file=sys.stderr)
            return 1
        except KeyboardInterrupt as stop:
            if rank == 0:
                print(f"\nStopped. {stop}".rstrip(), file=sys.stderr)
            return 128 + (signals[0] if signals else signal.SIGINT)
    return 0


def _parse(argv):
    parser = _parser()
    arguments, left = parser.parse_known_args(argv)
    if left:
        hint = "; names go behind --only" if "only" in arguments and not left[0].startswith("-") else ""
        parser.error(f"unrecognized arguments: {' '.join(left)}{hint}")
    return arguments


class _Explained(Exception):
    """An error whose message says all there is to say."""


_EXPLAINED = _Explained, backends.UnavailableError, extras.MissingError, provenance.UncommittedError


def _figures(arguments):
    import matplotlib

    matplotlib.use("agg")  # to files, never to a window
    with experiments.references(arguments.reference):
        _draw_figures(arguments)


def _draw_figures(arguments):
    done = []
    try:
        for name in _chosen(arguments.only, experiments.names(), "figure"):
            start = time.perf_counter()
            try:
                if arguments.device:
                    experiments.draw(experiments.table(name, arguments.scale, arguments.device))
                else:
                    experiments.make(name, arguments.scale, arguments.seed)
            except FileNotFoundError as error:  # what a figure draws is recorded by a benchmark, or is not yet
                if arguments.only or arguments.device:
                    raise _Explained(error) from error
                print(f"{name:<24} left out: {error}", flush=True)
                continue
            done.append(name)
            print(f"{name:<24} {time.perf_counter() - start:7.1f} s   figures/{name}.png", flush=True)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_kept("figures", done)) from None


def _notebooks(arguments):
    known = notebooks.names()
    by_number = {name.split("_")[0]: name for name in known}
    wanted = arguments.only and [by_number.get(name, name) for name in arguments.only]
    done = []
    try:
        for name in _chosen(wanted, known, "notebook"):
            seconds = notebooks.run(name, arguments.scale, arguments.keep)
            done.append(name)
            print(f"{name:<40} {seconds:7.1f} s", flush=True)
    except notebooks.NotebookError as error:
        raise _Explained(error) from error
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_kept("notebooks", done)) from None


def _list(arguments):
    print("Figures (bppsa-nb figures --only NAME)")
    for name in experiments.names():
        print(f"  {name:<20} {experiments.title(name)}")
        measured, references = (
            [f"{device} ({scale})" for device, scale in experiments.recordings(name, folder)]
            for folder in (experiments.MEASURED, experiments.REFERENCES)
        )
        if measured:
            print(f"  {'':<20} measured here: {', '.join(measured)}")
        print(f"  {'':<20} references: {', '.join(references) or 'none yet'}")
    print("Notebooks (bppsa-nb notebooks --only NUMBER)")
    try:
        for name in notebooks.names():
            print(f"  {name}")
    except FileNotFoundError as error:
        print(f"  none: {error}")


def _info(arguments):
    if arguments.kernels:
        _kernels()
        return
    gpu = provenance.gpu_name()
    simulator = "Numba's simulator (to step through kernels; its times mean nothing)"
    print(f"processor   {provenance.cpu_name()}, {provenance.cores()} cores usable")
    print("backends    numpy")
    print(f"            cpu: {'compiled by Numba' if backends.compiles() else 'NUMBA_DISABLE_JIT forbids it'}")
    print(f"            cuda: {gpu or (simulator if backends.simulated() else 'no GPU found')}")
    print(f"            auto: takes {backends.resolve('auto')}")
    print(f"planner     {_planner()}")
    for place, (package, version) in enumerate(provenance.versions().items()):
        print(f"{'' if place else 'versions':<11} {package} {version or 'not installed'}")
    print("data sets   bitstreams: made from a seed, nothing to download")
    print(f"            IRMAS: {_irmas()}")
    print(f"            images: {_images()}")


def _kernels():
    from bppsa_nb.papers.bppsa import machine_code

    titles = "registers", "spilled", "instructions", "multiply-adds", "cycles", "microseconds"
    try:
        for place, name in enumerate(machine_code.kernels()):
            cost = machine_code.read(name)
            if place == 0:
                made = f"by CUDA {machine_code.toolkit()} for an H100 (H = 20, float32)"
                print(f"What the hot kernels became {made}, and what one warp does in a step.")
                print("Microseconds are predicted from machine code, not measured.\n")
                print(f"{'':<18}{''.join(f'{title:>14}' for title in titles)}  a step is")
            numbers = cost.registers, cost.spilled, cost.instructions, cost.products, cost.cycles, 1e6 * cost.seconds
            numbers = "".join(f"{number:14.4g}" for number in numbers)
            print(f"{name:<18}{numbers}  {machine_code.step_of(name)}", flush=True)
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise _Explained(f"kernels cannot be compiled here, but with `pip install 'bppsa-nb[gpu]'`: {error}") from error
    except backends.UnavailableError as error:
        raise _Explained(error) from error


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
        said.append(f"not calibrated: {', '.join(missing)}; `bppsa-nb calibrate` takes half a minute for each")
    return f"\n{'':<12}".join(said)


def _calibrate(arguments):
    from bppsa_nb.cells import calibrate
    from bppsa_nb.chains import prices

    try:
        records = calibrate.run(arguments.backend, progress=sys.stderr.isatty())
        if arguments.defaults:
            calibrate.write_defaults(records)
    except (OSError, ValueError) as error:
        raise _Explained(error) from error
    except KeyboardInterrupt:
        raise KeyboardInterrupt("Nothing is stored: prices are what they were.") from None
    for backend, record in records.items():
        median, worst = calibrate.errors(record)
        print(f"{backend} on {record['machine']}, nanoseconds of one:")
        columns = [(kind, method) for kind, methods in record["prices"].items() for method in methods]
        for row in zip(*columns, strict=True):
            print(f"{'':<10}" + "".join(f"{word:>12}" for word in row))
        for name in prices.NAMES:
            row = [record["prices"][kind][method].get(name, 0) for kind, method in columns]
            print(f"{name:<10}" + "".join(f"{1e9 * price:12.3g}" for price in row))
        print(f"{len(record['points'])} points, predicted {median:.0%} off (median), {worst:.0%} off (worst)\n")
    print(f"stored in {prices.DEFAULTS if arguments.defaults else prices.path()}")


def _irmas():
    from bppsa_nb.training.datasets import irmas

    try:
        return f"in {irmas.folder()}"
    except FileNotFoundError:
        return "not here, `bppsa-nb fetch irmas` downloads 3 GB; synthetic instruments stand in for it"


def _images():
    said = ["digits over photographs: made from a seed, nothing to download"]
    for key, wanted in openml.SETS.items():
        try:
            said.append(f"{wanted.title} in {openml.find(key)} (checked when it is loaded)")
        except FileNotFoundError:
            said.append(f"{wanted.title} not here, `bppsa-nb fetch {key}` downloads {wanted.size}")
    return f"\n{'':<20}".join(said)


def _fetch(arguments):
    from bppsa_nb.training.datasets import irmas

    title = "IRMAS" if arguments.dataset == "irmas" else openml.SETS[arguments.dataset].title
    try:
        folder = irmas.fetch() if title == "IRMAS" else openml.fetch(arguments.dataset)
    except (OSError, ValueError) as error:
        raise _Explained(error) from error
    except KeyboardInterrupt:
        kept = "What has come is kept" if title == "IRMAS" else "Files that came whole are kept"
        raise KeyboardInterrupt(f"{kept}: the same command goes on from there.") from None
    print(f"{title} is in {folder}")


def _train(arguments):
    try:
        cli_train.run(arguments)
    except cli_train.FORESEEN as error:
        raise _Explained(error) from error


def _report(arguments):
    from bppsa_nb.papers import report

    print(f"wrote {report.write(arguments.output)}")


def _chosen(wanted, known, what):
    for name in wanted or []:
        if name not in known:
            raise _Explained(f"there is no {what} {name!r}; there are {', '.join(known)}")
    return wanted or known


def _kept(what, done):
    kept = [f"Finished {what}: {', '.join(done) or 'none'}."]
    for name, scale, points in experiments.unfinished():
        kept.append(f"Kept of {name} at scale {scale}: {points} measured; the next run goes on from there.")
    return "\n".join(kept)


def _parser():
    parser = argparse.ArgumentParser(
        prog="bppsa-nb", description="Back-propagation as a parallel scan: an executable paper."
    )
    added = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, command, help, description, *options in _commands():
        subparser = added.add_parser(name, help=help, description=description)
        subparser.set_defaults(command=command)
        for flag, settings in options:
            subparser.add_argument(flag, **settings)
    return parser


def _commands():
    """List the commands: name, function, help, description, options."""
    scale = option("--scale", "a laptop's sizes, or the paper's", choices=experiments.SCALES, default="quick")
    sizes = [f"{wanted.title}, {wanted.size}" for wanted in openml.SETS.values()]
    datasets = f"the training set of IRMAS, 3 GB; {'; '.join(sizes)}"
    return [
        ("figures", _figures, "measure, and draw the figures",
         "Measure every experiment on this machine, record its table in data/measured/, which git ignores, and draw it "
         "in figures/. Ctrl-C keeps what is measured; the same command goes on from there.",
         scale,
         option("--only", "these figures; `bppsa-nb list` names them all", nargs="+", metavar="NAME"),
         option("--seed", "of everything random", type=seed, default=0),
         option("--device", "measure nothing: draw what was recorded on this device, such as nvidia-h200"),
         option("--reference", "record references, in data/results/, which git tracks, and say what they replace; with "
                "--device, draw references even where something was measured here", action="store_true")),
        ("notebooks", _notebooks, "run the notebooks headless",
         "Run copies of the notebooks from top to bottom; they regenerate their figures.",
         scale,
         option("--only", "these notebooks, by name or by number", nargs="+", metavar="NAME"),
         option("--keep", "keep the copies with their outputs in this folder", type=path, metavar="FOLDER")),
        ("list", _list, "show figures, notebooks and recordings", "Show what there is."),
        ("train", _train, "train an RNN on bitstreams, or a GRU on audio",
         "Train the RNN of Equation 9 on the bitstreams of Equation 8, or with --audio the GRU of Equation 10 on "
         "recordings of instruments; both have 20 hidden units, and learn by Adam.",
         *cli_train.OPTIONS),
        ("fetch", _fetch, "download a data set",
         "Download a data set into data/downloads/. After Ctrl-C, the same command goes on from there.",
         option("dataset", datasets, choices=["irmas", *openml.SETS])),
        ("info", _info, "show devices, backends, versions and data sets", "Show what is here.",
         option("--kernels", "what the CUDA kernels became, instead: compile them, and read their machine code; needs "
                "no GPU", action="store_true")),
        ("calibrate", _calibrate, "measure what methods cost on this machine",
         "Measure for half a minute per backend what a step, a multiply-add and the like cost on this machine, and "
         "store it in the user's cache folder (or the folder that the environment variable BPPSA_NB_CACHE names), "
         'where method="auto" finds it. Best on a machine with nothing else to do. Ctrl-C leaves what was stored '
         "before.",
         option("--backend", "these backends; all that run here if not given", nargs="+", choices=backends.BACKENDS),
         option("--defaults", "make it what the package predicts by on other machines, too", action="store_true")),
        ("report", _report, "write the reproduction report",
         "Hold every claim of the papers against the recorded tables: against references, in REPRODUCTION.md, which "
         "git tracks, or with --output against what was measured here, and references for the rest.",
         option("--output", "where to write it; REPRODUCTION.md if not given", type=path, metavar="PATH")),
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
