import io

import numpy as np
import pytest
from PIL import Image

from bppsa_nb import schedule
from bppsa_nb.papers.explorer import SCHEDULES, describe, explorer


def parts(box):
    choice, (numbers, costs), sentence, image = box.children[0], box.children[1:3], *box.children[3:]
    return choice, numbers.children, {cost.description: cost for cost in costs.children}, sentence, image


def test_sentences():
    net = schedule.Network.uniform(8, sync=2)
    timeline = schedule.pipeline(net, 2)
    first, second = timeline.peak_memory
    assert describe(timeline) == (
        f"23 units; no schedule takes less than {timeline.lower_bound:g}. Busy: 48%, 52%; "
        f"tensors kept at most: {first:g}, {second:g}."
    )
    assert "The best k is 2. Busy: " in describe(schedule.data_parallel(net, "reverse_first_k", k=2))
    nothing = schedule.Network([0], [0], [0])
    assert describe(schedule.pipeline(nothing, 1)).startswith("0 units; no schedule takes less than 0. Busy: 100%;")


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_is_shown(name):
    choice, (layers, devices, batches), costs, sentence, image = parts(explorer(name, 5, 2, 2))
    assert (choice.value, layers.value, devices.value, batches.value) == (name, 5, 2, 2)
    assert Image.open(io.BytesIO(image.value)).width > 500
    function, policy, flush = SCHEDULES[name]
    net = schedule.Network.uniform(5, sync=1)
    if function == "pipeline":
        wanted = schedule.pipeline(net, 2, 2, policy, flush)
    else:
        wanted = schedule.data_parallel(net, policy)
    assert sentence.value == describe(wanted)
    hidden = {key for key, control in costs.items() if control.layout.display == "none"}
    assert hidden == {"send δW" if function == "pipeline" else "send between devices"}
    assert (devices.layout.display == "none") == (function == "data_parallel")


@pytest.mark.outer
def test_changing_what_there_is_to_schedule():
    choice, (layers, devices, batches), costs, sentence, image = parts(explorer())
    assert sentence.value.startswith("19 units")  # Figure 5 (b)
    seen = [np.asarray(Image.open(io.BytesIO(image.value)))]
    for control, value, units in (
        (choice, "modulo allocation", "16 units"), (choice, "conventional", "23 units"), (costs["δW"], 2, "31 units"),
        (costs["send between devices"], 0.5, "32 units"), (batches, 2, "64 units"), (devices, 1, "62 units"),
    ):
        control.value = value
        assert sentence.value.startswith(units), control.description
        seen.append(np.asarray(Image.open(io.BytesIO(image.value))))
    assert all(a.shape != b.shape or (a != b).any() for a, b in zip(seen, seen[1:], strict=False))
    devices.value = 2
    layers.value = 1
    assert (devices.max, devices.value) == (1, 1)
