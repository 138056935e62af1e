"""A trainer that can be stopped and resumed anywhere."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from bppsa_nb.cells.unroll import Forward
from bppsa_nb.machine import process
from bppsa_nb.machine.arguments import Backend, Comm, Count, Path, Rng, Size, checked
from bppsa_nb.machine.checks import repr_of, with_repr
from bppsa_nb.machine.process import interrupts_held, over_ranks
from bppsa_nb.training import checkpoints
from bppsa_nb.training.step import Local


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
        return repr_of(self, iterations=len(self.loss), **last)


@with_repr("model", "optimizer", "method", "backend", "levels", "steps", "epoch", "position")
class Trainer:
    """Train a model with any method and backend for its backward pass.

    Parameters
    ----------
    model
        Or anything with `params`, `forward`, `backward` and `check_method` like these.
    optimizer
        Or anything with `step`, `settings`, `zeros`, `state` and `steps` like these.
    method, backend, levels
        How gradients are found; see the model's `backward`.
    comm
        Ranks that train an RNN, a GRU or a `ResidualModel` together: all make the same trainer and call the same
        methods, and then have the same losses, parameters and history. What fails on one rank fails on all. They share
        out the layers of a `ResidualModel`, and all take whole batches.
    sequence_ranks
        For an RNN or a GRU: how many consecutive ranks share the steps of a sequence, in the order of time; by default
        all. There are ``comm.size // sequence_ranks`` replicas of the model, which share out the samples of each batch,
        in order.
    forward
        How the states of an RNN or a GRU are found; see their `forward`. ``"auto"`` goes back to the loop for a while
        where chunks take longer to meet.
    checkpoint_every
        Keep only the states of every so many steps of an RNN or a GRU, and compute the others again going back; see
        their `forward`. On the host, without `comm`.

    Attributes
    ----------
    history : History
        All iterations of `fit` so far.
    epoch, position : int
        Epochs finished, and samples used since.
    steps : {"whole", "in parts", "on the GPU", "over ranks"}
        How steps run. Those of an `RNN`, a `GRU` or an `LSTM`, by `SGD` or `Adam`, are whole, by any method: arguments
        and numbers are looked at once. On a GPU, they are recorded and replayed. Other models and optimizers, and those
        with methods or parameters of their own, run in parts, by their own `forward`, `backward` and `step`; on a GPU,
        a warning says so. So does a step whose arguments or results are not as they must be: the parts say what is
        wrong.

    Examples
    --------
    >>> from bppsa_nb import RNN, Adam, Bitstream, Trainer
    >>> trainer = Trainer(RNN(1, 20, 10), Adam(lr=1e-5), method="blelloch", backend="numpy")
    >>> history = trainer.fit(Bitstream(length=10, num_samples=32), epochs=1, batch_size=16, progress=False)
    >>> history.loss.shape
    (2,)
    """

    @checked
    def __init__(
        self, model: Any, optimizer: Any, method: str = "auto", backend: Backend = "auto", levels: Count | None = None,
        comm: Comm = None, sequence_ranks: Size | None = None,
        forward: Literal["auto", "linear", "chunked", "newton"] = "auto", checkpoint_every: Size | None = None,
    ):  # fmt: skip
        self.comm = comm
        self.forward = Forward(forward, checkpoint_every)
        if comm is None:
            if sequence_ranks is not None:
                raise ValueError(f"sequence_ranks goes with comm only, got {sequence_ranks!r}")
            self._strategy = Local(model, optimizer, backend)
        else:
            self._strategy = over_ranks("training").ReplicaStrategy(model, comm, sequence_ranks)
        self._strategy.check(model, optimizer, method, backend, levels, self.forward)
        self.model, self.optimizer = model, optimizer
        self.method, self.backend, self.levels = method, backend, levels
        self.epoch = self.position = 0
        self._seed = self._plan = None
        self._loss, self._seconds = [], []

    @property
    def steps(self) -> str:
        """How steps run, a text."""
        return self._strategy.steps(self)

    @property
    def history(self) -> History:
        """All iterations of `fit` so far, as a `History`."""
        return History(np.array(self._loss, np.float64), np.array(self._seconds, np.float64))

    def step(
        self, x: Annotated[np.ndarray, "float[T, B, I], or of images float[B, C, H, W]"],
        y: Annotated[ArrayLike, "int[B]"], lengths: Annotated[ArrayLike, "int[B]"] | None = None,
    ) -> float:  # fmt: skip
        """Take one optimizer step; return the mean loss before it (a float) of the batch, of all replicas.

        Parameters
        ----------
        x
            Inputs in the model's dtype: sequences or images, as the model's `forward` takes them.
        y
            Labels. With `comm`, an RNN or a GRU takes this rank's part of the batch: the steps of its place, of the
            samples of its replica (T and B may be 0).
        lengths
            How many steps each sample has; see the model's `forward`. On the host, without `comm`.

        Raises
        ------
        TypeError, ValueError, FloatingPointError
            For inputs that do not fit; see the model's `forward` and `cross_entropy`. If logits, a gradient, or what
            the optimizer makes of one, leave the range of the dtype. All is unchanged then.
        """
        loss, update = self._strategy.step(self, partial(tuple, (x, y, lengths)))
        update()
        return loss

    @checked
    def fit(
        self, dataset: Any, epochs: Count, batch_size: Size, rng: Rng = 0, progress: bool = True,
        save_to: Path | None = None, save_every: Size | None = None,
    ) -> History:  # fmt: skip
        """Train until `epochs` epochs are done, counted from the trainer's start; return the `History` of them all.

        Called again with the same arguments after an interrupt, or `save` and `load`, it goes on where it stopped, and
        gives the same curve to the last bit.

        Parameters
        ----------
        dataset
            Anything with a length and a `batch` method; see `bppsa_nb.training.datasets`. With `comm`, each rank asks
            only for its own part of a batch of sequences.
        epochs
            Each visits every sample once, in a new random order; its last batch may be smaller.
        batch_size
            Samples per iteration.
        rng
            Where the order of the samples comes from; read by the first call only. With `comm` that of rank 0 counts.
        progress
            Show a progress bar, with `comm` on rank 0.
        save_to, save_every
            A file to `save` to while training, every so many iterations, counted from the trainer's start.

        Raises
        ------
        FloatingPointError, KeyboardInterrupt
            As from `step`, and after Ctrl-C: the trainer is as it was between two iterations, and can be saved and
            resumed. With `comm`, Ctrl-C ends all ranks, and what `save_every` saved is what to resume from.
        """
        with self._strategy.collective_check() as given:
            plan = self._strategy.check_dataset(dataset, batch_size)
            if self.position and plan != self._plan:
                raise ValueError(f"an epoch was begun with {self._plan}; finish it before going on with {plan}")
            checkpoints.check_saving(save_to, save_every, self._strategy.is_main_process)
            # One seed and two counters say where every epoch stands: there is no generator state to keep.
            seed = int(np.random.default_rng(rng).integers(2**63)) if self._seed is None else self._seed
            place = {"epoch": self.epoch, "position": self.position, "seed": self._seed}
            given |= plan | {"epochs": epochs, "save_every": save_every, "the trainer's place": place}
        self._seed, self._plan = self._strategy.broadcast(seed), plan
        num_samples = plan["num_samples"]
        per_epoch = -(-num_samples // batch_size)
        total, done = epochs * per_epoch, self.epoch * per_epoch + self.position // batch_size
        hidden = not (progress and self._strategy.is_main_process)
        bar = {"total": total, "initial": min(done, total), "disable": hidden, "unit": "it", "desc": "training"}
        with process.bar(**bar) as bar:
            while self.epoch < epochs:
                order = np.random.default_rng([self._seed, self.epoch]).permutation(num_samples)
                for start in range(self.position, num_samples, batch_size):
                    self._iterate(dataset, order[start : start + batch_size])
                    bar.set_postfix_str(f"loss {self._loss[-1]:.4f}", refresh=False)
                    bar.update()
                    if save_every is not None and len(self._loss) % save_every == 0:
                        self.save(save_to)
        return self.history

    def _iterate(self, dataset, indices):
        loss, update = self._strategy.step(self, partial(self._strategy.batch, dataset, indices))
        with interrupts_held():  # parameters, averages, position and history change together
            update()
            self.position += len(indices)
            if self.position == self._plan["num_samples"]:
                self.epoch, self.position = self.epoch + 1, 0
            self._loss.append(loss)
            self._seconds.append(self._strategy.seconds())

    @checked
    def evaluate(self, dataset: Any, batch_size: Size) -> tuple[float, float]:
        """Return mean loss and accuracy (floats) over a data set, in its own order; arguments as for `fit`."""
        with self._strategy.collective_check() as given:
            plan = self._strategy.check_dataset(dataset, batch_size)
            given |= plan
        num_samples, loss, correct = plan["num_samples"], 0.0, 0.0
        for start in range(0, num_samples, batch_size):
            indices = np.arange(start, min(start + batch_size, num_samples))
            batch = self._strategy.evaluate(self, partial(self._strategy.batch, dataset, indices))
            loss, correct = loss + batch[0], correct + batch[1]
        return loss / num_samples, correct / num_samples

    def predict(
        self,
        x: Annotated[np.ndarray, "float[T, B, I], or of images float[B, C, H, W]"],
        lengths: Annotated[ArrayLike, "int[B]"] | None = None,
    ) -> np.ndarray:
        """Return the most likely class of every sample, integers [shape=(B,)]; arguments as for `step`."""
        return self._strategy.predict(self, x, lengths)

    @checked
    def save(self, path: Path) -> None:
        """Write parameters, masks, optimizer state, history and the place in the data to one file, atomically.

        With `comm`, rank 0 writes, the same for any number of ranks, and the others wait.

        Parameters
        ----------
        path
            The file, in the ``.npz`` format, named as given.

        Raises
        ------
        TypeError, ValueError, OSError
            If `path` names no file, or `load` would refuse what is to be saved, as where a parameter is not finite; if
            it cannot be written. A file that is there stays as it is.
        """
        place = {"epoch": self.epoch, "position": self.position, "seed": self._seed, "plan": self._plan}
        place["forward"] = [self.forward.spent, self.forward.rest]
        with self._strategy.collective_check():
            if self._strategy.is_main_process:
                checkpoints.write(path, self.model, self.optimizer, self.history, place)

    @checked
    def load(self, path: Path) -> None:
        """Take over what `save` wrote, all of it or, on an error, nothing.

        A network then has the masks of the file, or none if the file has none. With `comm`, every rank reads the file.

        Parameters
        ----------
        path
            The file. The trainer's model and optimizer must be built as they were when it was written.

        Raises
        ------
        FileNotFoundError, ValueError
            If there is no such file; if an entry is missing, left over or does not fit the model, or the optimizer
            differs; with `comm`, if ranks read different files.
        """
        with self._strategy.collective_check() as given:
            given["what path holds"], checkpoint = checkpoints.read(path, self.model, self.optimizer)
        note, loss, seconds = checkpoint.note, checkpoint.loss.tolist(), checkpoint.seconds.tolist()
        with interrupts_held():
            checkpoint.restore(self.model, self.optimizer)
            self.epoch, self.position, self._seed, self._plan = [note[k] for k in ("epoch", "position", "seed", "plan")]
            self.forward.spent, self.forward.rest = note["forward"]
            self._loss, self._seconds = loss, seconds
