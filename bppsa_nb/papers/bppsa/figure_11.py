"""Figure 11: the forward pass of a pipeline."""

import pandas as pd
from matplotlib.patches import Rectangle

from bppsa_nb.papers import panels, timelines
from bppsa_nb.papers.experiment import Claim, Figure
from bppsa_nb.schedule import draw
from bppsa_nb.schedule import events as timeline


def measure(scale, rng, progress):
    """Schedule the forward pass: one row per micro-batch and device."""
    events, needs = timelines.gpipe(8, 8)
    timeline.check(events, needs)
    return pd.DataFrame(event._asdict() | {"batch": int(event.label)} for event in events)


def facts(table):
    """Count devices, micro-batches, and how many devices are busy at a time."""
    busy = table.groupby("start")["worker"].nunique()
    devices = table["worker"].nunique()
    counted = {"devices": devices, "batches": table["batch"].nunique(), "busy": busy.max()}
    return counted | {"steps": (busy == devices).sum()}


def plot(table):
    fig, ax = panels.subplots(figsize=(7.6, 3.9))
    unit = "time (one micro-batch on one device)"
    draw.timeline(timelines.events(table), ax, worker="device", unit=unit, legend=False)
    entering = table[table["worker"] == 0]
    busy = table.groupby("start")["worker"].nunique()
    full, lanes = busy.idxmax(), busy.max()
    box = {"fc": "none", "ec": "black", "lw": 2, "zorder": 5, "clip_on": False}
    ax.add_patch(Rectangle((0, -0.47), entering["duration"].sum(), 0.94, **box))
    ax.add_patch(Rectangle((full + 0.03, -0.56), 0.94, lanes + 0.12, ls=(0, (3, 2)), **box))
    handles = panels.lines({f"{len(entering)} micro-batches enter": "black"}, lw=2)
    handles += panels.lines({f"{lanes} devices, all busy": "black"}, lw=2, ls="--")
    ax.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    return fig


FIGURE = Figure(
    origin="counted",
    caption="""For all devices to be busy at once (dashed), as many micro-batches must have entered (solid) as there are
    devices. Each device keeps what it was handed for each until the backward pass: space that grows with the pipeline.
    Colors and numbers: micro-batches.""",
    alt="""A timing diagram of eight devices: eight micro-batches run through them as a staircase, a step later on each.
    A solid box frames all of them on the first device, a dashed box the moment at which all devices are busy.""",
    claims=[
        Claim("Figure 11", "To fill a pipeline, as many micro-batches must enter as it has devices.", "K micro-batches",
              "{batches} micro-batches for {devices} devices, all busy for {steps} step",
              lambda f: f["busy"] == f["devices"] == f["batches"]),
    ],
)
