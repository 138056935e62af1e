"""How fast is it: stages of `first_minutes.py` that time what there is."""

import functools
import time

import numpy as np
from parts import METHODS, TINY

import bppsa_nb as bp
from bppsa_nb.chains import counts, plan, prices
from bppsa_nb.papers import experiments
from bppsa_nb.papers.bppsa import epochs, figure_08, figure_09, iterations, machine_code
from bppsa_nb.training.datasets.audio import FEATURES


def problem(cell):
    """Return the paper's T, B, H and number of inputs for a cell."""
    return (1000, 16, 20, 1) if cell == "RNN" else (FEATURES["S"].frames, 16, 20, FEATURES["S"].size)


def quick(part):
    """Compare with PyTorch, briefly."""
    _compare(part, seconds=2.5, scale="quick", without="jax")  # which takes a minute to compile each loop


def speed(part):
    """Compare with the others, at length, as docs/speed.md quotes it."""
    _compare(part, seconds=20.0, scale="paper")


def _compare(part, seconds, scale, without=None):
    import comparisons
    import peers

    present = {name: version for name, version in peers.installed().items() if name != without}
    warm_up()
    worth = ("RNN training step", "RNN training step, a long sample", "GRU training step")
    for name in dict.fromkeys((*worth, *comparisons.COMPARISONS)):
        if TINY:
            prepare, *_ = comparisons.COMPARISONS[name]
            comparisons.COMPARISONS[name], seconds = (prepare, 4, 2, 2), 0.1
        part.do(name, compared, name, present, seconds, least=2 * seconds)
        part.record("compare", scale, **present)


def compared(name, present, seconds):
    """Compare once, and say how the best of ours stands to the others."""
    import comparisons

    rows = comparisons.compare([name], "cuda", present, seconds, functools.partial(print, flush=True))
    ours = min((row for row in rows if ", cuda" in row["name"]), key=lambda row: row["seconds"])
    said = [f"{ours['name']} {1e3 * ours['seconds']:.3g} ms"]
    for row in rows:
        if not row["name"].startswith("ours"):
            short = row["name"].removeprefix("torch.nn.").removeprefix("jax.lax.")
            said.append(f"{short} {row['seconds'] / ours['seconds']:.3g}x")
    return "; ".join(said), rows


def profile(part):
    """Time every kernel of a training step, and hold its time steps against the prediction."""
    for cell in ("RNN", "GRU"):
        for method in METHODS:
            part.do(f"{cell} {method}", profiled, cell, method)
            part.record("kernel_times", "paper")


def profiled(cell, method):
    """Time the kernels of a step by one method."""
    import on_gpu
    from comparisons import problem as make

    if TINY:
        return ("kernels are not timed on the CPU",)
    T, B, H, inputs = problem(cell)
    model, x, y = make(cell, T, B, H, inputs, np.random.default_rng(0))
    forward = "linear" if method == "linear" else "auto"
    issue, wait = on_gpu.training_step(model, x, y, method, graph=False, forward=forward)
    issue()
    wait()
    rows, said, expected = [], [], predicted(cell, method)
    for kernel, (launches, micros) in launches_of(issue, wait).items():
        row = {"cell": cell, "T": T, "B": B, "H": H, "method": method, "kernel": kernel}
        rows.append(row | {"launches": launches, "microseconds": micros, "predicted": None})
        if kernel in expected:
            rows[-1]["predicted"] = 1e6 * launches * expected[kernel]
            said.append(f"{kernel} {micros:.1f} us, predicted {rows[-1]['predicted']:.1f}")
    slowest = sorted(rows, key=lambda row: -row["microseconds"])[: max(4 - len(said), 1)]
    said += [f"{row['kernel']} {row['microseconds']:.1f} us" for row in slowest if row["predicted"] is None]
    return "; ".join(said), rows


def predicted(cell, method):
    """Predict the seconds of a launch of those kernels whose steps are known, by name."""
    (T, B, H, _), weights = problem(cell), 1 if cell == "RNN" else 3
    step = lambda name: machine_code.read(name).seconds  # noqa: E731
    if method == "linear":
        return {"run_forward": T * step(f"{cell} forward"), "sweep_chunks": T * step(f"{cell} sweep")}
    if method == "blelloch":
        return {}
    length = plan.chunk_length(T, B, H, np.float32, "cuda", weights)
    products = counts.chunked(T, B, H, weights, "cuda", length)["weights products"]._replace(starts=0)
    return {
        "sweep_chunks": length * step(f"{cell} sweep"),
        "multiply_chunks": counts.price({"weights products": products}, prices.defaults("cuda")["prices"]),
        "across_chunks": max((T - 1) // length - 1, 0) * step("across chunks"),
    }


def launches_of(issue, wait, rounds=20):
    """Time each kernel of a step whose launches are issued one by one, while the first of them waits for the last.

    Otherwise the GPU would wait for Python between a kernel's two events.

    Returns
    -------
    dict of str to (int, float)
        By kernel: its launches in a step, and the microseconds that these take together, a median.
    """
    from bppsa_nb.machine.cuda_compiler import cuda

    configuration, marks = type(cuda.jit(lambda: None)[1, 1]), []
    launch = configuration.__call__

    @cuda.jit
    def hold(milliseconds):
        for _ in range(milliseconds):
            cuda.nanosleep(1_000_000)

    def timed(self, *arguments):
        before, after = cuda.event(), cuda.event()
        if not marks:
            launch(hold[1, 1, self.stream], 25)
        handle = int(getattr(self.stream, "handle", self.stream))
        stream = cuda.external_stream(handle) if handle else 0
        before.record(stream)
        launch(self, *arguments)
        after.record(stream)
        marks.append((self.dispatcher.py_func.__name__, before, after))

    seconds = {}
    configuration.__call__ = timed
    try:
        for _ in range(rounds):
            marks.clear()
            issue()
            wait()
            together = {}
            for name, before, after in marks:
                together.setdefault(name, []).append(1e3 * before.elapsed_time(after))
            for name, times in together.items():
                seconds.setdefault(name, (len(times), []))[1].append(sum(times))
    finally:
        configuration.__call__ = launch
    return {name: (count, float(np.median(sums))) for name, (count, sums) in seconds.items()}


def figures(part):
    """Measure Figures 8 and 9 and Tables 4 to 6, at the paper's sizes, briefly."""
    if TINY:
        part.do("figures", lambda: ("figures and tables take the paper's sizes: not on the CPU",))
        return
    warm_up()
    iterations.RNN_SECONDS["paper"] = figure_09.SECONDS["paper"] = 0.8
    for name in ("figure_08", "figure_09"):
        part.do(name, measured, name)


def measured(name):
    """Measure an experiment at the paper's scale."""
    with experiments.references():
        table = experiments.run(name, "paper", progress=False)
    wanted = ("overall", "backward", "backward_chunked")
    if name == "figure_08":
        ours = figure_08.speedups(table[table["backend"] == "cuda"])
    else:
        ours = epochs.breakdown(table[table["source"] == "here"])
    best = ", ".join(f"{column} {ours[column].max():.3g}x" for column in wanted if column in ours)
    return (f"BPPSA at best, over the loop: {best}",)


def layers(part):
    """Time training steps in PyTorch, on the GPU, by its own layers and by ours in their place."""
    import peers

    if TINY or "cudnn" not in peers.installed():
        part.do("layers", lambda: ("no PyTorch with a GPU here",))
        return
    warm_up()
    for cell in ("RNN", "GRU"):
        part.do(cell, layers_of, cell)
        part.record("layers", "paper", **peers.installed())


def layers_of(cell):
    """Time both libraries' layers of a cell."""
    import comparisons
    import peers
    from turns import quartiles, take_turns

    T, B, H, inputs = problem(cell)
    made = comparisons.problem(cell, T, B, H, inputs, np.random.default_rng(0))
    steps = {name: peers.torch_step(*made, "cuda", library=name) for name in ("torch.nn", "bppsa_nb.torch")}
    timed = take_turns(steps, 20.0, (3, 501))
    rows = [
        {"cell": cell, "T": T, "B": B, "H": H, "name": name} | quartiles("seconds", rounds.sum(axis=1))
        for name, rounds in timed.items()
    ]
    return "; ".join(f"{row['name']} {1e3 * row['seconds']:.2f} ms" for row in rows), rows


def grid(part):
    """Time training steps over the sizes of Figures 8 and 9, for several H."""
    import comparisons
    import peers

    warm_up()
    present = peers.installed()
    points = [("RNN", 4, 2, 2, 1)] if TINY else comparisons.grid_points("paper")
    named = [*map(problem, ("RNN", "GRU")), (30000, *problem("RNN")[1:])]  # those that docs/speed.md quotes come first
    for point in sorted(points, key=lambda point: point[1:] not in named):
        part.do(" ".join(map(str, point)), said_of, comparisons.grid, [point], "cuda", present, 2.0, least=10)
        part.record("grid", "paper", **present)


def said_of(compare, *arguments):
    """Make a comparison's rows, and return its last words with them."""
    said = []
    rows = compare(*arguments, said.append)
    return said[-1].strip(), rows


def sizes(part):
    """Measure what "auto" gives away over sizes."""
    import comparisons

    warm_up()
    for point in [(4, 2, 2)] if TINY else comparisons.regret_points("paper"):
        part.do(" ".join(map(str, point)), said_of, comparisons.regret, [point], ["cuda"], 0.5, least=10)
        part.record("auto_regret", "paper")


def warm_up(seconds=2.0):
    """Keep the GPU busy until its clock is up."""
    if TINY:
        return
    chain = np.zeros((500, 64, 32, 32), np.float32)
    run = functools.partial(bp.backprop, method="blelloch", backend="cuda")
    start = time.monotonic()
    while time.monotonic() - start < seconds:
        run(chain, np.zeros(chain.shape[1:3], np.float32))
