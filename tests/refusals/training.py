"""What trainers, optimizers, losses and data sets refuse."""

from pathlib import Path

import numpy as np
from garbage import numbers

from bppsa_nb.networks.models import LeNet5
from bppsa_nb.training.datasets import ArrayDataset

PICTURES = {"model": LeNet5(rng=0), "levels": None, "method": "auto", "forward": "chunked"}
ROWS = [
    ("Images", {"source": "CIFAR"}, '"stand-in", "cifar10", "mnist", or a path that exists, got \'CIFAR\'$'),
    ("Images", {"source": "a" * 5000}, "FileNotFoundError: .* or a path that exists, got 'aaa"),
    ("Images", {"source": "a\0b"}, "FileNotFoundError: .* or a path that exists, got 'a"),
    ("Images", {"source": "CIFAR-10"}, "got 'CIFAR-10'; the name of this one is the str \"cifar10\"$"),
    ("Images", {"source": Path("stand-in")}, r"Path\('stand-in'\); the name of this one is the str \"stand-in\"$"),
]
for name in "Bitstream.batch", "ArrayDataset.batch":
    ROWS += [
        (name, {"indices": [0, 8]}, "IndexError: indices must be from 0 to [37], got 8"),
        (name, {"indices": 3}, r"ValueError: indices must have shape \(B,\), got \(\)"),
        (name, {"part": (0, 1, 2)}, r"ValueError: part must be two integers \(i, n\), for the i-th of n parts, got"),
        (name, {"part": (0.0, 1)}, r"TypeError: part\[0\] must be an integer, got 0.0"),
        (name, {"part": (1, 1)}, r"ValueError: part\[0\] must be from 0 to 0 for parts \(i, n\), got 1"),
        (name, {"part": (-1, 2)}, r"ValueError: part\[0\] must be from 0 to 1"),
        (name, {"part": (0, 0)}, r"ValueError: part\[1\] must be at least 1, got 0"),
    ]
ROWS += [
    ("Bitstream", {"num_classes": 11}, "ValueError: num_classes must be from 1 to 10, got 11"),
    ("ArrayDataset", {"y": np.arange(3)}, r"y must have shape \(4,\), one label per sample of x, got \(3,\)"),
    ("ArrayDataset", {"y": np.arange(4) / 2}, "TypeError: y must hold integers, got float64"),
]
for name in "cross_entropy", "accuracy":
    ROWS += [
        (name, {"labels": [0, 4]}, "ValueError: labels must be from 0 to 3, got 4"),
        (name, {"labels": [0]}, r"ValueError: labels must have shape \(2,\) like logits \(2, 4\), got \(1,\)"),
        (name, {"logits": np.ones((0, 3)), "labels": []}, "ValueError: logits must have shape"),
    ]
ROWS += [
    ("SGD", {"momentum": 1}, "ValueError: momentum must be at least 0 and below 1, got 1"),
    ("Adam", {"betas": 0.9}, "ValueError: betas must be two numbers, got 0.9"),
    ("Adam", {"betas": (0.9, 1.0)}, r"ValueError: betas\[1\] must be at least 0 and below 1, got 1.0"),
    ("Adam.step", {"grads": {"b": numbers(3)}}, r"grads must have the entries \['a', 'b'\], got \['b'\]"),
    ("Adam.step", {"params": {"a": 1.0}, "grads": {"a": np.ones(())}}, r"params\['a'\] must be a numpy.ndarray"),
    ("SGD.step", {"params": {"a": numbers(3)}, "grads": {"a": numbers(2)}}, r"grads\['a'\] must have shape \(3,\)"),
    ("SGD.step", {"grads": [1]}, "TypeError: grads must be a dict of numpy.ndarray, got list"),
    ("SGD.step", {"params": {"a": np.ones(3, int)}, "grads": {"a": numbers(3)}}, r"params\['a'\] must be float32 or"),
    ("SGD.step", {"params": {"a": np.broadcast_to(np.ones(1), 3)}, "grads": {"a": np.ones(3)}}, "must be writable"),
    ("Trainer", {"sequence_ranks": 1}, "ValueError: sequence_ranks goes with comm only, got 1"),
    ("Trainer", {"comm": "world"}, r"TypeError: comm must be an mpi4py\.MPI\.Intracomm, .* got 'world'"),
    ("Trainer", {"levels": None}, "ValueError: .*levels"),
    ("Trainer", {"method": "linear"}, "ValueError: levels is for method='truncated' only"),
    ("Trainer", {"method": "ordinary", "levels": None}, "ValueError: method must be one of .* got 'ordinary'"),
    ("Trainer", {"forward": "magic"}, "forward must be one of 'auto', 'linear', 'chunked', 'newton', got 'magic'"),
    ("Trainer", PICTURES, "ValueError: forward must be 'auto' for a LeNet5, which has no loop over time"),
    ("Trainer", {"model": None}, r"model must be such as bppsa_nb.RNN\(1, 20, 10\), got NoneType, which has no"),
    ("Trainer", {"optimizer": int}, r"optimizer must be an object such as bppsa_nb.Adam\(\), got the class int"),
    ("Trainer.step", {"y": np.array([1, 10])}, "ValueError: labels must be from 0 to 9, got 10"),
    ("Trainer.step", {"y": np.array([1, -1])}, "ValueError: labels must be from 0 to 9, got -1"),
    ("Trainer.fit", {"dataset": np.ones(3)}, r"dataset must have a length and a method batch\(indices\).* ndarray"),
    ("Trainer.fit", {"dataset": ArrayDataset(numbers(3, 0, 1), np.zeros(0, int))}, "dataset must hold at least one"),
    ("Trainer.fit", {"save_every": None}, "ValueError: save_to and save_every go together, got .*fit.npz'.* and None"),
    ("Trainer.fit", {"save_to": None}, "ValueError: save_to and save_every go together, got None and 1"),
    ("Trainer.fit", {"save_to": "a\0b"}, "ValueError: save_to must be the name of a file or a folder, got 'a"),
]
