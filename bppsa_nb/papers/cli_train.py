"""The command `bppsa-nb train`."""

import os
import sys

from bppsa_nb.distributed import ranks
from bppsa_nb.machine import files
from bppsa_nb.machine.interrupts import interrupts_held

FORESEEN = (TypeError, ValueError, RuntimeError, OSError, FloatingPointError, MemoryError)  # they explain themselves


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
    comm = ranks.world() if arguments.distributed else None
    if not arguments.distributed and arguments.sequence_ranks is not None:
        raise ValueError("--sequence-ranks is for --distributed only")
    if not arguments.distributed and ranks.place()[1] > 1:
        raise ValueError(
            f"mpiexec started {ranks.place()[1]} processes, which would all train the same: add --distributed"
        )
    if comm is None or comm.size == 1:
        _train_on(arguments, comm)
        return
    stopped = None
    with ranks.ending_together(comm, FORESEEN), ranks.first_speaks(comm.rank, "stdout"):
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
    print(f"accuracy {share:.1%} on {len(unseen)} unseen samples (chance is {1 / classes:.0%})")


def _on(comm, arguments):
    if comm is None or comm.size == 1:
        return ""
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
    with group.together() as tell:
        found = do() if group.rank == 0 else None
        tell()
    return found


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
