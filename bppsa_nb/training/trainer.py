"""Training without a framework: the loss, and a trainer that can be stopped and resumed anywhere."""

import time
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np

from bppsa_nb.cells.gru import GRU
from bppsa_nb.cells.recurrent import Recurrent
from bppsa_nb.cells.rnn import RNN
from bppsa_nb.machine import backends
from bppsa_nb.machine.checks import all_finite, check_count, check_flag, check_has, generator
from bppsa_nb.machine.files import check_path, check_writable, read_npz
from bppsa_nb.machine.interrupts import interrupts_held
from bppsa_nb.machine.parts import over_ranks
from bppsa_nb.machine.shown import shown
from bppsa_nb.training import checkpoints
from bppsa_nb.training.loss import accuracy, check_labels, check_order, cross_entropy
from bppsa_nb.training.optimizers import SGD, Adam

__all__ = ["SGD", "Adam", "History", "Trainer", "accuracy", "check_labels", "cross_entropy"]


@dataclass(frozen=True)
class History:
    """What `Trainer.fit` recorded, one entry per iteration.

    Attributes
    ----------
    loss : np.ndarray [shape=(iterations,)]
        Mean loss of the iteration's batch, before its update.
    seconds : np.ndarray [shape=(iterations,)]
        Wall-clock time of the iteration, making the batch included.
    """

    loss: np.ndarray
    seconds: np.ndarray

    def __repr__(self):
        last = {"last_loss": float(f"{self.loss[-1]:.6g}")} if len(self.loss) else {}
        return shown(self, iterations=len(self.loss), **last)


class Trainer:
    """Train a model with any method and backend for its backward pass.

    Parameters
    ----------
    model : RNN, GRU, sparse.Network or multigrid.ResidualModel
        Anything with `params`, `forward`, `backward` and `check_method` like `bppsa_nb.RNN`. On a GPU whole steps of
        `RNN` and `GRU` run there with `SGD` and `Adam`. Of all others `forward` and `backward` are called, and the
        optimizer's `step`; where these are subclasses, or have methods or parameters of their own, a warning says so.
    optimizer : SGD or Adam
        Or anything with `step`, `settings`, `zeros`, `state` and `steps` like these.
    method, backend, levels
        How gradients are found; see the model's `backward`.
    comm : mpi4py.MPI.Intracomm, optional
        Ranks that train an RNN or a GRU together. All of them make the same trainer and call the same methods; they
        have the same losses, parameters and history then. What fails on one rank fails on all.
    sequence_ranks : int, optional
        How many consecutive ranks share the steps of a sequence, in the order of time: all of them if not given. There
        are ``comm.size // sequence_ranks`` replicas of the model, which share out the samples of each batch, in order
        and as evenly as can be.

    Attributes
    ----------
    history : History
        All iterations of `fit` so far.
    epoch, position : int
        Epochs finished, and samples used since.

    Raises
    ------
    TypeError
        For a model or an optimizer that is none, or with `comm`, a model that cannot be split over steps.
    ValueError
        For an unknown method or backend, levels that do not go with the method, or replicas that do not come out even.
    RuntimeError
        For ``backend="cuda"`` without a GPU.

    Examples
    --------
    >>> from bppsa_nb import RNN, Adam, Bitstream, Trainer
    >>> trainer = Trainer(RNN(1, 20, 10), Adam(lr=1e-5), method="blelloch", backend="numpy")
    >>> history = trainer.fit(Bitstream(length=10, num_samples=32), epochs=1, batch_size=16, progress=False)
    >>> history.loss.shape
    (2,)
    """

    def __init__(self, model, optimizer, method="auto", backend="auto", levels=None, comm=None, sequence_ranks=None):
        self._replicas = None
        if comm is not None:
            self._replicas = over_ranks("training").Replicas(comm, sequence_ranks)
            with self._replicas.alike() as given:
                if not isinstance(model, Recurrent):
                    raise TypeError(
                        f"model must be an RNN or a GRU with comm, which shares out steps, got {type(model).__name__}"
                    )
                _check_parts(model, optimizer)
                model.check_method(method, backend, levels, comm)
                given |= {"method": method, "optimizer": optimizer.settings()}
        elif sequence_ranks is not None:
            raise ValueError(f"sequence_ranks goes with comm only, got {sequence_ranks!r}")
        else:
            _check_parts(model, optimizer)
            model.check_method(method, backend, levels)
        self.model, self.optimizer = model, optimizer
        self.method, self.backend, self.levels = method, backend, levels
        self.epoch = self.position = 0
        self._seed = self._plan = None
        self._loss, self._seconds = [], []
        self._device = None
        self._warned = False

    def __repr__(self):
        return shown(self, "model", "optimizer", "method", "backend", "levels", "epoch", "position")

    @property
    def history(self):
        """All iterations of `fit` so far, as a `History`."""
        return History(np.array(self._loss, np.float64), np.array(self._seconds, np.float64))

    def step(self, x, y):
        """Take one optimizer step.

        Parameters
        ----------
        x : np.ndarray [shape=(T, B, I)] or [shape=(B, C, H, W)]
            Inputs in the model's dtype: sequences or images, as the model's `forward` takes them.
        y : array_like of int [shape=(B,)]
            Labels. With `comm`, x and y are this rank's part of the batch: the steps of its place (T may be 0), and the
            samples of its replica (B may be 0).

        Returns
        -------
        float
            The batch's mean loss, before the update; that of all replicas.

        Raises
        ------
        TypeError, ValueError
            For inputs that do not fit; see the model's `forward` and `cross_entropy`.
        FloatingPointError
            If logits, a gradient, or what the optimizer makes of one, leave the range of the dtype. Model, optimizer
            and history are unchanged then.
        """
        if self._replicas is None:
            loss, update = self._loss_and_update(x, y)
            with interrupts_held():
                update()
            return loss
        with interrupts_held() as stopped:
            loss, update, _, stop = self._step_on_ranks(lambda: (x, y), time.perf_counter(), stopped)
            update()
            if stop:
                self._replicas.stop()
        return loss

    def _step_on_ranks(self, make, began, stopped):
        how = self.method, self.backend, self.levels
        elapsed = lambda: time.perf_counter() - began  # noqa: E731
        loss, grads, seconds, stop = self._replicas.train(self.model, make, how, elapsed, stopped)
        _check_range(grads, "")
        return loss, partial(self.optimizer.step, self.model.params, grads), seconds, stop

    def _loss_and_update(self, x, y):
        """Compute one step; return its loss, and what writes the result into model and optimizer."""
        check_order(x, y)
        if self._trains_on_device(x):
            return self._step_on_device(x, y)
        activations = self.model.forward(x, backend=self.backend)
        loss, grad_logits = cross_entropy(activations.logits, y)
        grads = self.model.backward(activations, grad_logits, self.method, self.backend, self.levels)
        _check_range(grads, f" after {len(x)} time steps" if x.ndim == 3 else "")  # sequences, not images
        return loss, partial(self.optimizer.step, self.model.params, grads)

    def _trains_on_device(self, x):
        model, optimizer = self.model, self.optimizer
        if not isinstance(model, (RNN, GRU)) or backends.resolve(self.backend) != "cuda":
            return False
        # Only what exactly these compute is known to the GPU.
        own = [part for part, kinds in ((model, (RNN, GRU)), (optimizer, (SGD, Adam))) if _differs(part, kinds)]
        if not own and model.params.keys() == model.shapes().keys():
            return np.ndim(x) == 3 and len(x) > 0  # a sequence without steps needs no GPU
        if not self._warned:
            self._warned = True
            names = " and ".join(type(part).__name__ for part in own) or "parameters of its own"
            warnings.warn(
                f"whole steps run on the GPU only of what exactly is RNN or GRU, by SGD or Adam; with {names}, forward "
                "and backward of the model and the optimizer's step are called",
                stacklevel=4,
            )
        return False

    def _step_on_device(self, x, y):
        from bppsa_nb.training.device import DeviceTraining

        self.model.check_input(x)
        labels = check_labels(y, x.shape[1], self.model.num_classes)
        parts = self.model, self.optimizer
        if self._device is None or (self._device.model, self._device.optimizer) != parts:
            self._device = DeviceTraining(*parts)
        return self._device.step(x, labels, self.method, self.levels), self._device.commit

    def fit(self, dataset, epochs, batch_size, rng=0, progress=True, save_to=None, save_every=None):
        """Train until `epochs` epochs are done, counted from the trainer's start.

        A `fit` that was interrupted, or saved and loaded, goes on where it stopped when called again with the
        same arguments, and gives the same curve to the last bit. Called again when it is through, it returns
        at once; a larger `epochs` trains on.

        Parameters
        ----------
        dataset : Bitstream, ArrayDataset or other
            Anything with a length and a `batch` method; see `bppsa_nb.training.datasets`. With `comm` each rank asks
            for its own part of a batch only.
        epochs : int
            How many epochs the trainer will have done in all. Each visits every sample once, in a new random
            order; its last batch may be smaller.
        batch_size : int
            Samples per iteration.
        rng : int or np.random.Generator
            Where the order of the samples comes from; read by the first call only. With `comm` that of rank 0 counts.
        progress : bool
            Show a progress bar, with `comm` on rank 0.
        save_to : str or os.PathLike, optional
            A file to `save` to while training.
        save_every : int, optional
            After how many iterations, counted from the trainer's start, that is done, time after time.

        Returns
        -------
        History
            All iterations so far, those of earlier calls included.

        Raises
        ------
        TypeError, ValueError
            For arguments that do not fit, or that change in the middle of an epoch.
        FloatingPointError
            As from `step`. The trainer is as it was after the iteration before.
        KeyboardInterrupt
            After Ctrl-C. The trainer is as it was between two iterations, and can be saved and resumed. Where it
            arrives on one rank of several, all of them stop after the same iteration.
        """
        with self._together() as given:
            check_flag("progress", progress)
            plan = self._check_fit(dataset, epochs, batch_size, save_to, save_every)
            seed = self._seed
            if seed is None:
                # One seed and two counters say where every epoch stands: there is no generator state to keep.
                seed = int(generator(rng).integers(2**63))
            place = {"epoch": self.epoch, "position": self.position, "seed": self._seed}
            given |= plan | {"epochs": int(epochs), "save_every": save_every, "the trainer's place": place}
        self._seed, self._plan = seed if self._replicas is None else self._replicas.first(seed), plan
        num_samples = plan["num_samples"]
        total = epochs * -(-num_samples // batch_size)
        done = self.epoch * -(-num_samples // batch_size) + self.position // batch_size
        with self._stopping() as stopped, _progress_bar(total, min(done, total), progress and self._speaks) as bar:
            while self.epoch < epochs:
                order = np.random.default_rng([self._seed, self.epoch]).permutation(num_samples)
                for start in range(self.position, num_samples, batch_size):
                    stop = self._iterate(dataset, order[start : start + batch_size], num_samples, stopped)
                    bar.set_postfix_str(f"loss {self._loss[-1]:.4f}", refresh=False)
                    bar.update()
                    if save_every is not None and len(self._loss) % save_every == 0:
                        self.save(save_to)
                    if stop:
                        self._replicas.stop()
        return self.history

    def _check_fit(self, dataset, epochs, batch_size, save_to, save_every):
        """Check the arguments of `fit`; return what an epoch consists of."""
        check_count("epochs", epochs)
        plan = {"num_samples": _check_dataset(dataset, batch_size), "batch_size": int(batch_size)}
        if self._replicas is not None:
            self._replicas.check_dataset(dataset)
        if self.position and plan != self._plan:
            raise ValueError(f"an epoch was begun with {self._plan}; finish it before going on with {plan}")
        if (save_to is None) != (save_every is None):
            raise ValueError(f"save_to and save_every go together, got {save_to!r} and {save_every!r}")
        if save_every is not None:
            check_count("save_every", save_every, 1)
            check_path(save_to, "save_to")
            if self._speaks:
                check_writable(save_to)  # found out now, and not after so many iterations
        return plan

    def _together(self):
        """Have what fails in a block fail on all ranks, and what it fills a dict with be the same on them."""
        return nullcontext({}) if self._replicas is None else self._replicas.alike()

    def _stopping(self):
        # One rank that stopped by itself would have the others wait for ever: they tell each other of Ctrl-C.
        return nullcontext() if self._replicas is None else interrupts_held()

    @property
    def _speaks(self):
        return self._replicas is None or self._replicas.group.rank == 0

    def _iterate(self, dataset, indices, num_samples, stopped):
        """Do one iteration; return whether Ctrl-C arrived on some rank."""
        began, seconds, stop = time.perf_counter(), None, False
        if self._replicas is None:
            loss, update = self._loss_and_update(*dataset.batch(indices))
        else:
            make = partial(self._replicas.own, dataset, indices)
            loss, update, seconds, stop = self._step_on_ranks(make, began, stopped)
        with interrupts_held():  # parameters, averages, position and history change together
            update()
            self.position += len(indices)
            if self.position == num_samples:
                self.epoch, self.position = self.epoch + 1, 0
            self._loss.append(loss)
            self._seconds.append(time.perf_counter() - began if seconds is None else seconds)
        return stop

    def evaluate(self, dataset, batch_size):
        """Compute mean loss and accuracy over a data set, in its own order.

        Parameters
        ----------
        dataset : Bitstream, ArrayDataset or other
        batch_size : int

        Returns
        -------
        loss, accuracy : float
        """
        with self._together() as given:
            num_samples = _check_dataset(dataset, batch_size)
            if self._replicas is not None:
                self._replicas.check_dataset(dataset)
            given |= {"num_samples": num_samples, "batch_size": int(batch_size)}
        loss = correct = 0.0
        with self._stopping() as stopped:
            for start in range(0, num_samples, batch_size):
                indices = np.arange(start, min(start + batch_size, num_samples))
                if self._replicas is None:
                    x, y = dataset.batch(indices)
                    check_order(x, y)
                    logits = self.model.forward(x, backend=self.backend).logits
                    loss += cross_entropy(logits, y)[0] * len(y)
                    correct += np.count_nonzero(logits.argmax(axis=1) == y)
                else:
                    make = partial(self._replicas.own, dataset, indices)
                    *found, stop = self._replicas.evaluate(self.model, make, self.backend, stopped)
                    loss, correct = loss + found[0], correct + found[1]
                    if stop:
                        self._replicas.stop()
        return loss / num_samples, correct / num_samples

    def predict(self, x):
        """Return the most likely class of every sample.

        Parameters
        ----------
        x : np.ndarray [shape=(T, B, I)] or [shape=(B, C, H, W)]
            With `comm` the steps of this rank's place, of the samples of its replica.

        Returns
        -------
        np.ndarray [shape=(B,)]
            Classes, integers.
        """
        if self._replicas is not None:
            return self._replicas.predict(self.model, x, self.backend)
        return self.model.forward(x, backend=self.backend).logits.argmax(axis=1)

    def save(self, path):
        """Write parameters, masks, optimizer state, history and the place in the data to one file, atomically.

        With `comm` rank 0 writes, and the others wait. Nothing in the file depends on how many ranks there are. Ctrl-C
        waits until it is written.

        Parameters
        ----------
        path : str or os.PathLike
            The file, in the ``.npz`` format, named as given.

        Raises
        ------
        TypeError, ValueError
            If `path` names no file, or `load` would refuse what is to be saved, as where a parameter is not finite. A
            file that is there stays as it is.
        OSError
            If it cannot be written.
        """
        with interrupts_held(), self._together():
            if self._speaks:
                self._write(path)

    def _write(self, path):
        place = {"epoch": self.epoch, "position": self.position, "seed": self._seed, "plan": self._plan}
        checkpoints.write(path, self.model, self.optimizer, place, self.history)

    def load(self, path):
        """Take over what `save` wrote, all of it or, on an error, nothing.

        A network has the masks of the file then, and none if the file has none. With `comm` every rank reads the file.

        Parameters
        ----------
        path : str or os.PathLike
            The file. The trainer's model and optimizer must be built as they were when it was written.

        Raises
        ------
        FileNotFoundError
            If there is no such file.
        ValueError
            If it is no such file, an entry is missing, left over or does not fit the model, or the optimizer differs.
            With `comm` also if ranks read different files.
        """
        with self._together() as given:
            entries = read_npz(path, "Trainer.save")
            found = checkpoints.unpack(path, entries, self.model, self.optimizer)
            if self._replicas is not None:
                given["what path holds"] = self._replicas.words_of(dict(sorted(entries.items())))
        with interrupts_held():
            self.model.params.update(found.params)
            if hasattr(self.model, "masks"):
                self.model.masks = found.masks
            self.optimizer.state, self.optimizer.steps = found.state, found.note["steps"]
            self.epoch, self.position = found.note["epoch"], found.note["position"]
            self._seed, self._plan = found.note["seed"], found.note["plan"]
            self._loss, self._seconds = found.loss.tolist(), found.seconds.tolist()


def _check_parts(model, optimizer):
    check_has("model", model, ("params", "forward", "backward", "check_method"), "bppsa_nb.RNN(1, 20, 10)")
    check_has("optimizer", optimizer, ("step", "settings", "zeros", "state", "steps"), "bppsa_nb.Adam()")


def _differs(part, kinds):
    """Tell whether an object is of another class than these, or has a method of its own."""
    return type(part) not in kinds or any(callable(getattr(type(part), name, None)) for name in vars(part))


def _check_range(grads, after):
    for name, grad in grads.items():
        if not all_finite(grad):
            raise FloatingPointError(
                f"the gradient of {name} overflows {grad.dtype}{after}; the parameters were not updated"
            )


def _check_dataset(dataset, batch_size):
    check_count("batch_size", batch_size, 1)
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "batch"):
        raise TypeError(
            "dataset must have a length and a method batch(indices), as bppsa_nb.training.datasets.ArrayDataset(x, y) "
            f"has, got {type(dataset).__name__}"
        )
    if len(dataset) == 0:
        raise ValueError("dataset must hold at least one sample")
    return len(dataset)


def _progress_bar(total, done, shown):
    from tqdm.auto import tqdm

    return tqdm(total=total, initial=done, disable=not shown, unit="it", desc="training")
