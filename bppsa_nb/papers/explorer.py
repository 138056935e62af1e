"""Change costs, devices, micro-batches and policy in a notebook, and watch the timeline."""

import numpy as np

from bppsa_nb.machine import process
from bppsa_nb.machine.checks import check_choice, check_count
from bppsa_nb.papers import panels, timelines
from bppsa_nb.schedule.network import Network
from bppsa_nb.schedule.policies import data_parallel, pipeline

with process.explained():
    import ipywidgets as widgets
    from matplotlib.figure import Figure

SCHEDULES = {"conventional": ("pipeline", "conventional", True)}  # name: function, policy, flush
for _name, _how in timelines.PIPELINES.items():
    SCHEDULES[_name.replace("modulo", "modulo allocation")] = "pipeline", *_how
SCHEDULES |= {
    "data-parallel, layer order": ("data_parallel", "fifo", None),
    "data-parallel, low layers sent first": ("data_parallel", "priority", None),
    "data-parallel, reverse first-k": ("data_parallel", "reverse_first_k", None),
}
MOST = {"layers": 16, "devices": 8, "micro_batches": 8}  # more could not be read


def describe(timeline):
    """Say in a sentence or two how good a schedule is."""
    busy = timeline.work / timeline.makespan if timeline.makespan else np.ones(timeline.operations.devices)
    text = f"{timeline.makespan:g} units; no schedule takes less than {timeline.lower_bound:g}. "
    if timeline.k is not None:
        text += f"The best k is {timeline.k}. "
    text += "Busy: " + ", ".join(f"{share:.0%}" for share in busy)
    return text + "; tensors kept at most: " + ", ".join(f"{peak:g}" for peak in timeline.peak_memory) + "."


def picture(timeline):
    """Draw a schedule, as a PNG."""
    lanes = len(timeline.operations.workers)
    fig = Figure(figsize=(9.6, 1.2 + 0.4 * lanes), layout="constrained")
    timeline.plot(fig.subplots())
    return panels.png(fig)


def explorer(name="fast-forwarding", layers=8, devices=2, micro_batches=1):
    """Explore the schedules of a network of up to 16 equal layers: an ipywidgets.VBox, for a cell's last line.

    `name` is the first schedule, one of `SCHEDULES`, on up to 8 devices and as many micro-batches. Data-parallel
    training shows one of its devices, and the link. What is out of range is a TypeError or a ValueError.
    """
    check_choice("name", name, SCHEDULES)
    given = {"layers": layers, "devices": devices, "micro_batches": micro_batches}
    for key, value in given.items():
        check_count(key, value, 1, MOST[key])
    check_count("devices", devices, 1, layers, f" (the network has {layers} layers)")
    choice = widgets.Dropdown(options=list(SCHEDULES), value=name, description="schedule")
    wide = {"description_width": "initial"}
    numbers = {
        key: widgets.BoundedIntText(value, min=1, max=MOST[key], description=key.replace("_", "-"), style=wide)
        for key, value in given.items()
    }
    numbers["devices"].max = min(MOST["devices"], layers)
    costs = {
        words: widgets.FloatSlider(start, min=0, max=4, step=0.25, description=words, style=wide)
        for words, start in {"F": 1, "δO": 1, "δW": 1, "send between devices": 0, "send δW": 1}.items()
    }
    sentence, image = widgets.HTML(), widgets.Image(format="png", layout={"max_width": "100%"})

    def show(_=None):
        function, policy, flush = SCHEDULES[choice.value]
        spread = function == "pipeline"
        for control in (numbers["devices"], numbers["micro_batches"], costs["send between devices"]):
            control.layout.display = None if spread else "none"
        costs["send δW"].layout.display = "none" if spread else None
        L = numbers["layers"].value
        numbers["devices"].max = min(MOST["devices"], L)
        net = Network(*(np.full(L, costs[kind].value) for kind in ("F", "δO", "δW", "send δW")))
        if spread:
            sizes = numbers["devices"].value, numbers["micro_batches"].value
            timeline = pipeline(net, *sizes, policy, flush, costs["send between devices"].value)
        else:
            timeline = data_parallel(net, policy)
        sentence.value = describe(timeline)
        image.value = picture(timeline)

    for control in (choice, *numbers.values(), *costs.values()):
        control.observe(show, "value")
    show()
    rows = [widgets.HBox(list(numbers.values())), widgets.HBox(list(costs.values()), layout={"flex_flow": "row wrap"})]
    return widgets.VBox([choice, *rows, sentence, image])
