"""What `test_training.py` has every rank do: mpiexec -n RANKS python -m mpi4py train_ranks.py TASK FOLDER FILE."""

import itertools
import sys
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import trainers
from mpi4py import MPI
from refusing import bits, failing, patched, rows, state, unlike, write
from texts import beside

import bppsa_nb as bp
from bppsa_nb import sparse
from bppsa_nb.cells import chunked
from bppsa_nb.distributed import partition
from bppsa_nb.training import checkpoints

COMM = MPI.COMM_WORLD
RANK, SIZE, LAST = COMM.rank, COMM.size, COMM.rank == COMM.size - 1
TOLERANCE = {"float64": 1e-12, "float32": 1e-5}
B, INPUTS, HIDDEN, CLASSES = 2, 3, 4, 3


def model(cell="rnn", layers=1, dtype="float64", inputs=INPUTS):
    kind = {"rnn": bp.RNN, "gru": bp.GRU, "lstm": bp.LSTM}[cell]
    return kind(inputs, HIDDEN, CLASSES, layers, rng=1, dtype=np.dtype(dtype))


def far(found, expected, dtype):
    size = max(1e-3, np.abs(expected).max(initial=0))
    alike = found.shape == expected.shape and found.dtype == expected.dtype == np.dtype(dtype)
    return not alike or np.abs(found - expected).max(initial=0) > TOLERANCE[dtype] * size


def models():
    """Return where a forward or a backward pass differs from that of one process."""
    kinds = [*itertools.product(("rnn", "gru"), (1, 2, 3)), ("lstm", 1), ("lstm", 2)]
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
        h0 = (h0, -h0) if turn and cell == "lstm" else h0
        whole = net.forward(x, h0, backend, method="linear")
        expected = net.backward(whole, grad, "linear", backend)
        part = partition(steps, SIZE)[RANK]
        here = net.forward(x[part], h0 if RANK == 0 else None, backend, comm=COMM, **forward)
        found = net.backward(here, grad if LAST else None, method, backend, comm=COMM)
        wrong += [f"{case}: {name}" for name in expected if far(found[name], expected[name], dtype)]
        points = slice(part.start, part.stop + 1)
        pairs = [("states", here.states, whole.states[:, :, points])]
        if cell != "rnn":
            pairs.append(("gates", here.gates, whole.gates[:, :, part]))
        if LAST:
            pairs.append(("logits", here.logits, whole.logits))
        wrong += [f"{case}: {name}" for name, a, b in pairs if far(a, b, dtype)]
        wrong += [f"{case}: {word}" for word in of_solved(here, steps, forward)]
        if (here.logits is None) == LAST or list(found) != list(net.params):
            wrong.append(f"{case}: whose logits, or names")
        if len(set(COMM.allgather(bits(found.values())))) > 1:
            wrong.append(f"{case}: bits between ranks")
    return wrong


def of_solved(here, steps, forward):
    """Return what is wrong with how ranks say that they solved a forward pass."""
    if len(set(COMM.allgather(repr(here.solved)))) > 1:
        yield "solved differently"
    least = {None: len(here.states) + 2, "chunked": 2, "linear": SIZE + 1}[forward.get("method")]
    if (here.solved is None) == (SIZE >= least):
        yield f"solved {here.solved}"
    for one in here.solved or ():
        passes = one.passes == len(one.jumps) <= SIZE + 1
        if one.steps > SIZE * one.length or one.unconverged[-1] or not passes:
            yield repr(one)
        if SIZE == 2 and steps == 300 and one.steps > one.length + 100:
            yield f"{one} went on after it met"


def trainer(comm=None, places=None, cell="rnn", dtype="float64", optimizer=None, **how):
    optimizer = optimizer or bp.Adam(lr=0.01)
    how = {"backend": "numpy", "comm": comm, "sequence_ranks": places} | how
    return bp.Trainer(model(cell, 2, dtype, inputs=1), optimizer, **how)


def data(dtype="float64", samples=17, length=9):
    return bp.Bitstream(length, samples, CLASSES, rng=1, dtype=np.dtype(dtype))  # batches of 8, 8 and 1


def fit(who, epochs=1, dataset=None, **settings):
    return trainers.fit(who, epochs, dataset or data(), **{"batch_size": 8} | settings)


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
        given = trainers.Watched(inner=dataset) if places == 1 else dataset
        history = fit(many, 2, given, rng=9 if RANK == 0 else None)
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
        if len(set(COMM.allgather(state(many) + bits([history.seconds])))) > 1:
            wrong.append(f"{places}: bits between ranks")
    return wrong


class Changed(trainers.Watched):
    """The data, changed on the last rank."""

    def __init__(self, change, length=17):
        super().__init__(change=change, inner=data())
        self.length = length

    def __len__(self):
        return self.length if LAST else 17

    def batch(self, indices, part=(0, 1)):
        x, y = self.inner.batch(indices, part)
        return self.change(x.copy(), y.copy()) if LAST else (x, y)


def failing_repair(call):
    """Call while repairs, but not the first run of a chunk, fail on the last rank."""
    run_chunks = chunked.Chunks.run_chunks

    def fail(chunks, indices, tol):
        return run_chunks(chunks, indices, tol) if tol is None or not LAST else failing()

    with patch.object(chunked.Chunks, "run_chunks", fail):
        return call()


def refusals(folder):
    """Yield calls that must fail on all ranks; see `refusing.unlike`."""
    table = beside(__file__)
    yield from rows(COMM, table["of_models"], globals() | models_that_fail())
    names = trainers_that_fail(folder)
    yield from rows(COMM, table["of_trainers"], globals() | names)
    names["who"].save(folder / "whole.npz")
    alone = trainer()
    fit(alone, 1)
    alone.save(folder / f"{RANK}.npz")
    yield from rows(COMM, table["of_files"], globals() | names)


def models_that_fail():
    """Return what calls of models need by name."""
    net, part = model(layers=2), slice(3 * RANK, 3 * RANK + 3)
    x, grad = np.random.default_rng(0).standard_normal((3 * SIZE, B, INPUTS))[part], np.ones((B, CLASSES))

    def forward(x=x, h0=None, backend="numpy", net=net, comm=COMM, **how):
        return lambda: net.forward(x, h0, backend, comm, **how)

    def fault(owner, name, call):
        return partial(patched, owner, name, call, here=LAST)

    saved, odd = forward()(), x.copy()
    odd[1, 1, 2] = np.nan
    changed = model(layers=2)
    changed.params["fc.bias"][1] += LAST
    large = model()
    large.params["fc.weight"][:] = 1e308
    large.params["bias_ih_l0"][:] = 30

    def backward(grad=grad if LAST else None, method="auto", levels=None, saved=saved, net=net):
        return lambda: net.backward(saved, grad, method, "numpy", levels, COMM)

    return locals()


def trainers_that_fail(folder):
    """Return what calls of trainers need by name."""
    network = sparse.Network((1, 4, 4), [sparse.Flatten("flatten"), sparse.Linear("fc", 16, 2)])
    who, shifted = trainer(COMM, 2), trainer(COMM, 2)
    before = state(who)
    shifted.model.params["fc.bias"][0] += RANK >= SIZE // 2  # the last replica has other parameters than the others
    exploding = filled(weight_hh_l0=1e10 * np.eye(HIDDEN), fc__weight=np.eye(CLASSES, 1))
    large = filled(2, weight_ih_l0=30, fc__weight=1e308)

    def given(change):
        return lambda: fit(who, dataset=Changed(change))

    return locals()


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


def filled(places=None, **params):
    """Return a trainer with these parameters, where . is __, and zeros for all others."""
    who = bp.Trainer(model(inputs=1), bp.SGD(0.1), backend="numpy", comm=COMM, sequence_ranks=places)
    for name, param in who.model.params.items():
        param[:] = params.get(name.replace(".", "__"), 0)
    return who


def begin(folder):
    """Train two iterations, save, and tell where that was, and who wrote; then when a trainer saves by itself."""
    who = trainer(COMM, SIZE // 2, cell="gru")
    try:
        with patch.object(who, "save", side_effect=KeyboardInterrupt):
            fit(who, 2, save_to=folder / "begun.npz", save_every=2)
    except KeyboardInterrupt:
        place = who.epoch, who.position, len(who.history.loss)
    written, really = [], checkpoints.write
    with patch.object(checkpoints, "write", lambda path, *what: [written.append(path.name), really(path, *what)]):
        who.save(folder / "begun.npz")
    saves = []
    who = trainer(COMM)
    who.save = lambda path: saves.append((str(path.name), len(who.history.loss)))
    fit(who, 2, save_to=folder / "every.npz", save_every=4)
    fit(who, 3, save_to=folder / "every.npz", save_every=3)
    return {"place": place, "written": written, "saves": saves}


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


def main(task, folder, path):
    tasks = {"check": lambda _: models() + training(), "refused": lambda folder: unlike(COMM, refusals(folder))}
    write(COMM, (tasks | {"begin": begin, "go_on": go_on})[task](Path(folder)), path)


if __name__ == "__main__":
    main(*sys.argv[1:])
