"""What is timed side by side: the comparisons that docs/speed.md quotes, grids of sizes, and what "auto" gives away."""

from functools import partial

import numpy as np
import on_gpu
import peers
from turns import quartiles, take_turns

import bppsa_nb as bp
from bppsa_nb.papers.bppsa import iterations
from bppsa_nb.training.datasets.audio import FEATURES, LABELS
from bppsa_nb.training.loss import cross_entropy

STORED = {"cpu": 1e9, "cuda": 4e9}  # bytes of Jacobians beyond which the per-level scan is left out
STATES = 2**24  # numbers in all states of a chain beyond which "auto" is not judged
WIDE = 4096  # numbers in a step, B x H, below which PyTorch's second thread costs time instead of saving it
SIZES = (20, 32, 64)  # H
BACKWARD = "backward", "backward_low", "backward_high"
BATCHES = (16, 32, 64)  # of the GRU, in Figure 9


def problem(cell, T, B, H, inputs, rng, layers=1):
    """Make a model and a batch of the paper's kind: bitstreams for the RNN, numbers like features for the GRU."""
    if cell == "RNN":
        return bp.RNN(1, H, 10, layers, rng=rng), *bp.Bitstream(T, B, rng=rng).batch(np.arange(B))
    x = rng.standard_normal((T, B, inputs), np.float32)
    return bp.GRU(inputs, H, len(LABELS), layers, rng=rng), x, rng.integers(len(LABELS), size=B)


def dense_chain(T, B, H, rng):
    """Make transposed Jacobians that keep a gradient's length, a few hundred different ones, and a gradient."""
    orthogonal = np.linalg.qr(rng.standard_normal((min(T * B, 256), H, H), np.float32))[0]
    jacobians_T = orthogonal[rng.integers(len(orthogonal), size=(T, B))]
    return jacobians_T, rng.standard_normal((B, H), np.float32)


def dense(T, B, H, backend, present, rng):
    """Gradients of a dense chain: our scans, and JAX's."""
    jacobians_T, grad_output = dense_chain(T, B, H, rng)

    def ours(method):
        if backend == "cuda":  # JAX's arrays are on the device, too
            return [on_gpu.gradients(jacobians_T, grad_output, method)[0]]
        return [partial(bp.backprop, jacobians_T, grad_output, method=method, backend=backend)]

    competitors = {f"ours: {method}, {backend}": ours(method) for method in ("blelloch", "linear", "chunked")}
    return competitors | (peers.jax_scans(jacobians_T, grad_output) if "jax" in present else {})


def training(cell, features=None):
    """Return what prepares training steps: ours by `Trainer.step`, and PyTorch's."""

    def prepare(T, B, H, backend, present, rng):
        model, x, y = problem(cell, T, B, H, features and FEATURES[features].size, rng)

        def ours(method, where):
            if where == "cuda":  # PyTorch's inputs are on the device, too
                return list(on_gpu.training_step(model, x, y, method, graph=True))
            return trained(method, where)

        def trained(method, where):
            trainer = bp.Trainer(model, bp.Adam(lr=1e-5), method=method, backend=where)
            return [lambda: trainer.step(x, y)]

        chosen = [(method, backend) for method in ("auto", "linear", "chunked", "blelloch")]
        chosen += [("auto", "cpu")] if backend == "cuda" else [("linear", "numpy"), ("chunked", "numpy")]
        competitors = {f"ours: {method}, {where}": ours(method, where) for method, where in chosen}
        if backend == "cuda":
            competitors["ours: auto, cuda, inputs from the host"] = trained("auto", "cuda")
        return competitors | others(model, x, y, backend, present)

    return prepare


def others(model, x, y, backend, present):
    """Return the peers' training steps, of those that are installed."""
    torch = "cudnn" if backend == "cuda" else "torch"  # PyTorch may be one for CPUs
    competitors = peers.torch_steps(model, x, y, backend) if torch in present else {}
    return competitors | (peers.jax_steps(model, x, y) if "jax" in present else {})


def long_sequences(T, B, H, backend, present, rng):
    """Training steps of the RNN on long sequences: forward and backward in a loop each, or in chunks."""
    model, x, y = problem("RNN", T, B, H, 1, rng)

    def ours(where, forward, method):
        if where == "cuda":
            return list(on_gpu.training_step(model, x, y, method, graph=True, forward=forward))
        trainer = bp.Trainer(model, bp.Adam(lr=1e-5), method=method, backend=where, forward=forward)
        return [lambda: trainer.step(x, y)]

    ways = {"auto": ("auto", "auto"), "linear": ("linear", "linear")}
    ways |= {"linear forward, chunked": ("linear", "chunked"), "chunked, both ways": ("chunked", "chunked")}
    competitors = {
        f"ours: {name}, {where}": ours(where, *way)
        for where in ([backend] if backend == "cuda" else [backend, "numpy"])
        for name, way in ways.items()
    }
    return competitors | others(model, x, y, backend, present)


COMPARISONS = {  # name: what competes, T, B, H
    "gradients of a dense chain": (dense, 1000, 16, 20),
    "RNN training step": (training("RNN"), 1000, 16, 20),
    "GRU training step": (training("GRU", "S"), FEATURES["S"].frames, 16, 20),
    "GRU training step, set L": (training("GRU", "L"), FEATURES["L"].frames, 16, 20),
    "RNN training step, a long sample": (long_sequences, 30000, 1, 20),
    "RNN training step, 16 long samples": (long_sequences, 30000, 16, 20),
}
PARTS = {
    "chain": ["gradients of a dense chain"],
    "rnn": ["RNN training step", "RNN training step, a long sample", "RNN training step, 16 long samples"],
    "gru": ["GRU training step", "GRU training step, set L"],
}


def compare(names, backend, present, seconds, say):
    """Run comparisons. Return a row for each competitor; `ratio` is its median over that of the comparison's first."""
    rows = []
    for comparison in names:
        prepare, T, B, H = COMPARISONS[comparison]
        rounds = (3, 501 if backend == "cuda" else 51)  # steps of a GPU are short
        timed = take_turns(prepare(T, B, H, backend, present, np.random.default_rng(0)), seconds, rounds)
        ours = np.median(next(iter(timed.values())).sum(axis=1))
        say(f"{comparison}: T={T}, B={B}, H={H}, float32")
        for name, rounds in timed.items():
            whole = quartiles("seconds", rounds.sum(axis=1))
            ratio = whole["seconds"] / ours
            low, median, high = (1e3 * whole[key] for key in ("seconds_low", "seconds", "seconds_high"))
            say(f"  {name:<44} {median:8.2f} ms  [{low:.2f}, {high:.2f}]  {ratio:6.2f}x")
            rows.append({"comparison": comparison, "name": name, "T": T, "B": B, "H": H} | whole | {"ratio": ratio})
    return rows


WHOLE = [  # cell, T, B, H, I: from small layers to large ones
    ("RNN", 1000, 16, 20, 1),
    ("GRU", 259, 16, 20, 38),
    ("GRU", 1034, 16, 20, 12),
    ("RNN", 1000, 64, 64, 1),
    ("GRU", 259, 64, 128, 38),
    ("RNN", 200, 64, 256, 64),
    ("GRU", 100, 64, 512, 256),
    ("LSTM", 259, 16, 20, 38),
    ("LSTM", 100, 16, 64, 32),
    ("LSTM", 100, 32, 128, 64),
    ("LSTM", 100, 64, 256, 256),
]
OVER = {"H": (8, 16, 32, 64, 128, 256, 512), "B": (1, 4, 16, 64, 256)}  # with T = 100, and I = H


def whole_points(scale):
    """List the sizes whose whole steps are timed: those of `WHOLE`, and both cells over H and B; the last is which."""
    sizes, batches = (part[:: 3 if scale == "quick" else 1] for part in OVER.values())
    named = [(*point, "named") for point in (WHOLE[:2] if scale == "quick" else WHOLE)]
    return named + [(cell, 100, B, H, H, "grid") for cell in ("RNN", "GRU") for H in sizes for B in batches]


def whole_steps(points, present, seconds, say):
    """Time whole training steps of ours and of the peers on a CPU. Return a row for each point and competitor."""
    rows = []
    for cell, T, B, H, inputs, part in points:
        rng = np.random.default_rng(0)
        model = getattr(bp, cell)(inputs, H, 10, rng=rng)
        x, y = rng.standard_normal((T, B, inputs), np.float32), rng.integers(10, size=B)
        trainer = bp.Trainer(model, bp.Adam(lr=1e-5), backend="cpu")
        competitors = {"ours": [partial(trainer.step, x, y)]} | others(model, x, y, "cpu", present)
        timed = take_turns(competitors, seconds * (3 if part == "named" else 1), (3, 101))
        for name, rounds in timed.items():
            row = {"part": part, "cell": cell, "T": T, "B": B, "H": H, "I": inputs, "name": name, "rounds": len(rounds)}
            rows.append(row | quartiles("seconds", rounds.sum(axis=1)))
        said = ", ".join(f"{name} {1e3 * np.median(rounds.sum(axis=1)):.3g}" for name, rounds in timed.items())
        say(f"  {cell} T={T} B={B} H={H} I={inputs}: {said} ms")
    return rows


def grid_points(scale):
    """List the sizes of Figure 8 (the RNN over T, and over B) and Figure 9 (the GRU), for every H: cell, T, B, H, I."""
    quick = scale == "quick"
    lengths, length = iterations.RNN_LENGTHS[scale], 100 if quick else iterations.RNN_LENGTH
    batches = iterations.RNN_BATCHES[:: 2 if quick else 1]
    sizes = [(T, iterations.RNN_BATCH) for T in lengths] + [(length, B) for B in batches]
    sets = [(each.frames, B, each.size) for each in FEATURES.values() for B in (BATCHES[:1] if quick else BATCHES)]
    return [
        point
        for H in (SIZES[::2] if quick else SIZES)
        for point in [
            *(("RNN", T, B, H, 1) for T, B in dict.fromkeys(sizes)),
            *(("GRU", T, B, H, inputs) for T, B, inputs in sets),
        ]
    ]


def grid(points, backend, present, seconds, say):
    """Time training steps over sizes. Return a row for each point and competitor: its backward pass, its whole step."""
    rows = []
    for cell, T, B, H, inputs in points:
        model, x, y = problem(cell, T, B, H, inputs, np.random.default_rng(0))
        fits = T * B * H * H * 4 <= STORED[backend]
        methods = ("linear", "chunked", "blelloch") if fits else ("linear", "chunked")
        competitors = {f"ours: {method}": stages(model, x, y, method, backend) for method in methods}
        if ("cudnn" if backend == "cuda" else "torch") in present:
            steps = peers.torch_steps(model, x, y, backend)
            best = ("flush_denormal", "cuDNN", "CUDA graph", *(("threads",) if B * H >= WIDE else ()))
            competitors |= {name: step for name, step in steps.items() if name.endswith(best)}
            if backend == "cuda":
                competitors[f"torch.nn.{cell}, cuDNN, graphs"] = peers.torch_graph(model, x, y, whole=False)
        said = []
        for name, rounds in take_turns(competitors, seconds, (2, 201 if backend == "cuda" else 21)).items():
            row = {"cell": cell, "T": T, "B": B, "H": H, "I": inputs, "name": name, "rounds": len(rounds)}
            whole = rounds[:, 0] if rounds.shape[1] == 2 else rounds.sum(axis=1)
            parts = rounds.shape[1] > 1  # what is recorded as a whole has none
            backward = quartiles("backward", rounds[:, 1]) if parts else dict.fromkeys(BACKWARD)
            row |= backward | quartiles("step", whole)
            rows.append(row)
            said.append(f"{name.removeprefix('ours: ')} {1e3 * row['step']:.3g}")
        say(f"  {cell} T={T} B={B} H={H}: " + ", ".join(said) + " ms")
    return rows


def stages(model, x, y, method, backend):
    """Return the stages of our step in the grid: forward, backward, update; on a GPU the whole step, then backward."""
    if backend != "cuda":
        return peers.our_step(model, x, y, method, backend)
    issue, wait = on_gpu.training_step(model, x, y, method, graph=True)
    _, grad_logits = cross_entropy(model.forward(x, backend="cuda").logits, y)
    backward, _ = on_gpu.backward(model, x, grad_logits @ model.params["fc.weight"], method)

    def step():
        issue()
        wait()

    return [step, backward]


def regret(points, backends, seconds, say):
    """Time every method over sizes T, B, H, for dense and structured chains, beside the one that "auto" takes.

    Returns
    -------
    list of dict
        A row for each method at each point; `taken` says which is "auto"'s, and `over_best` how long the method takes
        over the best one.
    """
    rows = []
    for T, B, H in points:
        rng = np.random.default_rng(0)
        fits = T * B * H * H * 4 <= STORED["cpu"] / 4
        chains = {"structured": (iterations.rnn_chain(T, B, H, rng), 1)}
        if fits:
            chains["dense"] = (dense_chain(T, B, H, rng)[0], 0)
        grad_output = rng.standard_normal((B, H), np.float32)
        for backend in backends:
            for kind, (chain, weights) in chains.items():
                taken = bp.explain(T, B, H, backend=backend, weights=weights).method
                methods = ("linear", "chunked", "blelloch") if fits else ("linear", "chunked")

                calls = {
                    method: [partial(bp.backprop, chain, grad_output, method=method, backend=backend)]
                    for method in methods
                }
                timed = take_turns(calls, seconds, rounds=(5, 51))
                medians = {method: np.median(turns) for method, turns in timed.items()}
                best = min(medians.values())
                for method, median in medians.items():
                    row = {"backend": backend, "chain": kind, "T": T, "B": B, "H": H, "method": method}
                    rows.append(row | {"seconds": median, "taken": method == taken, "over_best": median / best})
    good = [row["over_best"] <= 1.2 for row in rows if row["taken"]]
    say(f'"auto" within 20 % of the best method at {sum(good)} of {len(good)} points, {np.mean(good):.1%}')
    return rows


def regret_points(scale):
    """List T, B, H of the grid on which "auto" is judged."""
    lengths = (10, 30, 100, 300, 1000, 3000, 10000, 30000) if scale == "paper" else (10, 100, 1000)
    batches, sizes = ((2, 16, 64, 256), SIZES) if scale == "paper" else ((2, 16, 256), (20, 64))
    return [(T, B, H) for H in sizes for T in lengths for B in batches if T * B * H <= STATES]
