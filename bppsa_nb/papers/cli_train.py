"""The command `bppsa-nb train`."""

import argparse
import os
import sys
from pathlib import Path

from bppsa_nb.cells.unroll import METHODS as FORWARD
from bppsa_nb.chains.plan import METHODS
from bppsa_nb.distributed import ranks
from bppsa_nb.machine import files
from bppsa_nb.machine.backends import BACKENDS
from bppsa_nb.machine.checks import check_count

FORESEEN = (TypeError, ValueError, RuntimeError, OSError, FloatingPointError, MemoryError)  # they explain themselves


def natural(text):
    """Read an integer of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be an integer of at least 0, got {text!r}")
    return int(text)


def add_options(add):
    """Add the options of the command, by `add`, a parser's `add_argument`."""
    add("--length", type=int, metavar="T", help="bits of a sample (default: 100)")
    add("--samples", type=int, metavar="N", help="bitstreams of an epoch (default: 32000)")
    add("--audio", nargs="?", const=True, metavar="FOLDER",
        help="train on the recordings of a folder with cel/, cla/, ... as in IRMAS; without a folder, on IRMAS if it "
        "was fetched, or else on synthetic instruments; a quarter of the recordings is held out")
    add("--multigrid", action="store_true",
        help="train residual layers on handwritten digits instead, by two cycles of multigrid forward and two "
        "backward; the processes of --distributed share the layers")
    add("--cell", choices=("rnn", "gru", "lstm"), help="the cell to train (default: rnn, with --audio gru)")
    add("--layers", type=int, metavar="L", help="recurrent layers (default: 1); with --multigrid residual layers (64)")
    add("--batch-size", type=int, default=16, metavar="B", help="samples of an iteration (default: %(default)s)")
    add("--epochs", type=int, default=1, metavar="E", help="epochs in all, with resumed ones (default: %(default)s)")
    add("--learning-rate", type=float, metavar="LR",
        help="Adam's step size (default: 1e-5, with --audio 3e-4, with --multigrid 1e-2)")
    add("--method", choices=("auto", *METHODS), default="auto", help="for the backward pass (default: %(default)s)")
    add("--forward", choices=("auto", *FORWARD), default="auto", help="for the forward pass (default: %(default)s)")
    add("--levels", type=int, metavar="K", help="up-sweep levels of --method truncated")
    add("--backend", choices=("auto", *BACKENDS), default="auto", help="backend that computes (default: %(default)s)")
    add("--seed", type=natural, default=0, help="seed of samples, order and parameters (default: %(default)s)")
    add("--save", type=Path, metavar="PATH",
        help="save the trainer's state here, without --distributed also after Ctrl-C; a file that exists is replaced "
        "only if --resume names it, too")
    add("--save-every", type=int, metavar="N", help="save after every N iterations, too")
    add("--resume", type=Path, metavar="PATH", help="resume from a file of --save, with the data of the other options")
    add("--distributed", action="store_true",
        help="train on all processes of `mpiexec -n 4 bppsa-nb train --distributed ...`; --resume takes files of any "
        "number of processes")
    add("--sequence-ranks", type=int, metavar="P",
        help="processes that share the steps of a sequence (default: all); the groups share the samples of "
        "an iteration")  # fmt: skip


def run(arguments):
    """Train as the command line says, in this process or on all that mpiexec started.

    Errors are of the types `FORESEEN`, and say all there is to say; on several ranks they end all of them, as Ctrl-C
    does. In one process, a KeyboardInterrupt says after Ctrl-C what is kept.
    """
    started = ranks.rank_and_size()[1]
    if arguments.save_every is not None and arguments.save is None:
        raise ValueError("--save-every needs --save PATH")
    if arguments.sequence_ranks is not None and not arguments.distributed:
        raise ValueError("--sequence-ranks is for --distributed only")
    if started > 1 and not arguments.distributed:
        raise ValueError(f"mpiexec started {started} processes, which would all train the same: add --distributed")
    comm = ranks.world() if arguments.distributed else None
    if comm is None or comm.size == 1:
        _train(arguments, comm)
        return
    with ranks.abort_on_error(comm, (*FORESEEN, KeyboardInterrupt)), ranks.rank_0_output(comm.rank, "stdout"):
        _train(arguments, comm)


def _train(arguments, comm):
    import numpy as np

    import bppsa_nb as bp

    save, alone = arguments.save, comm is None or comm.size == 1
    _on_first(comm, lambda: _check_save(save, arguments.resume))
    dataset, unseen, model, rate = _residual(arguments) if arguments.multigrid else _recurrent(arguments, comm)
    optimizer = bp.Adam(lr=rate if arguments.learning_rate is None else arguments.learning_rate)
    how = {name: getattr(arguments, name) for name in ("method", "backend", "levels", "forward", "sequence_ranks")}
    trainer = bp.Trainer(model, optimizer, **how, comm=comm)
    if arguments.resume:
        trainer.load(arguments.resume)
    before = len(trainer.history.loss)
    keep = {} if arguments.save_every is None else {"save_to": save, "save_every": arguments.save_every}
    keep |= {"rng": arguments.seed, "progress": sys.stderr.isatty()}
    try:
        trainer.fit(dataset, arguments.epochs, arguments.batch_size, **keep)
    except KeyboardInterrupt:
        kept = _kept(trainer, save) if alone else "what --save-every N saved last is kept"
        raise KeyboardInterrupt(kept) from None
    except FloatingPointError as error:  # nothing was updated by it: what there is, is worth keeping
        if save is None or len(trainer.history.loss) == before or not alone:
            raise
        raise FloatingPointError(f"{error}; {_kept(trainer, save)}") from error
    if save:
        trainer.save(save)
        print(f"saved to {save}")
    loss, seconds = trainer.history.loss, trainer.history.seconds[before:]
    if len(seconds):
        last, where = min(100, len(loss)), "" if alone else f" on {comm.size} ranks{_shares(arguments, comm)}"
        print(f"{len(seconds)} iterations, {1e3 * np.median(seconds):.2f} ms each (median){where}")
        print(f"loss {loss[0]:.4f} in the first, {loss[-last:].mean():.4f} over the last {last}")
    else:
        print(f"nothing to do: all {arguments.epochs} epochs are done")
    share = trainer.evaluate(unseen, 100)[1]
    print(f"accuracy {share:.1%} on {len(unseen)} unseen samples (chance is {1 / model.num_classes:.0%})")


def _shares(arguments, comm):
    places = arguments.sequence_ranks or comm.size
    replicas = f": replicas {comm.size // places}, parts of a sequence {places}"
    return ", which share out the layers" if arguments.multigrid else replicas


def _kept(trainer, path):
    iterations = len(trainer.history.loss)
    if path is None:
        return f"{iterations} iterations are not saved: --save PATH was not given."
    trainer.save(path)
    return f"{iterations} iterations are saved in {path}; resume with --resume {path}."


def _check_save(save, resume):
    """Raise unless what is trained can be saved, without changing anything."""
    if save is None:
        return
    files.check_writable(save)
    if save.exists() and not (resume is not None and resume.exists() and os.path.samefile(save, resume)):
        advice = f"resume with --resume {save} or choose another name"
        raise FileExistsError(f"--save {save}: file exists and will not be overwritten; {advice}")


def _on_first(comm, do):
    """Return what rank 0 found, and None on the others; what fails there fails on all."""
    if comm is None:
        return do()
    group = ranks.group(comm)
    with group.collective_check():
        return do() if group.rank == 0 else None


def _refuse(arguments, names, why):
    for name in names:
        if getattr(arguments, name) is not None:
            raise ValueError(f"--{name} is for {why}")


def _residual(arguments):
    """Return what to train on, what to test on, a residual network, and the usual learning rate."""
    _refuse(arguments, ("length", "samples", "audio", "cell"), "recurrent layers, not for --multigrid")
    from bppsa_nb.papers.multigrid.digits import Digits, network

    depth = 64 if arguments.layers is None else arguments.layers
    model = network(check_count("--layers", depth, 1), 4, arguments.seed, {"cycles": 2})  # as far as two cycles do well
    return Digits("train"), Digits("test"), model, 1e-2


def _recurrent(arguments, comm):
    """Return what `_residual` does; cell and learning rate are those of the paper's two benchmarks, if not given."""
    import bppsa_nb as bp

    # What has to be made first, such as features, rank 0 makes, and the others find it.
    data = _bitstreams if arguments.audio is None else _recordings
    dataset, unseen, inputs, classes = _on_first(comm, lambda: data(arguments)) or data(arguments)
    cell, rate = ("rnn", 1e-5) if arguments.audio is None else ("gru", 3e-4)
    kind = {"rnn": bp.RNN, "gru": bp.GRU, "lstm": bp.LSTM}[arguments.cell or cell]
    layers = 1 if arguments.layers is None else arguments.layers
    return dataset, unseen, kind(inputs, 20, classes, layers, rng=arguments.seed), rate


def _bitstreams(arguments):
    """Return what to train on, what to test on, and how many inputs and classes there are."""
    import bppsa_nb as bp

    seed, length = arguments.seed, 100 if arguments.length is None else arguments.length
    samples = 32000 if arguments.samples is None else arguments.samples
    return bp.Bitstream(length, samples, rng=seed), bp.Bitstream(length, 1000, rng=[seed, 1]), 1, 10


def _recordings(arguments):
    """Return what `_bitstreams` does."""
    import bppsa_nb as bp
    from bppsa_nb.training.datasets import audio, instruments

    _refuse(arguments, ("length", "samples"), "bitstreams only, not for --audio")
    folder = instruments.clips() if arguments.audio is True else arguments.audio
    clips = bp.Instruments(folder)
    dataset, unseen = clips.split(rng=arguments.seed)  # by recordings, so that none is on both sides
    return dataset, unseen, clips.features.size, len(audio.LABELS)
