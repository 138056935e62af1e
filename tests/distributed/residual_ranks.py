"""What `test_residual.py` has every rank do: mpiexec -n RANKS python -m mpi4py residual_ranks.py TASK FOLDER."""

import json
import signal
import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

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
    settings = {"batch_size": 8, "rng": 9, "progress": False} | settings
    return who.fit(dataset or Data(who.model), epochs, **settings)


def bits(arrays):
    return b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)


def state(who):
    averages = [array for group in who.optimizer.state.values() for array in group.values()]
    place = np.array([who.optimizer.steps, who.epoch, who.position])
    return bits([*who.model.params.values(), *averages, who.history.loss, place])


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


def failing(*arguments):
    raise OSError("the disk is gone")


def refusals():
    """Yield a name and a call that must fail on all ranks; where one is at fault, it is the last."""
    net, x = model(), Data(model()).x
    large, other = model(), model()
    large.params["closing.weight"][:] = 1e308
    other.params["closing.bias"][1] += LAST
    activations, grad = net.forward(x, "numpy", COMM), np.ones((19, 3)) if LAST else None

    def forward(x=x, net=net):
        return lambda: net.forward(x, "numpy", COMM)

    def backward(grad=grad, activations=activations, method="auto", net=net):
        return lambda: net.backward(activations, grad, method, "numpy", None, COMM)

    yield "x nan", forward(np.where(LAST, np.nan, x))
    yield "x", forward(x + LAST)
    yield "parameters", forward(net=other)
    yield "solver", forward(net=model(solver=TWO_CYCLES | {"cycles": 2 + LAST}))
    yield "logits", forward(x * 30, net=large)
    yield "ranks", forward(net=model(depth=SIZE, solver={"cycles": 1, "coarsening": 2, "levels": 2}))
    yield "no communicator", lambda: net.forward(x, "numpy", "world")
    yield "no gradient", backward(None)
    yield "two gradients", backward(np.ones((19, 3)))
    yield "gradient nan", backward(np.full((19, 3), np.nan) if LAST else None)
    yield "gradient", backward(np.full((19, 3), 1e308) if LAST else None, model(h=1e3).forward(x, "numpy", COMM))
    yield "activations", backward(activations=None if LAST else activations)
    yield "all layers", backward(activations=net.forward(x, "numpy") if LAST else activations)
    yield "scan", backward(method="blelloch")
    yield "methods", backward(method="ordinary" if LAST else "auto")
    yield "sequence_ranks", lambda: trainer(sequence_ranks=1)
    yield "trainer's method", lambda: trainer(method="linear")
    yield "trainer's forward", lambda: trainer(forward="chunked")
    yield "optimizer", lambda: trainer(optimizer=bp.SGD(0.1 + LAST))
    who = trainer()
    before = state(who)
    changes = {
        "disk": failing,
        "label": lambda x, y: (x, y + 3),
        "labels": lambda x, y: (x, (y + 1) % 3),
        "fewer": lambda x, y: (x[:1], y[:1]),
    }
    for name, change in changes.items():
        yield name, lambda change=change: fit(who, dataset=Data(who.model, change))
    yield "evaluate", lambda: who.evaluate(Data(who.model, failing), 8)
    yield "unchanged", lambda: None if state(who) == before else failing()


def refused(folder):
    said = {}
    for name, call in refusals():
        try:
            call()
            said[name] = "nothing"
        except Exception as error:
            said[name] = f"{type(error).__name__}: {error}"
    return said


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


def main(task, folder):
    every = COMM.gather({"training": training, "refused": refused, "stopped": stopped}[task](Path(folder)))
    if RANK == 0:
        Path(folder, f"{task} {SIZE}.json").write_text(json.dumps(every))


if __name__ == "__main__":
    main(*sys.argv[1:])
