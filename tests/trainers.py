"""Trainers that tests make, run, stop and compare."""

import numpy as np

from bppsa_nb import RNN, SGD, Adam, Bitstream, Trainer
from bppsa_nb.sparse import Conv2d, Flatten, Linear, MaxPool2d, Network, ReLU, prune

DATA = Bitstream(length=6, num_samples=22, num_classes=3, rng=1)  # five batches of four, one of two


def new_trainer(optimizer=None, **settings):
    optimizer = Adam(lr=0.01) if optimizer is None else optimizer
    return Trainer(RNN(1, 4, 3, rng=5), optimizer, **{"backend": "numpy"} | settings)


def fit(trainer, epochs=2, dataset=DATA, **settings):
    return trainer.fit(dataset, epochs, **{"batch_size": 4, "rng": 9, "progress": False} | settings)


def state(trainer):
    """Everything a trainer holds, except times."""
    averages = {f"{a}/{n}": v.copy() for a, group in trainer.optimizer.state.items() for n, v in group.items()}
    params = {name: param.copy() for name, param in trainer.model.params.items()}
    place = np.array([trainer.optimizer.steps, trainer.epoch, trainer.position])
    return params | averages | {"loss": trainer.history.loss, "place": place}


def assert_same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def curve(path):
    """Read the losses that a checkpoint holds."""
    with np.load(path, allow_pickle=False) as kept:
        return kept["loss"]


def picture_trainer(optimizer=None, **settings):
    operators = [Conv2d("conv", 1, 3, 3), ReLU("relu"), MaxPool2d("pool", 2), Flatten("flatten"), Linear("fc", 3, 2)]
    optimizer = SGD(lr=0.1, momentum=0.9) if optimizer is None else optimizer
    return Trainer(Network((1, 4, 4), operators, rng=1), optimizer, **{"backend": "numpy"} | settings)


class Pictures:
    """Noise in which the first half or the second half is brighter."""

    def __len__(self):
        return 22

    def batch(self, indices):
        y = np.asarray(indices) % 2
        x = np.random.default_rng(0).standard_normal((22, 1, 4, 4), np.float32)[indices]
        for sample, label in zip(x, y, strict=True):
            sample[:, 2 * label : 2 * label + 2] += 2
        return x, y


class Scaled(RNN):
    """A model with a parameter of its own."""

    def __init__(self, *sizes, **how):
        super().__init__(*sizes, **how)
        self.params["scale"] = np.full(1, 1.5, np.float32)

    def backward(self, *arguments, **how):
        return super().backward(*arguments, **how) | {"scale": np.ones(1, np.float32)}


class Watched:
    """Data, and what is called before any are found, or with what was found, which it may change."""

    def __init__(self, before=lambda indices: None, change=lambda x, y: (x, y), inner=DATA):
        self.before, self.change, self.inner = before, change, inner

    def __len__(self):
        return len(self.inner)

    def batch(self, indices):
        self.before(indices)
        return self.change(*self.inner.batch(indices))


def stopping(iteration, inner=DATA):
    """Return data until Ctrl-C stops an iteration."""
    left = iter(range(iteration))

    def stop(indices):
        if next(left, None) is None:
            raise KeyboardInterrupt

    return Watched(stop, inner=inner)


def pruned_trainer(rate=0.6):
    trainer = picture_trainer()
    trainer.model.masks = prune(trainer.model.params, rate)
    return trainer
