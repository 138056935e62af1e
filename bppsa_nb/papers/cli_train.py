"""The command `bppsa-nb train`."""

import argparse
import os
import sys
from pathlib import Path

from bppsa_nb.chains.plan import METHODS
from bppsa_nb.distributed import ranks
from bppsa_nb.machine import files
from bppsa_nb.machine.backends import BACKENDS
from bppsa_nb.machine.checks import check_count
from bppsa_nb.machine.interrupts import interrupts_held
from bppsa_nb.training.forward import METHODS as FORWARD

FORESEEN = (TypeError, ValueError, RuntimeError, OSError, FloatingPointError, MemoryError)  # they explain themselves


def option(flag, help, **settings):
    """Describe an option of a command, its default at the end of its help: what `add_argument` takes."""
    shown = help if settings.get("default") is None else f"{help} (%(default)s)"
    return flag, settings | {"help": shown}


def seed(text):
    """Read an integer of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be an integer of at least 0, got {text!r}")
    return int(text)


def count(text):
    """Read an integer of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, got {text!r}")
    return int(text)


def path(text):
    """Read a path."""
    if not text:
        raise argparse.ArgumentTypeError("must not be empty")
    return Path(text)


OPTIONS = [
    option("--length", "bits of a sample (100)", type=int, metavar="T"),
    option("--samples", "bitstreams of an epoch (32000)", type=int, metavar="N"),
    option(
        "--audio",
        "train on recordings: a folder of cel/, cla/, ... as IRMAS has them, or without one IRMAS itself, if it was "
        "fetched, or else synthetic instruments; a quarter of the recordings is held out",
        nargs="?",
        const=True,
        metavar="FOLDER",
    ),
    option("--features", "the set of Table 3 to make of the recordings (S)", choices=("S", "M", "L")),
    option(
        "--multigrid",
        "train residual layers on handwritten digits instead, by two cycles of multigrid forward and two backward; the "
        "processes of --distributed share out the layers",
        action="store_true",
    ),
    option("--cell", "what to train (rnn, with --audio gru)", choices=("rnn", "gru")),
    option("--layers", "recurrent layers (1), with --multigrid residual ones (64)", type=int, metavar="L"),
    option("--batch-size", "samples of an iteration", type=int, default=16, metavar="B"),
    option("--epochs", "in all, those before --resume included", type=int, default=1, metavar="E"),
    option(
        "--learning-rate",
        "Adam's step size (1e-5, with --audio 3e-4, with --multigrid 1e-2)",
        type=float,
        metavar="LR",
    ),
    option("--method", "how gradients are found", choices=("auto", *METHODS), default="auto"),
    option("--forward", "how states are found", choices=FORWARD, default="auto"),
    option("--levels", "up-sweep levels of --method truncated", type=int, metavar="K"),
    option("--backend", "what computes", choices=("auto", *BACKENDS), default="auto"),
    option(
        "--plain-launches",
        "on a GPU, issue a step's launches one by one instead of recording them as a CUDA graph; BPPSA_NB_CUDA_GRAPH=0 "
        "does the same for any program",
        action="store_true",
    ),
    option("--seed", "of samples, their order and the initial parameters", type=seed, default=0),
    option(
        "--save",
        "write the trainer's state here, after Ctrl-C too; a file that is there already is written only where --resume "
        "goes on from it",
        type=path,
        metavar="PATH",
    ),
    option("--save-every", "and after every N iterations, whatever ends the process", type=count, metavar="N"),
    option("--resume", "go on from what --save wrote, on the data of the other options", type=path, metavar="PATH"),
    option(
        "--distributed",
        "train on all processes of `mpiexec -n 4 bppsa-nb train --distributed ...`; --resume takes what any number of "
        "them wrote",
        action="store_true",
    ),
    option(
        "--sequence-ranks",
        "processes that share the steps of a sequence (all); as many of these groups as there are share the samples of "
        "an iteration",
        type=count,
        metavar="P",
    ),
]


def run(arguments):
    """Train as the command line says, in this process or on all that mpiexec started.

    Parameters
    ----------
    arguments : argparse.Namespace

    Raises
    ------
    TypeError, ValueError, RuntimeError, OSError, FloatingPointError, MemoryError
        With what there is to say; on several ranks they end all of them.
    KeyboardInterrupt
        After Ctrl-C, with what is kept.
    """
    if arguments.save_every is not None and arguments.save is None:
        raise ValueError("--save-every needs --save PATH")
    if arguments.plain_launches:
        os.environ["BPPSA_NB_CUDA_GRAPH"] = "0"
    comm = ranks.world() if arguments.distributed else None
    if not arguments.distributed and arguments.sequence_ranks is not None:
        raise ValueError("--sequence-ranks is for --distributed only")
    if not arguments.distributed and ranks.rank_and_size()[1] > 1:
        raise ValueError(
            f"mpiexec started {ranks.rank_and_size()[1]} processes, which would all train the same: add --distributed"
        )
    if comm is None or comm.size == 1:
        _train_on(arguments, comm)
        return
    stopped = None
    with ranks.abort_on_error(comm, FORESEEN), ranks.rank_0_output(comm.rank, "stdout"):
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

    _on_first(comm, lambda: _check_save(arguments))
    dataset, unseen, model, rate = _residual(arguments) if arguments.multigrid else _recurrent(arguments, comm)
    optimizer = bp.Adam(lr=rate if arguments.learning_rate is None else arguments.learning_rate)
    how = {"method": arguments.method, "backend": arguments.backend, "levels": arguments.levels}
    how |= {"forward": arguments.forward}
    trainer = bp.Trainer(model, optimizer, **how, comm=comm, sequence_ranks=arguments.sequence_ranks)
    if arguments.resume:
        trainer.load(arguments.resume)
    before = len(trainer.history.loss)
    keep = {"save_to": arguments.save, "save_every": arguments.save_every} if arguments.save_every is not None else {}
    try:
        watched = sys.stderr.isatty()
        trainer.fit(dataset, arguments.epochs, arguments.batch_size, rng=arguments.seed, progress=watched, **keep)
    except KeyboardInterrupt:
        with interrupts_held() as again:
            kept = _kept(trainer, arguments.save)
            again.clear()  # what came meanwhile meant the same
        raise KeyboardInterrupt(kept) from None
    except FloatingPointError as error:  # nothing was updated by it: what there is, is worth keeping
        if arguments.save is None or len(trainer.history.loss) == before or (comm is not None and comm.size > 1):
            raise
        trainer.save(arguments.save)
        raise FloatingPointError(f"{error}; {len(trainer.history.loss)} iterations are in {arguments.save}") from error

    if arguments.save:
        with interrupts_held():
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
    print(f"accuracy {share:.1%} on {len(unseen)} unseen samples (chance is {1 / model.num_classes:.0%})")


def _on(comm, arguments):
    if comm is None or comm.size == 1:
        return ""
    if arguments.multigrid:
        return f" on {comm.size} ranks, which share out the layers"
    places = arguments.sequence_ranks or comm.size
    return f" on {comm.size} ranks: replicas {comm.size // places}, parts of a sequence {places}"


def _check_save(arguments):
    """Raise unless what is trained can be saved, without changing anything."""
    save, resume = arguments.save, arguments.resume
    if save is None:
        return
    files.check_writable(save)
    if save.exists() and not (resume is not None and resume.exists() and os.path.samefile(save, resume)):
        raise FileExistsError(
            f"--save {save}: the file exists, and is kept; go on from it with --resume {save}, or give another name"
        )


def _on_first(comm, do):
    """Return what rank 0 found, and None on the others; what fails there fails on all."""
    if comm is None:
        return do()
    group = ranks.group(comm)
    with group.collective_check():
        result = do() if group.rank == 0 else None
    return result


def _residual(arguments):
    """Return what to train on, what to test on, a residual network, and the usual learning rate."""
    for option in ("length", "samples", "audio", "features", "cell"):
        if getattr(arguments, option) is not None:
            raise ValueError(f"--{option} is for recurrent layers, not for --multigrid")
    from bppsa_nb.papers.multigrid.digits import Digits, network

    depth = 64 if arguments.layers is None else arguments.layers
    model = network(check_count("--layers", depth, 1), 4, arguments.seed, {"cycles": 2})  # as far as two cycles do well
    return Digits("train"), Digits("test"), model, 1e-2


def _recurrent(arguments, comm):
    """Return what `_residual` does; cell and learning rate are those of the paper's two benchmarks, if not given."""
    import bppsa_nb as bp

    dataset, unseen, inputs, classes = _data_on(arguments, comm)
    cell, rate = ("rnn", 1e-5) if arguments.audio is None else ("gru", 3e-4)
    kind = {"rnn": bp.RNN, "gru": bp.GRU}[arguments.cell or cell]
    layers = 1 if arguments.layers is None else arguments.layers
    return dataset, unseen, kind(inputs, 20, classes, layers, rng=arguments.seed), rate


def _data_on(arguments, comm):
    """Return what `_data` does; what has to be made first, such as features, rank 0 makes, and the others find it."""
    return _on_first(comm, lambda: _data(arguments)) or _data(arguments)


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
    from bppsa_nb.training.datasets import audio, instruments

    folder = instruments.clips() if arguments.audio is True else arguments.audio
    clips = bp.Instruments(folder, arguments.features or "S")
    dataset, unseen = clips.split(rng=seed)  # by recordings, so that none is on both sides
    return dataset, unseen, clips.features.size, len(audio.LABELS)


def _kept(trainer, path):
    iterations = len(trainer.history.loss)
    if path is None:
        return f"Nothing is kept of {iterations} iterations: --save PATH was not given."
    trainer.save(path)
    return f"{iterations} iterations are kept in {path}: --resume {path} goes on from there."
