"""What `test_training.py` has every rank do: mpiexec -n RANKS python -m mpi4py residual_ranks.py TASK FOLDER FILE."""

import sys
from pathlib import Path

import numpy as np
import trainers
from mpi4py import MPI
from refusing import bits, rows, state, unlike, write
from texts import beside

import bppsa_nb as bp
from bppsa_nb import multigrid, sparse

COMM = MPI.COMM_WORLD
RANK, SIZE, LAST = COMM.rank, COMM.size, COMM.rank == COMM.size - 1
TWO_CYCLES = {"cycles": 2, "coarsening": 2, "levels": 2}


def model(kind="dense", solver=TWO_CYCLES, depth=18, dtype=np.float64, **settings):
    if kind == "dense":
        opening, closing = [sparse.Linear("opening", 4, 5), sparse.Tanh("tanh")], [sparse.Linear("closing", 5, 3)]
        shape = (4,)
    else:
        opening, shape = [sparse.Conv2d("opening", 1, 2, 3, padding=1)], (1, 4, 3)
        closing = [sparse.Flatten("flatten"), sparse.Linear("closing", 24, 3)]
    return multigrid.ResidualModel(shape, opening, depth, closing, solver=solver, rng=1, dtype=dtype, **settings)


class Data:
    """Samples that are classified; the last batch of eight is smaller."""

    def __init__(self, net, change=lambda x, y: (x, y)):
        rng = np.random.default_rng(5)
        self.x, self.y = rng.standard_normal((19, *net.input_shape)).astype(net.dtype), rng.integers(3, size=19)
        self.change = change

    def __len__(self):
        return len(self.y)

    def batch(self, indices):
        return self.change(self.x[indices], self.y[indices]) if LAST else (self.x[indices], self.y[indices])


def trainer(net=None, comm=COMM, optimizer=None, **how):
    return bp.Trainer(net or model(), optimizer or bp.Adam(0.02), **{"backend": "numpy", "comm": comm} | how)


def fit(who, epochs=1, dataset=None, **settings):
    return trainers.fit(who, epochs, dataset or Data(who.model), **{"batch_size": 8} | settings)


CASES = {
    "dense": ({}, {}),
    "images": ({"kind": "images", "solver": {"cycles": 1, "coarsening": 4, "levels": 2}}, {"backend": "cpu"}),
    "serial": ({"solver": None}, {}),
    "ordinary": ({"dtype": np.float32}, {"method": "ordinary"}),
    "estimate": ({"solver": {"error": 1e-3, "coarsening": 2, "levels": 2}}, {}),
    "first state": ({"solver": {"tol": 1e-11, "coarsening": 2, "levels": 3}}, {"method": "multigrid"}),
}


def training(folder):
    """Return where training on ranks differs from that of one process, in a single bit."""
    wrong = []
    for name, (settings, how) in CASES.items():
        alone, many = trainer(model(**settings), None, **how), trainer(model(**settings), **how)
        fit(alone, 2)
        history = fit(many, 2, rng=9 if RANK == 0 else None)
        if many.model.cycles != alone.model.cycles or not alone.model.cycles["backward"]:
            wrong.append(f"{name}: cycles")
        if state(many) != state(alone):
            wrong.append(f"{name}: state")
        if (history.seconds <= 0).any() or len(set(COMM.allgather(bits([history.seconds])))) > 1:
            wrong.append(f"{name}: seconds")
        data = Data(alone.model)
        if many.evaluate(data, 7) != alone.evaluate(data, 7):
            wrong.append(f"{name}: evaluate")
        if (many.predict(data.x) != alone.predict(data.x)).any():
            wrong.append(f"{name}: predict")
        layers = len(many.model.forward(data.x, "numpy", COMM).states) - 1
        if sum(COMM.allgather(layers)) != 18 or layers == 18 and SIZE > 1:
            wrong.append(f"{name}: {layers} layers here")
        many.save(folder / f"{name}.npz")
        alone.load(folder / f"{name}.npz")
        again = trainer(model(**settings), **how)
        again.load(folder / f"{name}.npz")
        fit(alone, 3)
        fit(again, 3)
        if state(again) != state(alone):
            wrong.append(f"{name}: after a checkpoint")
    return wrong


def refusals():
    """Yield calls that must fail on all ranks; see `refusing.unlike`."""
    net, x, who = model(), Data(model()).x, trainer()
    large, other, wild, before = model(), model(), model(h=1e3), state(who)
    large.params["closing.weight"][:] = 1e308
    other.params["closing.bias"][1] += LAST
    activations, grad = net.forward(x, "numpy", COMM), np.ones((19, 3)) if LAST else None

    def forward(x=x, net=net):
        return lambda: net.forward(x, "numpy", COMM)

    def backward(grad=grad, activations=activations, method="auto", net=net):
        return lambda: net.backward(activations, grad, method, "numpy", None, COMM)

    return rows(COMM, beside(__file__)["refused"], globals() | locals())


def main(task, folder, path):
    tasks = {"check": training, "refused": lambda _: unlike(COMM, refusals())}
    write(COMM, tasks[task](Path(folder)), path)


if __name__ == "__main__":
    main(*sys.argv[1:])
