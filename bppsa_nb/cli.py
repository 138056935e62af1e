"""The command `bppsa-nb`: run the notebooks, measure and draw figures, train, look around."""

import argparse
import sys
import time
from pathlib import Path

from bppsa_nb import backends, experiments, files, notebooks, output, ranks
from bppsa_nb.datasets import openml
from bppsa_nb.experiments import provenance
from bppsa_nb.plan import METHODS


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
        what is printed cannot be written, as to `head` after its last line; 130 after Ctrl-C. Wrong usage exits with 2;
        an error without explanation shows its traceback.
    """
    return output.run(_run, argv)


def _run(argv):
    rank, _ = ranks.place()
    with ranks.first_speaks(rank, "stdout", "stderr"):  # which all ranks find wrong, or none
        arguments = _parse(argv)
    try:
        arguments.command(arguments)
    except (_Explained, backends.UnavailableError, files.DamagedError, OSError) as error:
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError) and error.filename is None:
            raise  # it is about no file
        if rank == 0:
            print(f"bppsa-nb: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as stop:
        if rank == 0:
            print(f"\nStopped. {stop}".rstrip(), file=sys.stderr)
        return 130
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


_FORESEEN = (TypeError, ValueError, RuntimeError, OSError, FloatingPointError, MemoryError)  # training explains them


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
            seconds = notebooks.run(name, arguments.scale)
            done.append(name)
            print(f"{name:<40} {seconds:7.1f} s", flush=True)
    except notebooks.NotebookError as error:
        raise _Explained(error) from error
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_kept("notebooks", done)) from None


def _list(arguments):
    print("Figures (bppsa-nb figures --only NAME)")
    for name in experiments.names():
        print(f"  {name:<20} {experiments.load(name).TITLE}")
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


def _planner():
    from bppsa_nb import calibrate

    try:
        found = {backend: calibrate.load(backend) for backend in calibrate.runnable()}
    except ValueError as error:
        return error
    except OSError as error:
        return f"the package's defaults: this machine's prices cannot be read: {error}"
    dates = [f"{backend} ({record['date']})" for backend, record in found.items() if record]
    missing = [backend for backend, record in found.items() if not record]
    said = [f"calibrated: {', '.join(dates)}"] if dates else []
    if missing:
        said.append(f"not calibrated: {', '.join(missing)}; `bppsa-nb calibrate` takes half a minute for each")
    return f"\n{'':<12}".join(said)


def _calibrate(arguments):
    from bppsa_nb import calibrate

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
        for name in calibrate.NAMES:
            prices = [record["prices"][kind][method].get(name, 0) for kind, method in columns]
            print(f"{name:<10}" + "".join(f"{1e9 * price:12.3g}" for price in prices))
        print(f"{len(record['points'])} points, predicted {median:.0%} off (median), {worst:.0%} off (worst)\n")
    print(f"stored in {calibrate.DEFAULTS if arguments.defaults else calibrate.path()}")


def _irmas():
    from bppsa_nb.datasets import irmas

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
    from bppsa_nb.datasets import irmas

    title = "IRMAS" if arguments.dataset == "irmas" else openml.SETS[arguments.dataset].title
    try:
        found = irmas.fetch() if title == "IRMAS" else openml.fetch(arguments.dataset)
    except (OSError, ValueError) as error:
        raise _Explained(error) from error
    except KeyboardInterrupt:
        kept = "What has come is kept" if title == "IRMAS" else "Files that came whole are kept"
        raise KeyboardInterrupt(f"{kept}: the same command goes on from there.") from None
    print(f"{title} is in {found}")


def _train(arguments):
    if arguments.save_every is not None and arguments.save is None:
        raise _Explained("--save-every needs --save PATH")
    comm = ranks.world() if arguments.distributed else None
    alone = comm is None or comm.size == 1
    if not arguments.distributed and arguments.sequence_ranks is not None:
        raise _Explained("--sequence-ranks is for --distributed only")
    if not arguments.distributed and ranks.place()[1] > 1:
        raise _Explained(
            f"mpiexec started {ranks.place()[1]} processes, which would all train the same: add --distributed"
        )
    if alone:
        try:
            _train_on(arguments, comm)
        except _FORESEEN as error:
            raise _Explained(error) from error
        return
    stopped = None
    with ranks.ending_together(comm, _FORESEEN), ranks.first_speaks(comm.rank, "stdout"):
        try:
            _train_on(arguments, comm)
        except KeyboardInterrupt as stop:
            if not stop.args:  # not by all ranks together, at the end of an iteration
                raise
            stopped = stop
    if stopped:
        if comm.rank > 0:
            sys.exit(130)
        raise stopped


def _train_on(arguments, comm):
    import numpy as np

    import bppsa_nb as bp

    dataset, unseen, inputs, classes = _data_on(arguments, comm)
    # Cell and learning rate are those of the paper's two benchmarks, if nothing else is said.
    cell, rate = ("rnn", 1e-5) if arguments.audio is None else ("gru", 3e-4)
    kind = {"rnn": bp.RNN, "gru": bp.GRU}[arguments.cell or cell]
    model = kind(inputs, 20, classes, arguments.layers, rng=arguments.seed)
    optimizer = bp.Adam(lr=rate if arguments.learning_rate is None else arguments.learning_rate)
    how = {"method": arguments.method, "backend": arguments.backend, "levels": arguments.levels}
    trainer = bp.Trainer(model, optimizer, **how, comm=comm, sequence_ranks=arguments.sequence_ranks)
    if arguments.resume:
        trainer.load(arguments.resume)
    if arguments.save:
        trainer.save(arguments.save)  # a path that cannot be written is found out before training, not after
    before = len(trainer.history.loss)
    keep = {"save_to": arguments.save, "save_every": arguments.save_every} if arguments.save_every is not None else {}
    try:
        watched = sys.stderr.isatty()
        trainer.fit(dataset, arguments.epochs, arguments.batch_size, rng=arguments.seed, progress=watched, **keep)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_kept_training(trainer, arguments.save)) from None

    if arguments.save:
        trainer.save(arguments.save)
        print(f"saved to {arguments.save}")
    loss, seconds = trainer.history.loss, trainer.history.seconds[before:]
    if not len(seconds):
        print(f"nothing to do: {arguments.epochs} epochs are done")
    else:
        last = min(100, len(loss))
        print(f"{len(seconds)} iterations, {1e3 * np.median(seconds):.2f} ms each (median){_on(comm, arguments)}")
        print(f"loss {loss[0]:.4f} in the first, {loss[-last:].mean():.4f} over the last {last}")
    share = trainer.evaluate(unseen, 100)[1]
    print(f"accuracy {share:.1%} on {len(unseen)} unseen samples (chance is {1 / classes:.0%})")


def _on(comm, arguments):
    if comm is None or comm.size == 1:
        return ""
    places = arguments.sequence_ranks or comm.size
    return f" on {comm.size} ranks: replicas {comm.size // places}, parts of a sequence {places}"


def _data_on(arguments, comm):
    """Return what `_data` does; what has to be made first, such as features, rank 0 makes, and the others find it."""
    if comm is None:
        return _data(arguments)
    group = ranks.group(comm)
    with group.together(0) as tell:
        found = _data(arguments) if group.rank == 0 else None
        tell()
    return found or _data(arguments)


def _data(arguments):
    """Return what to train on, what to test on, and how many inputs and classes there are."""
    import bppsa_nb as bp

    seed = arguments.seed
    if arguments.audio is None:
        if arguments.features:
            raise ValueError("--features is for --audio only")
        length = 100 if arguments.length is None else arguments.length
        samples = 32000 if arguments.samples is None else arguments.samples
        return bp.Bitstream(length, samples, rng=seed), bp.Bitstream(length, 1000, rng=[seed, 1]), 1, 10
    for option in ("length", "samples"):
        if getattr(arguments, option) is not None:
            raise ValueError(f"--{option} is for bitstreams only, not for --audio")
    from bppsa_nb.datasets import audio, instruments

    folder = instruments.clips() if arguments.audio is True else arguments.audio
    clips = bp.Instruments(folder, arguments.features or "S")
    dataset, unseen = clips.split(rng=seed)  # by recordings, so that none is on both sides
    return dataset, unseen, clips.features.size, len(audio.LABELS)


def _report(arguments):
    from bppsa_nb import report

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


def _kept_training(trainer, path):
    iterations = len(trainer.history.loss)
    if path is None:
        return f"Nothing is kept of {iterations} iterations: --save PATH was not given."
    trainer.save(path)
    return f"{iterations} iterations are kept in {path}: --resume {path} goes on from there."


def _seed(text):
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be an integer of at least 0, got {text!r}")
    return int(text)


def _count(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, got {text!r}")
    return int(text)


def _path(text):
    if not text:
        raise argparse.ArgumentTypeError("must not be empty")
    return Path(text)


def _parser():
    parser = argparse.ArgumentParser(
        prog="bppsa-nb", description="Back-propagation as a parallel scan: an executable paper."
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(name, command, help, description):
        added = commands.add_parser(name, help=help, description=description)
        added.set_defaults(command=command)

        def option(flag, help, **more):
            shown = help if more.get("default") is None else f"{help} (%(default)s)"
            added.add_argument(flag, help=shown, **more)

        return option

    scale = {"choices": experiments.SCALES, "default": "quick", "help": "a laptop's sizes, or the paper's"}

    option = add(
        "figures",
        _figures,
        "measure, and draw the figures",
        "Measure every experiment on this machine, record its table in data/measured/, which git ignores, and draw it "
        "in figures/. Ctrl-C keeps what is measured; the same command goes on from there.",
    )
    option("--scale", **scale)
    option("--only", nargs="+", metavar="NAME", help="these figures; `bppsa-nb list` names them all")
    option("--seed", type=_seed, default=0, help="of everything random")
    option("--device", help="measure nothing: draw what was recorded on this device, such as nvidia-h200")
    option(
        "--reference",
        action="store_true",
        help="record references, in data/results/, which git tracks, and say what they replace; with --device, draw "
        "references even where something was measured here",
    )

    option = add(
        "notebooks",
        _notebooks,
        "run the notebooks headless",
        "Run copies of the notebooks from top to bottom; they regenerate their figures.",
    )
    option("--scale", **scale)
    option("--only", nargs="+", metavar="NAME", help="these notebooks, by name or by number")

    add("list", _list, "show figures, notebooks and recordings", "Show what there is.")

    option = add(
        "train",
        _train,
        "train an RNN on bitstreams, or a GRU on audio",
        "Train the RNN of Equation 9 on the bitstreams of Equation 8, or with --audio the GRU of Equation 10 on "
        "recordings of instruments; both have 20 hidden units, and learn by Adam.",
    )
    option("--length", type=int, metavar="T", help="bits of a sample (100)")
    option("--samples", type=int, metavar="N", help="bitstreams of an epoch (32000)")
    option(
        "--audio",
        nargs="?",
        const=True,
        metavar="FOLDER",
        help="train on recordings: a folder of cel/, cla/, ... as IRMAS has them, or without one IRMAS itself, if it "
        "was fetched, or else synthetic instruments; a quarter of the recordings is held out",
    )
    option("--features", choices=("S", "M", "L"), help="the set of Table 3 to make of the recordings (S)")
    option("--cell", choices=("rnn", "gru"), help="what to train (rnn, with --audio gru)")
    option("--layers", type=int, default=1, metavar="L", help="recurrent layers")
    option("--batch-size", type=int, default=16, metavar="B", help="samples of an iteration")
    option("--epochs", type=int, default=1, metavar="E", help="in all, those before --resume included")
    option("--learning-rate", type=float, metavar="LR", help="Adam's step size (1e-5, with --audio 3e-4)")
    option("--method", choices=("auto", *METHODS), default="auto", help="how gradients are found")
    option("--levels", type=int, metavar="K", help="up-sweep levels of --method truncated")
    option("--backend", choices=("auto", *backends.BACKENDS), default="auto", help="what computes")
    option("--seed", type=_seed, default=0, help="of samples, their order and the initial parameters")
    option("--save", type=_path, metavar="PATH", help="write the trainer's state here, after Ctrl-C too")
    option("--save-every", type=_count, metavar="N", help="and after every N iterations, whatever ends the process")
    option(
        "--resume", type=_path, metavar="PATH", help="go on from what --save wrote, on the data of the other options"
    )
    option(
        "--distributed",
        action="store_true",
        help="train on all processes of `mpiexec -n 4 bppsa-nb train --distributed ...`; --resume takes what any "
        "number of them wrote",
    )
    option(
        "--sequence-ranks",
        type=_count,
        metavar="P",
        help="processes that share the steps of a sequence (all); as many of these groups as there are share the "
        "samples of an iteration",
    )

    added = add(
        "fetch",
        _fetch,
        "download a data set",
        "Download a data set into data/downloads/. After Ctrl-C, the same command goes on from there.",
    )
    sizes = [f"{wanted.title}, {wanted.size}" for wanted in openml.SETS.values()]
    added("dataset", f"the training set of IRMAS, 3 GB; {'; '.join(sizes)}", choices=["irmas", *openml.SETS])

    add("info", _info, "show devices, backends, versions and data sets", "Show what is here.")

    option = add(
        "calibrate",
        _calibrate,
        "measure what methods cost on this machine",
        "Measure for half a minute per backend what a step, a multiply-add and the like cost on this machine, and "
        "store it in the user's cache folder (or the folder that the environment variable BPPSA_NB_CACHE names), where "
        'method="auto" finds it. Best on a machine with nothing else to do. Ctrl-C leaves what was stored before.',
    )
    option("--backend", nargs="+", choices=backends.BACKENDS, help="these backends; all that run here if not given")
    option("--defaults", action="store_true", help="make it what the package predicts by on other machines, too")

    option = add(
        "report",
        _report,
        "write the reproduction report",
        "Hold every claim of the papers against the recorded tables: against references, in REPRODUCTION.md, which git "
        "tracks, or with --output against what was measured here, and references for the rest.",
    )
    option("--output", type=_path, metavar="PATH", help="where to write it; REPRODUCTION.md if not given")
    return parser


if __name__ == "__main__":
    sys.exit(main())
