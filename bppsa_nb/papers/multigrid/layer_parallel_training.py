"""Section IV-A of layer-parallel training: two cycles per pass, as many as it takes, and serial back-propagation."""

import numpy as np

import bppsa_nb as bp
from bppsa_nb import sparse
from bppsa_nb.machine import backends
from bppsa_nb.multigrid import ResidualModel
from bppsa_nb.papers import panels, words
from bppsa_nb.papers.experiment import COLORS, Claim, Figure, grid, where
from bppsa_nb.papers.images import fetched
from bppsa_nb.papers.multigrid import digits
from bppsa_nb.papers.multigrid.recording import record
from bppsa_nb.training.loss import cross_entropy

TIMES = {1: 2, 4: 5, 16: 2, 64: 2}  # T = N h, and from how many seeds
SUFFICES = 4  # T up to which two cycles are held to suffice; the paper does not say what its T is
EPOCHS = {"quick": 5, "paper": 3}
IMAGES = {"train": 6000, "test": 1500}  # at the paper's scale
DEPTH, CHANNELS = 64, 8
BATCH, RATE = 64, 1e-2
ADAPTIVE = {"error": 0.1}
METHODS = {"serial": None, "multigrid": {"cycles": 2}, "adaptive": ADAPTIVE}
STYLES = {
    "serial": {"label": "serial passes", "color": COLORS["linear"], "marker": "s"},
    "multigrid": {"label": "two cycles", "color": COLORS["multigrid"], "marker": "o"},
    "adaptive": {"label": "as many as it takes", "color": COLORS["truncated"], "marker": "D"},
}
# Whose gradients are held against serial ones, on the way of training by "multigrid".
SOLVERS = {
    "one cycle": {"cycles": 1},
    "two cycles": {"cycles": 2},
    "three cycles": {"cycles": 3},
    "as many as it takes": ADAPTIVE,
    "skip_downcycle": {"cycles": 2, "skip_downcycle": True},
    "nested_iteration": {"cycles": 2, "nested_iteration": True},
}


def measure(scale, rng, progress):
    """Train by all methods for every time and seed: a row per epoch, the beginning included."""
    training, unseen = (images(split, scale) for split in ("train", "test"))
    backend = backends.resolve("auto")
    seeds = np.random.default_rng(rng).integers(2**31, size=max(TIMES.values())).tolist()
    runs = [point for T in TIMES for point in grid(T=[T], seed=seeds[: TIMES[T]], method=METHODS, backend=[backend])]

    def measure_point(point, _):
        model = new(training, point["T"], point["seed"])
        return train(model, training, unseen, EPOCHS[scale], point["method"], point["seed"], backend)

    table = progress.collect(runs, measure_point, rng)
    table.attrs = {"data": training.data}
    return table


def images(split, scale):
    """Load the digits, or at the paper's scale some of MNIST's images, if it was fetched, or else of their stand-in."""
    return digits.Digits(split) if scale == "quick" else fetched("mnist", split, IMAGES[split])


def new(training, T, seed):
    """Make a network for what it is trained on: dense layers for vectors, convolutions for images."""
    if isinstance(training, digits.Digits):
        return digits.network(DEPTH, T, seed)
    opening = [sparse.AvgPool2d("half", 2), sparse.Conv2d("opening", 3, CHANNELS, 3, stride=2, padding=1)]
    opening.append(sparse.Tanh("tanh"))
    closing = [sparse.Flatten("flatten"), sparse.Linear("closing", 64 * CHANNELS, 10)]
    return ResidualModel((3, 32, 32), opening, DEPTH, closing, h=T / DEPTH, rng=seed)


def train(model, training, unseen, epochs, method, seed, backend):
    """Train a model by Adam: a row per epoch, from 0, before the first; it is evaluated by serial propagation."""
    trainer, rows = bp.Trainer(model, bp.Adam(RATE), backend=backend), []
    for epoch in range(epochs + 1):
        model.solver = METHODS[method]
        trainer.fit(training, epoch, BATCH, rng=seed, progress=False)
        model.solver = None
        loss, accuracy = trainer.evaluate(unseen, digits.TEST_DIGITS)
        row = {"epoch": epoch, "loss": loss, "accuracy": accuracy, "forward": None, "backward": None}
        row |= {f"error_{name}": None for name in SOLVERS}
        batch = training.batch(np.random.default_rng([seed, epoch]).integers(len(training), size=BATCH))
        if method == "multigrid" and epoch in (0, epochs):
            row |= gradient_errors(model, *batch, backend)
        if method == "adaptive":
            model.solver = ADAPTIVE
            _differentiate(model, *batch, backend)
            row |= model.cycles
        rows.append(row)
    return rows


def gradient_errors(model, x, y, backend):
    """Hold gradients by each of `SOLVERS`, at states by the same, against serial ones, all parameters together."""
    serial, errors = _differentiate(model, x, y, backend), {}
    for name, solver in SOLVERS.items():
        model.solver = solver
        difference = _differentiate(model, x, y, backend) - serial
        errors[f"error_{name}"] = float(np.sqrt((difference**2).sum() / (serial**2).sum()))
    model.solver = None
    return errors


def _differentiate(model, x, y, backend):
    activations = model.forward(x, backend)
    grads = model.backward(activations, cross_entropy(activations.logits, y)[1], backend=backend)
    return np.concatenate([grad.ravel() for grad in grads.values()]).astype(np.float64)


def gains(table):
    """Return the accuracy that runs gain on the serial one of their seed: a column per method, by T, epoch and seed."""
    accuracy = table.pivot(index=["T", "epoch", "seed"], columns="method", values="accuracy")
    return accuracy.sub(accuracy["serial"], axis=0)


def counts(table):
    """Return how many cycles adaptive runs took, the mean of forward and backward and of seeds, by T and epoch."""
    rows = where(table, method="adaptive")
    return rows[["forward", "backward"]].mean(axis=1).groupby([rows["T"], rows["epoch"]]).mean().unstack()


def facts(table):
    """Compare accuracies with serial ones: in the end, by T, and after any epoch where T is small."""
    last, gained, taken = where(table, epoch=table["epoch"].max()), gains(table), counts(table)
    ends = last.pivot_table(index="T", columns="method", values="accuracy")
    end = gained.xs(table["epoch"].max(), level="epoch")
    ends[["two", "many"]] = end.groupby("T")[["multigrid", "adaptive"]].mean()
    ends["spread"] = where(last, method="serial").groupby("T")["accuracy"].std()
    ends["first"], ends["last"] = taken.iloc[:, 0], taken.iloc[:, -1]
    small = ends.loc[:SUFFICES]
    return {
        "ends": ends,
        "small": small,
        "large": ends["two"].loc[SUFFICES + 1 :],
        "T": small.index[-1],
        "largest": small.iloc[-1],
        "gained": end["multigrid"].loc[small.index[-1]],
        "most": gained["multigrid"].groupby(["T", "epoch"]).mean().loc[:SUFFICES].abs().max(),
    }


def plot(table):
    fig = panels.figure(figsize=(10.6, 6.4))
    above, below = fig.subfigures(2, 1, height_ratios=(1, 1.1))
    _draw_accuracy(above.subplots(1, table["T"].nunique(), sharey=True), table)
    left, middle, right = below.subplots(1, 3)
    middle.sharey(left)
    _draw_errors((left, middle), table)
    _draw_cycles(right, counts(table))
    return fig


def _draw_accuracy(axes, table):
    runs = table.groupby(["T", "method", "epoch"])["accuracy"]
    runs = runs.agg(accuracy="mean", accuracy_low="min", accuracy_high="max").reset_index()
    runs["at"] = runs["epoch"] + 0.1 * runs["method"].map(list(STYLES).index)
    gained = 100 * gains(table).xs(table["epoch"].max(), level="epoch")
    for ax, T in zip(axes, sorted(table["T"].unique()), strict=True):
        panels.curves(ax, where(runs, T=T), "at", "accuracy", "method", STYLES, ms=5, capsize=3)
        ax.set(title=f"T = {T:g}", xlabel="epoch", ylim=(0, 1.45), xticks=sorted(table["epoch"].unique()))
        for place, method in (0.97, "multigrid"), (0.86, "adaptive"):
            ends = gained.loc[T][method].agg(["mean", "min", "max"])
            said, _ = words.fill("{mean:+.1f} ({min:+.1f} to {max:+.1f})", ends)
            style = {"ha": "right", "va": "top", "size": 9, "color": STYLES[method]["color"]}
            ax.text(0.98, place, said, transform=ax.transAxes, **style)
    axes[0].set(ylabel="accuracy, unseen digits", yticks=np.arange(0, 1.1, 0.2))
    axes[0].legend(loc="lower right")


def _draw_errors(axes, table):
    """Draw geometric means over seeds, with bars from that before training to that after it."""
    errors = table.set_index(["T", "epoch"])[[f"error_{name}" for name in SOLVERS]].dropna()
    logs = np.log(errors).rename_axis(columns="solver").stack().groupby(["solver", "T", "epoch"]).mean()
    bars = np.exp(logs.groupby(["solver", "T"]).agg(error="mean", error_low="min", error_high="max")).reset_index()
    roles = "vector", "multigrid", "matrix", "truncated", "baseline", "chunked"
    styles = {
        f"error_{name}": {"color": COLORS[role], "marker": mark, "label": name}
        for name, role, mark in zip(SOLVERS, roles, "^osDvP", strict=True)
    }
    cycles, guesses = dict(list(styles.items())[:4]), dict(list(styles.items())[4:])
    usual = {"error_two cycles": styles["error_two cycles"] | {"label": "first state on all layers"}}
    for ax, title, shown in zip(axes, ("cycles", "first guesses"), (cycles, usual | guesses), strict=True):
        panels.curves(ax, bars, "T", "error", "solver", shown, dodge=0.07, ms=5, capsize=3)
        panels.log_scale(ax, "x", ticks=sorted(table["T"].unique()))
        ax.set(yscale="log", xlabel="T = N h", title=f"gradient: {title}")
        ax.legend(loc="lower center", fontsize=8)
    axes[0].set_ylabel("relative error")


def _draw_cycles(ax, taken):
    color = STYLES["adaptive"]["color"]
    for i, (T, row) in enumerate(taken.iterrows()):
        ax.plot(row, marker="osD^"[i], ms=5, color=color, alpha=0.4 + 0.2 * i)
        panels.name_end(ax, row.index, row, f"T = {T:g}", "black")
    ax.plot(taken.columns, [2] * len(taken.columns), color=STYLES["multigrid"]["color"], lw=1.1, ls="--")
    ax.set(title="cycles, as many as it takes", xlabel="epoch", xticks=taken.columns, ylim=(0, 9))
    ax.set_xlim(right=1.3 * taken.columns[-1])
    one, two = (record(DEPTH, cycles=count).span() for count in (1, 2))  # layer steps in a row, linear in cycles
    there_and_back = lambda n: one + (n - 1) * (two - one), lambda steps: 1 + (steps - one) / (two - one)
    ax.secondary_yaxis("right", functions=there_and_back).set(ylabel="steps in a row")


FIGURE = Figure(
    origin="trained",
    phrases={
        "two": "{multigrid:.0%} (T = {_})",
        "serial": "{serial:.0%}",
        "many": "{adaptive:.0%} for T = {_}",
        "taken": "{first:.2g} to {last:.2g} for T = {_}",
        "gain": "{many:+.1f points} for T = {_} ({last:.2g} in the end)",
    },
    caption="""Networks trained with two cycles per pass end with {ends:each two} unseen digits right, serial ones with
    {ends:each serial}. Above, accuracy: means over two seeds, five at T = 4, and ranges; in words, how far the end is
    from that of serial passes. Runs of one seed begin alike and see the same batches. Networks are residual, of 64
    layers, T = N h. States and gradients each come from two V-cycles (coarsening 4, FCF-relaxation), from as many as
    bring the estimated error to 0.1, or serially. Below, left and middle, the relative error of the gradient; bars lead
    from the geometric mean before training by two cycles to that after it, in whichever order. With skip_downcycle, the
    first of the two cycles is half a cycle. Below right, how many cycles the estimated error takes, and steps in a row
    with them, all blocks at once; serial ones are 128. After eight cycles all is exact.""",
    alt="""Above, plots of accuracy on unseen digits over epochs, one for each T, by serial passes, two cycles and as
    many as it takes, which ends at {ends:each many}. Below, the relative error of the gradient over T on logarithmic
    axes, of some numbers of cycles on the left, of two cycles from three first guesses in the middle. Below right, how
    many cycles it takes over epochs: from {ends:each taken}.""",
    claims=[
        Claim("§IV-A", "Two cycles suffice for the same Top-1 error after each epoch.",
              "“approximately the same” (MNIST; here: mean within 0.5 points for T up to 4)",
              "T = {T}: {largest[two]:+.1f points} in the end ({gained:+.1f points} over seeds; their deviation is "
              "{largest[spread]:.1f points}), {most:.1f points} at most after any epoch; {large:+.1f points for "
              "T = _}; by as many cycles as an estimated error of 0.1 takes, {ends:each gain}",
              lambda f: f["most"] <= 0.005 and (f["small"]["two"].abs() <= f["small"]["spread"]).all()),
    ],
)
