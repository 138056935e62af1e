"""Table 3: one clip in three sets of features."""

import numpy as np

from bppsa_nb.papers import panels, tables
from bppsa_nb.papers.experiment import Claim, Figure
from bppsa_nb.training.datasets import instruments
from bppsa_nb.training.datasets.audio import FEATURES, SAMPLE_RATE, STAND_IN, mfcc, read

LABEL = "gac"  # an acoustic guitar: strings that are plucked begin and fade, so there is something to see in time
SETTINGS = ["features", "coefficients", "window", "hop", "frames", "size"]


def measure(scale, rng, progress):
    """Compute one clip's features: a row per set and frame of the first second, sizes and settings repeated."""
    folder = instruments.clips(progress=progress.show)
    waveform = read(min((folder / LABEL).glob("*.wav")))

    def compute(point, _):
        settings = FEATURES[point["features"]]
        features = mfcc(waveform, point["features"])
        frames, size = features.shape
        same = {"coefficients": settings.coefficients, "window": settings.window, "hop": settings.hop}
        same |= {"frames": frames, "size": size}
        left = features[: 1 + frames // 3, : size // 2].astype(np.float64).round(3)
        return [
            same | {"frame": frame} | {f"c{i}": value for i, value in enumerate(row, 1)}
            for frame, row in enumerate(left)
        ]

    table = progress.collect([{"features": features} for features in FEATURES], compute, rng)
    table.attrs["data"] = "stand-in" if (folder / STAND_IN).is_file() else "real"
    return table


def facts(table):
    """Return the settings and sizes of every set."""
    return {"sets": table[SETTINGS].drop_duplicates()}


def plot(table):
    sets = list(table.groupby("features", sort=False))
    fig, axes = panels.subplots(len(sets), 1, figsize=(8, 5.6), sharex=True)
    for ax, (features, rows) in zip(axes, sets, strict=True):
        first = rows.iloc[0]
        kept = first["size"] // 2
        values = rows[[f"c{i}" for i in range(1, kept + 1)]].to_numpy().T
        step = first["hop"] / SAMPLE_RATE
        # A frame is centered on the sample it is named after.
        extent = ((-0.5) * step, (len(rows) - 0.5) * step, kept + 0.5, 0.5)
        image = ax.imshow(values, aspect="auto", cmap="RdBu_r", vmin=-3, vmax=3, extent=extent, interpolation="none")
        window = f"{first['coefficients']} coefficients, window {first['window']}, hop {first['hop']}"
        ax.set_title(f"{features}: {first['frames']} × {first['size']}   ({window})", size=10)
        ax.set(ylabel="coefficient", xlim=(0, 1), yticks=range(kept, 0, -max(1, kept // 4)))
        ax.invert_yaxis()
        ax.grid(visible=False)
    axes[-1].set_xlabel("seconds")
    fig.colorbar(image, ax=list(axes), label="standard deviations from the mean", shrink=0.6)
    return fig


FIGURE = Figure(
    origin="counted", needs=["paper/table_3"],
    caption="""From S to L, frames get shorter and coefficients fewer: what is gained in time is lost in frequency. A
    long window sees a note coming (S is some 35 ms ahead). The first second of a clip of an acoustic guitar, left
    channel. Each coefficient has mean 0 and variance 1 over the clip. Titles: the whole clip's F × C, of both channels
    without the average power.""",
    alt="""Three heat maps of the same second of a guitar, coefficients over time: S has 19 rows and wide columns, M 12
    rows and columns half as wide, L 6 and half as wide again. Notes begin at vertical edges, a little earlier in S.""",
    phrases={"size": "{frames} × {size}"},
    claims=[
        Claim("§4.2, Table 3", "Three sets of features trade resolution in time for resolution in frequency.",
              "259 × 38, 517 × 24, 1034 × 12", "{sets:each size}, on a clip",
              lambda f: f["sets"].values.tolist() == tables.published("table_3")[SETTINGS].values.tolist()),
    ],
)
