"""What `test_training.py` has every rank do: mpiexec -n RANKS python -m mpi4py residual_ranks.py TASK FOLDER FILE."""

import signal
import sys
from pathlib import Path

import numpy as np
import trainers
from mpi4py import MPI
from refusing import bits, failing, state, unlike, write

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
    net, x, at = model(), Data(model()).x, SIZE - 1
    large, other = model(), model()
    large.params["closing.weight"][:] = 1e308
    other.params["closing.bias"][1] += LAST
    activations, grad = net.forward(x, "numpy", COMM), np.ones((19, 3)) if LAST else None

    def forward(x=x, net=net):
        return lambda: net.forward(x, "numpy", COMM)

    def backward(grad=grad, activations=activations, method="auto", net=net):
        return lambda: net.backward(activations, grad, method, "numpy", None, COMM)

    def unlike_rank_0(name):
        return f"ValueError: {name} must be the same on all ranks: it is .* on rank {at}, and .* on rank 0"

    yield forward(np.where(LAST, np.nan, x)), at, "ValueError: x must be finite, got nan"
    yield forward(x + LAST), None, unlike_rank_0("x")
    yield forward(net=other), None, unlike_rank_0("model.params")
    yield forward(net=model(solver=TWO_CYCLES | {"cycles": 2 + LAST})), None, unlike_rank_0("model.solver")
    yield forward(x * 30, net=large), None, "FloatingPointError: the output of 'closing' overflows float64"
    few = model(depth=SIZE, solver={"cycles": 1, "coarsening": 2, "levels": 2})
    yield forward(net=few), None, "ValueError: ranks must be at most the . steps? that 2 levels leave"
    yield lambda: net.forward(x, "numpy", "world"), None, "TypeError: comm must be an mpi4py.MPI.Intracomm"
    elsewhere = f"ValueError: grad_logits must be None on all ranks but rank {at}, which has the last"
    yield backward(np.ones((19, 3))), "any", elsewhere
    yield backward(np.full((19, 3), np.nan) if LAST else None), at, "ValueError: grad_logits must be finite, got nan"
    huge, steep = np.full((19, 3), 1e308) if LAST else None, model(h=1e3).forward(x, "numpy", COMM)
    yield backward(huge, steep), None, "FloatingPointError: "
    yield backward(activations=None if LAST else activations), at, "TypeError: activations must come from Residual"
    every = net.forward(x, "numpy") if LAST else activations
    yield backward(activations=every), at, "ValueError: activations.states must have shape"
    ordinary = "ValueError: method must be one of 'auto', 'multigrid', 'ordinary' with comm, got "
    yield backward(method="blelloch"), None, ordinary + "'blelloch'"
    yield backward(method="ordinary" if LAST else "auto"), None, unlike_rank_0("method")
    steps = "ValueError: sequence_ranks is for an RNN or a GRU, which have steps, got 1"
    yield lambda: trainer(sequence_ranks=1), None, steps
    yield lambda: trainer(method="linear"), None, ordinary + "'linear'"
    yield lambda: trainer(forward="chunked"), None, "ValueError: forward must be 'auto' for a ResidualModel"
    yield lambda: trainer(optimizer=bp.SGD(0.1 + LAST)), None, unlike_rank_0("optimizer")
    who, disk = trainer(), "OSError: the disk is gone"
    before = state(who)
    for change, rank, said in [
        (failing, at, disk), (lambda x, y: (x, (y + 1) % 3), None, unlike_rank_0("y")),
        (lambda x, y: (x[:1], y[:1]), at, "ValueError: dataset.batch must return labels of the 8 samples asked for"),
    ]:
        yield lambda change=change: fit(who, dataset=Data(who.model, change)), rank, said
    yield lambda: who.evaluate(Data(who.model, failing), 8), at, disk
    yield lambda: state(who) == before, None, "True instead"


def stopped(folder):
    """Send Ctrl-C to the last rank in the second iteration; return where all ranks stop."""
    count = [0]

    def interrupt(x, y):
        count[0] += 1
        if count[0] == 2:
            signal.raise_signal(signal.SIGINT)
        return x, y

    who = trainer()
    try:
        fit(who, 2, Data(who.model, interrupt))
    except KeyboardInterrupt:
        return [who.epoch, who.position, len(who.history.loss)]
    return "went on"


def main(task, folder, path):
    tasks = {"check": training, "refused": lambda _: unlike(COMM, refusals()), "stopped": stopped}
    write(COMM, tasks[task](Path(folder)), path)


if __name__ == "__main__":
    main(*sys.argv[1:])
