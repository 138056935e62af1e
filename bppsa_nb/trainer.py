"""Training without a framework: the loss, and a trainer that can be stopped and resumed anywhere."""

import json
import time
from dataclasses import dataclass
from functools import partial

import numpy as np

from bppsa_nb import backends
from bppsa_nb.cells.recurrent import Recurrent
from bppsa_nb.files import atomic_write, npz_entry, read_npz
from bppsa_nb.interrupts import interrupts_held
from bppsa_nb.optimizers import SGD, Adam

__all__ = ["SGD", "Adam", "History", "Trainer", "accuracy", "check_labels", "cross_entropy"]

_FORMAT = 1


def cross_entropy(logits, labels):
    """Compute the mean softmax cross-entropy and its gradient.

    Parameters
    ----------
    logits : np.ndarray [shape=(B, C)]
        Scores, finite.
    labels : array_like of int [shape=(B,)]
        Classes from 0 to C - 1.

    Returns
    -------
    loss : float
        Mean over the batch, computed in float64.
    grad_logits : np.ndarray [shape=(B, C)]
        Its gradient, in the dtype of the logits.

    Raises
    ------
    TypeError
        If the labels are not integers or the logits not floating point.
    ValueError
        For shapes that do not fit, an empty batch, a label out of range, NaN or infinity.
    """
    logits, labels = _checked(logits, labels)
    rows = np.arange(len(labels))
    # Shifted by the largest logit, no exponential overflows and their sum is at least one.
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    exponentials = np.exp(shifted)
    sums = exponentials.sum(axis=1)
    loss = float((np.log(sums) - shifted[rows, labels]).mean())
    grad = exponentials / sums[:, None]
    grad[rows, labels] -= 1
    grad /= len(labels)
    return loss, grad.astype(logits.dtype)


def accuracy(logits, labels):
    """Compute the share of samples whose largest logit is at their label.

    Parameters
    ----------
    logits : np.ndarray [shape=(B, C)]
    labels : array_like of int [shape=(B,)]

    Returns
    -------
    float
        Between 0 and 1.

    Raises
    ------
    TypeError, ValueError
        As in `cross_entropy`.
    """
    logits, labels = _checked(logits, labels)
    return float((logits.argmax(axis=1) == labels).mean())


def _checked(logits, labels):
    logits = np.asarray(logits)
    if not np.issubdtype(logits.dtype, np.floating):
        raise TypeError(f"logits must be floating point, got {logits.dtype}")
    if logits.ndim != 2 or 0 in logits.shape:
        raise ValueError(f"logits must have shape (B, C), neither of them 0, got {logits.shape}")
    labels = check_labels(labels, *logits.shape)
    if not np.isfinite(logits).all():
        raise ValueError(f"logits must be finite, got {logits[~np.isfinite(logits)][0]}")
    return logits, labels


def check_labels(labels, batch, classes):
    """Return labels as an array, or raise TypeError or ValueError unless they are classes of `batch` samples."""
    labels = np.asarray(labels)
    if not np.issubdtype(labels.dtype, np.integer):
        raise TypeError(f"labels must be integers, got {labels.dtype}")
    if labels.shape != (batch,):
        raise ValueError(f"labels must have shape ({batch},) like logits {(batch, classes)}, got {labels.shape}")
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        raise ValueError(f"labels must be from 0 to {classes - 1}, got {wrong[0]}")
    return labels


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


class Trainer:
    """Train a model with any method and backend for its backward pass.

    Parameters
    ----------
    model : RNN, GRU, sparse.Network or multigrid.ResidualModel
        Anything with `params`, `forward`, `backward` and `check_method` like `bppsa_nb.RNN`.
    optimizer : SGD or Adam
    method, backend, levels
        How gradients are found; see the model's `backward`.

    Attributes
    ----------
    history : History
        All iterations of `fit` so far.
    epoch, position : int
        Epochs finished, and samples used since.

    Raises
    ------
    ValueError
        For an unknown method or backend, or levels that do not go with the method.
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

    def __init__(self, model, optimizer, method="auto", backend="auto", levels=None):
        model.check_method(method, backend, levels)
        self.model, self.optimizer = model, optimizer
        self.method, self.backend, self.levels = method, backend, levels
        self.epoch = self.position = 0
        self._seed = self._plan = None
        self._loss, self._seconds = [], []
        self._device = None

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
            Labels.

        Returns
        -------
        float
            The batch's mean loss, before the update.

        Raises
        ------
        TypeError, ValueError
            For inputs that do not fit; see the model's `forward` and `cross_entropy`.
        FloatingPointError
            If a gradient leaves the range of the dtype. The parameters are unchanged then.
        """
        loss, update = self._loss_and_update(x, y)
        with interrupts_held():
            update()
        return loss

    def _loss_and_update(self, x, y):
        """Compute one step; return its loss, and what writes the result into model and optimizer."""
        if self._trains_on_device(x):
            return self._step_on_device(x, y)
        activations = self.model.forward(x, backend=self.backend)
        loss, grad_logits = cross_entropy(activations.logits, y)
        grads = self.model.backward(activations, grad_logits, self.method, self.backend, self.levels)
        for name, grad in grads.items():
            if not np.isfinite(grad).all():
                after = f" after {len(x)} time steps" if x.ndim == 3 else ""  # sequences, not images
                raise FloatingPointError(
                    f"the gradient of {name} overflows {grad.dtype}{after}; the parameters were not updated"
                )
        return loss, partial(self.optimizer.step, self.model.params, grads)

    def _trains_on_device(self, x):
        # Whole steps on a GPU are there for the recurrent cells; a sequence without steps needs none.
        known = isinstance(self.model, Recurrent) and type(self.optimizer) in (SGD, Adam)
        return known and np.ndim(x) == 3 and len(x) > 0 and backends.resolve(self.backend) == "cuda"

    def _step_on_device(self, x, y):
        from bppsa_nb.device import DeviceTraining

        self.model.check_input(x)
        labels = check_labels(y, x.shape[1], self.model.num_classes)
        parts = self.model, self.optimizer
        if self._device is None or (self._device.model, self._device.optimizer) != parts:
            self._device = DeviceTraining(*parts)
        return self._device.step(x, labels, self.method, self.levels), self._device.commit

    def fit(self, dataset, epochs, batch_size, rng=0, progress=True):
        """Train until `epochs` epochs are done, counted from the trainer's start.

        A `fit` that was interrupted, or saved and loaded, goes on where it stopped when called again with the
        same arguments, and gives the same curve to the last bit. Called again when it is through, it returns
        at once; a larger `epochs` trains on.

        Parameters
        ----------
        dataset : Bitstream, ArrayDataset or other
            Anything with a length and a `batch` method; see `bppsa_nb.datasets`.
        epochs : int
            How many epochs the trainer will have done in all. Each visits every sample once, in a new random
            order; its last batch may be smaller.
        batch_size : int
            Samples per iteration.
        rng : int or np.random.Generator
            Where the order of the samples comes from; read by the first call only.
        progress : bool
            Show a progress bar.

        Returns
        -------
        History
            All iterations so far, those of earlier calls included.

        Raises
        ------
        TypeError, ValueError
            For arguments that do not fit, or that change in the middle of an epoch.
        KeyboardInterrupt
            After Ctrl-C. The trainer is as it was between two iterations, and can be saved and resumed.
        """
        _require_count("epochs", epochs)
        num_samples = _check_dataset(dataset, batch_size)
        plan = {"num_samples": num_samples, "batch_size": int(batch_size)}
        if self.position and plan != self._plan:
            raise ValueError(f"an epoch was begun with {self._plan}; finish it before going on with {plan}")
        if self._seed is None:
            # One seed and two counters say where every epoch stands: there is no generator state to keep.
            self._seed = int(np.random.default_rng(rng).integers(2**63))
        self._plan = plan
        total = epochs * -(-num_samples // batch_size)
        done = self.epoch * -(-num_samples // batch_size) + self.position // batch_size
        with _progress_bar(total, min(done, total), progress) as bar:
            while self.epoch < epochs:
                order = np.random.default_rng([self._seed, self.epoch]).permutation(num_samples)
                for start in range(self.position, num_samples, batch_size):
                    self._iterate(dataset, order[start : start + batch_size], num_samples)
                    bar.set_postfix_str(f"loss {self._loss[-1]:.4f}", refresh=False)
                    bar.update()
        return self.history

    def _iterate(self, dataset, indices, num_samples):
        began = time.perf_counter()
        loss, update = self._loss_and_update(*dataset.batch(indices))
        with interrupts_held():  # parameters, averages, position and history change together
            update()
            self.position += len(indices)
            if self.position == num_samples:
                self.epoch, self.position = self.epoch + 1, 0
            self._loss.append(loss)
            self._seconds.append(time.perf_counter() - began)

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
        num_samples = _check_dataset(dataset, batch_size)
        loss = correct = 0.0
        for start in range(0, num_samples, batch_size):
            x, y = dataset.batch(np.arange(start, min(start + batch_size, num_samples)))
            logits = self.model.forward(x, backend=self.backend).logits
            loss += cross_entropy(logits, y)[0] * len(y)
            correct += np.count_nonzero(logits.argmax(axis=1) == y)
        return loss / num_samples, correct / num_samples

    def predict(self, x):
        """Return the most likely class of every sample.

        Parameters
        ----------
        x : np.ndarray [shape=(T, B, I)] or [shape=(B, C, H, W)]

        Returns
        -------
        np.ndarray [shape=(B,)]
            Classes, integers.
        """
        return self.model.forward(x, backend=self.backend).logits.argmax(axis=1)

    def save(self, path):
        """Write parameters, masks, optimizer state, history and the place in the data to one file, atomically.

        Parameters
        ----------
        path : str or os.PathLike
            The file, in the ``.npz`` format, named as given.
        """
        note = {
            "format": _FORMAT,
            "optimizer": self.optimizer.settings(),
            "steps": self.optimizer.steps,
            "epoch": self.epoch,
            "position": self.position,
            "seed": self._seed,
            "plan": self._plan,
        }
        state = self.optimizer.state or self.optimizer.zeros(self.model.params)
        history = self.history
        arrays = {"note": np.array(json.dumps(note)), "loss": history.loss, "seconds": history.seconds}
        masks = getattr(self.model, "masks", None) or {}
        for group, entries in {"params": self.model.params, "masks": masks, **state}.items():
            arrays |= {f"{group}/{name}": entry for name, entry in entries.items()}
        with atomic_write(path) as file:
            np.savez(file, **arrays)

    def load(self, path):
        """Take over what `save` wrote, all of it or, on an error, nothing.

        A network has the masks of the file then, and none if the file has none.

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
        """
        entries = read_npz(path, "Trainer.save")
        entry = partial(npz_entry, path, entries)
        note = _read_note(path, entry("note"))
        if note["optimizer"] != self.optimizer.settings():
            raise ValueError(
                f"{path} was written with the optimizer {note['optimizer']}, this trainer has "
                f"{self.optimizer.settings()}"
            )
        loss, seconds = entry("loss"), entry("seconds")
        if loss.ndim != 1 or loss.shape != seconds.shape:
            lengths = f"{loss.shape} and {seconds.shape}"
            raise ValueError(f"{path}: 'loss' and 'seconds' must be equally long, got {lengths}")
        groups = {"params": self.model.params, **self.optimizer.zeros(self.model.params)}
        state = {
            group: {name: entry(f"{group}/{name}", like) for name, like in likes.items()}
            for group, likes in groups.items()
        }
        known = {"note", "loss", "seconds"} | {f"{group}/{name}" for group, likes in groups.items() for name in likes}
        masks = {}
        if hasattr(self.model, "masks"):
            masks = {name.removeprefix("masks/"): entries[name] for name in entries if name.startswith("masks/")}
            known |= {f"masks/{name}" for name in masks}
        if entries.keys() - known:
            raise ValueError(f"{path} has entries that do not fit the model: {sorted(entries.keys() - known)}")
        with interrupts_held():
            self._replace(path, state.pop("params"), masks)
            self.optimizer.state, self.optimizer.steps = state, note["steps"]
            self.epoch, self.position = note["epoch"], note["position"]
            self._seed, self._plan = note["seed"], note["plan"]
            self._loss, self._seconds = loss.tolist(), seconds.tolist()

    def _replace(self, path, params, masks):
        """Give the model other parameters and masks, both or, on an error, neither."""
        before = dict(self.model.params)
        self.model.params.update(params)
        if hasattr(self.model, "masks"):
            try:
                self.model.masks = masks or None
            except Exception as error:
                self.model.params.update(before)
                raise ValueError(f"{path} has masks that do not fit the model: {error}") from error


def _read_note(path, array):
    try:
        note = json.loads(str(array))
        if note["format"] != _FORMAT:
            raise ValueError(f"format {note['format']}, where this version reads {_FORMAT}")
        steps, epoch, position = note["steps"], note["epoch"], note["position"]
        sound = all(isinstance(count, int) and count >= 0 for count in (steps, epoch, position))
        if epoch or position:
            sound &= isinstance(note["seed"], int) and position < note["plan"]["num_samples"]
        sound &= note["seed"] is None or note["seed"] >= 0
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path}: the entry 'note' is damaged: {error!r}") from error
    if not sound:
        raise ValueError(f"{path}: the entry 'note' is damaged: {note}")
    return note


def _require_count(name, value, least=0):
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def _check_dataset(dataset, batch_size):
    _require_count("batch_size", batch_size, 1)
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "batch"):
        raise TypeError(
            "dataset must have a length and a method batch(indices), as bppsa_nb.datasets.ArrayDataset(x, y) "
            f"has, got {type(dataset).__name__}"
        )
    if len(dataset) == 0:
        raise ValueError("dataset must hold at least one sample")
    return len(dataset)


def _progress_bar(total, done, shown):
    from tqdm.auto import tqdm

    return tqdm(total=total, initial=done, disable=not shown, unit="it", desc="training")
