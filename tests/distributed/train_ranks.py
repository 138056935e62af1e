"""What `test_training.py` has every rank do: mpiexec -n RANKS python -m mpi4py train_ranks.py TASK FOLDER."""

import itertools
import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

import bppsa_nb as bp
from bppsa_nb import sparse
from bppsa_nb.cells import chunked, stacked
from bppsa_nb.distributed import partition
from bppsa_nb.training import checkpoints

COMM = MPI.COMM_WORLD
RANK, SIZE, LAST = COMM.rank, COMM.size, COMM.rank == COMM.size - 1
TOLERANCE = {"float64": 1e-12, "float32": 1e-5}
B, INPUTS, HIDDEN, CLASSES = 2, 3, 4, 3


def model(cell="rnn", layers=1, dtype="float64", inputs=INPUTS):
    return {"rnn": bp.RNN, "gru": bp.GRU}[cell](inputs, HIDDEN, CLASSES, layers, rng=1, dtype=np.dtype(dtype))


def far(found, expected, dtype):
    size = max(1e-3, np.abs(expected).max(initial=0))
    alike = found.shape == expected.shape and found.dtype == expected.dtype == np.dtype(dtype)
    return not alike or np.abs(found - expected).max(initial=0) > TOLERANCE[dtype] * size


def models():
    """Return where a forward or a backward pass differs from that of one process."""
    kinds = itertools.product(("rnn", "gru"), (1, 2, 3))
    hows = itertools.cycle(itertools.product(("numpy", "cpu"), ("linear", "chunked", "auto")))
    rest = itertools.cycle([(SIZE + 4, "float64"), (1, "float64"), (9, "float32"), (0, "float64"), (300, "float64")])
    forwards = itertools.cycle([{"method": "chunked"}, {}, {"method": "chunked", "tol": 0}, {"method": "linear"}])
    wrong = []
    for (cell, layers), turn in itertools.product(kinds, range(2 if SIZE < 7 else 1)):
        (backend, method), (steps, dtype), forward = next(hows), next(rest), next(forwards)
        case = f"{cell} {layers} T={steps} {dtype} {backend} {method} {forward}"
        net, rng = model(cell, layers, dtype), np.random.default_rng(steps)
        x, grad = rng.standard_normal((steps, B, INPUTS)).astype(dtype), rng.standard_normal((B, CLASSES)).astype(dtype)
        h0 = rng.uniform(-1, 1, (layers, B, HIDDEN)).astype(dtype) if turn else None
        whole = net.forward(x, h0, backend, method="linear")
        expected = net.backward(whole, grad, "linear", backend)
        part = partition(steps, SIZE)[RANK]
        here = net.forward(x[part], h0 if RANK == 0 else None, backend, comm=COMM, **forward)
        found = net.backward(here, grad if LAST else None, method, backend, comm=COMM)
        wrong += [f"{case}: {name}" for name in expected if far(found[name], expected[name], dtype)]
        points = slice(part.start, part.stop + 1)
        pairs = [("hidden", here.hidden, whole.hidden[:, points])]
        if cell == "gru":
            pairs.append(("gates", here.gates, whole.gates[:, :, part]))
        if LAST:
            pairs.append(("logits", here.logits, whole.logits))
        wrong += [f"{case}: {name}" for name, a, b in pairs if far(a, b, dtype)]
        wrong += [f"{case}: {word}" for word in of_solved(here, steps, forward)]
        if (here.logits is None) == LAST or list(found) != list(net.params):
            wrong.append(f"{case}: whose logits, or names")
        if len(set(COMM.allgather(bits(found)))) > 1:
            wrong.append(f"{case}: bits between ranks")
    return wrong


def of_solved(here, steps, forward):
    """Return what is wrong with how ranks say that they solved a forward pass."""
    if len(set(COMM.allgather(repr(here.solved)))) > 1:
        yield "solved differently"
    if (here.solved is None) == (forward.get("method") == "chunked" and SIZE > 1) and forward:
        yield f"solved {here.solved}"
    for one in here.solved or ():
        passes = one.passes == len(one.jumps) <= SIZE + 1
        if one.steps > SIZE * one.length or one.unconverged[-1] or not passes:
            yield repr(one)
        if SIZE == 2 and steps == 300 and one.steps > one.length + 100:
            yield f"{one} went on after it met"


def bits(arrays):
    return b"".join(np.ascontiguousarray(array).tobytes() for array in arrays.values())


def trainer(comm=None, places=None, cell="rnn", dtype="float64", optimizer=None, **how):
    optimizer = optimizer or bp.Adam(lr=0.01)
    how = {"backend": "numpy", "comm": comm, "sequence_ranks": places} | how
    return bp.Trainer(model(cell, 2, dtype, inputs=1), optimizer, **how)


def data(dtype="float64", samples=17, length=9):
    return bp.Bitstream(length, samples, CLASSES, rng=1, dtype=np.dtype(dtype))  # batches of 8, 8 and 1


def fit(who, epochs=1, dataset=None, **settings):
    return who.fit(dataset or data(), epochs, **{"batch_size": 8, "rng": 9, "progress": False} | settings)


def state(who):
    """Everything that a trainer holds, as bytes; and in numbers what must be about the same as in one process."""
    averages = {f"{a}/{n}": v for a, group in who.optimizer.state.items() for n, v in group.items()}
    history, place = who.history, np.array([who.optimizer.steps, who.epoch, who.position])
    return bits(who.model.params | averages | {"l": history.loss, "s": history.seconds, "p": place})


class Whole:
    """A data set that knows nothing of parts."""

    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return len(self.inner)

    def batch(self, indices):
        return self.inner.batch(indices)


def training():
    """Return where training on ranks differs from that of one process, for every number of replicas."""
    wrong = []
    hows = [
        ({"cell": "rnn", "dtype": "float64", "method": "chunked"}, 1e-12),
        ({"cell": "gru", "dtype": "float32", "backend": "cpu"}, 1e-6),
        ({"cell": "gru", "dtype": "float64", "method": "linear"}, 1e-12),
    ]
    # A single rank does all of it, so that what others do is compiled before they wait for each other.
    for number, places in enumerate([n for n in (1, 2, 3, 4, 7) if SIZE % n == 0] if SIZE > 1 else [1, 1, 1]):
        how, tolerance = hows[number]
        dtype, alone = how["dtype"], trainer(**how | ({"method": "auto"}))
        many = trainer(COMM, places if places < SIZE else None, **how)
        dataset = data(dtype)
        fit(alone, 2, dataset)
        history = fit(many, 2, Whole(dataset) if places == 1 else dataset, rng=9 if RANK == 0 else None)
        if np.abs(history.loss / alone.history.loss - 1).max() > tolerance or (history.seconds <= 0).any():
            wrong.append(f"{places}: history")
        if any(far(many.model.params[name], param, dtype) for name, param in alone.model.params.items()):
            wrong.append(f"{places}: parameters")
        if (many.epoch, many.position, len(history.loss)) != (2, 0, 6):
            wrong.append(f"{places}: place")
        if not np.allclose(many.evaluate(dataset, 6), alone.evaluate(dataset, 6), rtol=tolerance, atol=0):
            wrong.append(f"{places}: evaluate")
        share = np.array_split(np.arange(17), SIZE // places)[RANK // places]
        x, _ = dataset.batch(share, part=(RANK % places, places))
        if (many.predict(x) != alone.predict(dataset.batch(share)[0])).any():
            wrong.append(f"{places}: predict")
        if len(set(COMM.allgather(state(many)))) > 1:
            wrong.append(f"{places}: bits between ranks")
    return wrong


class Changed:
    """The data, changed on the last rank."""

    def __init__(self, change, length=17):
        self.change, self.length, self.inner = change, length, data()

    def __len__(self):
        return self.length if LAST else 17

    def batch(self, indices, part=(0, 1)):
        x, y = self.inner.batch(indices, part)
        return self.change(x.copy(), y.copy()) if LAST else (x, y)


def failing(*arguments):
    raise OSError("the disk is gone")


run_chunks = chunked.Chunks.run_chunks


def failing_repair(chunks, indices, tol):
    return run_chunks(chunks, indices, tol) if tol is None else failing()


def patched(module, name, call, failing=failing):
    """Call while a function of a module fails on the last rank."""
    kept = getattr(module, name)
    if LAST:
        setattr(module, name, failing)
    try:
        return call()
    finally:
        setattr(module, name, kept)


def refusals(folder):
    """Yield a name and a call that must fail on all ranks; where one is at fault, it is the last, or rank 0."""
    net, part = model(layers=2), slice(3 * RANK, 3 * RANK + 3)
    x, grad = np.random.default_rng(0).standard_normal((3 * SIZE, B, INPUTS))[part], np.ones((B, CLASSES))

    def forward(x=x, h0=None, backend="numpy", net=net, comm=COMM, **how):
        return lambda: net.forward(x, h0, backend, comm, **how)

    saved, odd = forward()(), x.copy()
    odd[1, 1, 2] = np.nan
    other = model(layers=2)
    other.params["fc.bias"][1] += LAST
    large, wide = model(), model(inputs=INPUTS + LAST)
    large.params["fc.weight"][:] = 1e308
    large.params["bias_ih_l0"][:] = 30
    yield "dtype", forward(x.astype(np.float32) if LAST else x)
    yield "shape", forward(x[..., :2] if LAST else x)
    yield "nan", forward(odd if LAST else x)
    yield "batch", forward(x[:, :1] if LAST else x)
    yield "parameters", forward(net=other)
    yield "model", forward(np.ones((1, 1, INPUTS + LAST)), net=wide)
    yield "h0", forward(h0=np.zeros((2, B, HIDDEN)) if LAST else None)
    yield "backend", forward(backend="tpu" if LAST else "numpy")
    yield "logits", forward(net=large)
    yield "no communicator", forward(comm="world")
    yield "in a layer", lambda: patched(stacked, "run_layer", forward(method="linear"))
    yield "in a chunk", lambda: patched(stacked, "run_layer", forward(method="chunked"))
    yield "in a gap", lambda: patched(chunked, "distance", forward(method="chunked"))
    yield "in a repair", lambda: patched(chunked.Chunks, "run_chunks", forward(method="chunked"), failing_repair)
    yield "forward", forward(method="linear" if LAST else "chunked")
    yield "tol", forward(method="chunked", tol=0 if LAST else None)
    yield "newton", forward(method="newton")
    yield "chunks' length", forward(method="chunked", length=3)

    def backward(grad=grad if LAST else None, method="auto", levels=None, saved=saved, net=net):
        return lambda: net.backward(saved, grad, method, "numpy", levels, COMM)

    yield "no gradient", backward(None)
    yield "two gradients", backward(grad)
    yield "gradient nan", backward(grad * np.nan if LAST else None)
    yield "activations", backward(saved=None if LAST else saved)
    yield "method", backward(method="blelloch" if LAST else "linear")
    yield "methods", backward(method="linear" if LAST else "chunked")
    yield "levels", backward(levels=2 if LAST else None)
    yield "parameters then", backward(net=other)
    yield "in a chain", lambda: patched(sys.modules["bppsa_nb.cells.rnn"], "chain", backward())
    yield "in gates", lambda: patched(sys.modules["bppsa_nb.cells.rnn"], "gate_gradients", backward())

    network = sparse.Network((1, 4, 4), [sparse.Flatten("flatten"), sparse.Linear("fc", 16, 2)])
    yield "network", lambda: bp.Trainer(network, bp.SGD(0.1), comm=COMM)
    yield "places", lambda: trainer(COMM, SIZE + 1)
    yield "place", lambda: trainer(COMM, 1.0 if LAST else 1)
    yield "other places", lambda: trainer(COMM, 1 if LAST else SIZE)
    yield "how", lambda: trainer(COMM, method="blelloch")
    yield "how forward", lambda: trainer(COMM, forward="newton")
    yield "ways forward", lambda: trainer(COMM, forward="linear" if LAST else "auto")
    yield "optimizer", lambda: trainer(COMM, optimizer=bp.SGD(0.1 + LAST))
    yield "optimizer class", lambda: trainer(COMM, optimizer=bp.SGD if LAST else bp.SGD(0.1))
    who = trainer(COMM, 2)
    before = state(who)
    for name, change in {
        "disk": failing,
        "label": lambda x, y: (x, y + 3),
        "labels": lambda x, y: (x, (y + 1) % 3),
        "samples first": lambda x, y: (x[:1].repeat(len(y) - 1, axis=0).swapaxes(0, 1), y),
        "no sequence": lambda x, y: (x[0], y),
        "x nan": lambda x, y: (x * np.nan, y),
        "fewer": lambda x, y: (x[:, :1], y[:1]),
    }.items():
        yield name, lambda change=change: fit(who, dataset=Changed(change))
    yield "evaluate", lambda: who.evaluate(Changed(failing), 8)
    yield "no part", lambda: fit(trainer(COMM), dataset=Whole(data()))
    yield "length", lambda: fit(who, dataset=Changed(None, 18))
    yield "batch size", lambda: fit(who, batch_size=8 + LAST)
    yield "epochs", lambda: fit(who, 1 + LAST)
    yield "save every", lambda: fit(who, save_to=folder / "x.npz", save_every=None if LAST else 3)
    yield "replica's parameters", lambda: fit(shifted())
    yield "no samples", lambda: who.step(np.zeros((1, 0, 1)), np.zeros(0, int))
    yield "overflow", lambda: exploding().step(np.zeros((40, 1, 1)), [0])
    yield "update", lambda: unmoved(folder)
    yield "a replica's logits", lambda: brimming().step(np.full((1, 1, 1), RANK >= SIZE - 2, float), [0])
    yield "folder", lambda: who.save(folder)
    who.save(folder / "whole.npz")
    trainer(optimizer=bp.Adam(0.01)).save(folder / f"{RANK}.npz")
    yield "no file", lambda: who.load(folder / ("nowhere.npz" if LAST else "whole.npz"))
    fit(alone := trainer(), 1)
    alone.save(folder / f"{RANK}.npz")
    yield "another file", lambda: who.load(folder / (f"{RANK}.npz" if LAST else "whole.npz"))
    yield "unchanged", lambda: None if state(who) == before else failing()


def shifted():
    """Return a trainer whose last replica has other parameters than the others."""
    who = trainer(COMM, 2)
    if RANK >= SIZE // 2:
        who.model.params["fc.bias"][0] += 1
    return who


def unmoved(folder):
    """Have an update overflow, which changes nothing; then save an infinite parameter, which writes nothing."""
    who, x = trainer(COMM, optimizer=bp.Adam(1e308)), np.ones((1, 2, 1))
    before = state(who)
    try:
        who.step(x, [0, 1])
    except FloatingPointError as error:
        assert "leaves the range of float64 in step 1" in str(error), error
    assert state(who) == before
    who.model.params["fc.bias"][:] = np.inf
    try:
        who.save(folder / "infinite.npz")
    finally:
        assert not (folder / "infinite.npz").exists()


def brimming():
    """Return a trainer whose logits overflow for inputs of one, and are zero for inputs of zero."""
    who = bp.Trainer(model(inputs=1), bp.SGD(0.1), backend="numpy", comm=COMM, sequence_ranks=2)
    for name, param in who.model.params.items():
        param[:] = {"weight_ih_l0": 30, "fc.weight": 1e308}.get(name, 0)
    return who


def exploding():
    who = bp.Trainer(model(inputs=1), bp.SGD(0.1), backend="numpy", comm=COMM)
    for name, param in who.model.params.items():
        param[:] = 1e10 * np.eye(HIDDEN) if name == "weight_hh_l0" else 0
        if name == "fc.weight":
            param[0] = 1
    return who


def refused(folder):
    """Return what each of the wrong calls raises here."""
    said = {}
    for name, call in refusals(folder):
        try:
            call()
            said[name] = "nothing"
        except Exception as error:
            said[name] = f"{type(error).__name__}: {error}"
    return said


class Stopping:
    """The data, until Ctrl-C arrives on one rank in some iteration."""

    def __init__(self, iteration, rank):
        self.left, self.rank, self.inner = iteration, rank, data()

    def __len__(self):
        return len(self.inner)

    def batch(self, indices, part=(0, 1)):
        self.left -= 1
        if self.left == 0 and self.rank == RANK:
            os.kill(os.getpid(), signal.SIGINT)
        return self.inner.batch(indices, part)


def stopped(call):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore Ctrl-C
    try:
        call()
        return False
    except KeyboardInterrupt:
        return True


def begin(folder):
    """Train until Ctrl-C arrives on the last rank, save, and tell where that was; then be stopped in other places."""
    who = trainer(COMM, SIZE // 2, cell="gru")
    halted = [stopped(lambda: fit(who, 2, Stopping(2, SIZE - 1)))]
    place = who.epoch, who.position, len(who.history.loss)
    written, write = [], checkpoints.write
    checkpoints.write = lambda path, *what: [written.append(path.name), write(path, *what)]
    who.save(folder / "begun.npz")
    checkpoints.write = write
    halted.append(stopped(lambda: who.evaluate(Stopping(1, 0), 4)))
    x, y = data().batch(range(1), part=(RANK % (SIZE // 2), SIZE // 2))
    halted.append(stopped(lambda: who.step(x, StepStop(y))))
    saves = []
    who = trainer(COMM)
    who.save = lambda path: saves.append((str(path.name), len(who.history.loss)))
    fit(who, 2, save_to=folder / "every.npz", save_every=4)
    fit(who, 3, save_to=folder / "every.npz", save_every=3)
    return {"halted": halted, "place": place, "written": written, "saves": saves}


class StepStop:
    """Labels on whose way Ctrl-C arrives on rank 0."""

    def __init__(self, labels):
        self.labels = labels

    def __array__(self, dtype=None, copy=None):
        if RANK == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return self.labels


def go_on(folder):
    """Go on from what 4 ranks, and from what one process wrote; write how far that came."""
    loss = {}
    for name in "begun.npz", "alone.npz":
        who = trainer(COMM, 1 if name == "alone.npz" else 2, cell="gru")
        who.load(folder / name)
        fit(who, 1)
        who.save(folder / f"later {name}")
        loss[name] = len(who.history.loss)
    return loss


def main(task, folder):
    folder = Path(folder)
    if task == "check":
        found = {"models": models(), "training": training()}
    else:
        found = {"refused": refused, "begin": begin, "go_on": go_on}[task](folder)
    every = COMM.gather(found)
    if RANK == 0:
        (folder / f"{task} {SIZE}.json").write_text(json.dumps(every))


if __name__ == "__main__":
    main(*sys.argv[1:])
