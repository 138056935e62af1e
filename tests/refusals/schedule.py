"""What schedules refuse."""

import numpy as np

from bppsa_nb import schedule
from bppsa_nb.scan.trace import trace
from bppsa_nb.schedule.events import Event

UNIT, HUGE = schedule.Network.uniform(3), schedule.Network([1e307] * 2, [1] * 2, [1] * 2)
STREAMS = schedule.joint_regions(schedule.Regions.blocks(schedule.Network.uniform(2), [2]), [2], [[1.5, 1.5]])
LARGE = schedule.pipeline(schedule.Network.uniform(8), 4, 20)
NOT_NEGATIVE = "must be finite and not negative, got"
BAD_COSTS = [
    ([1, -1], f"ValueError: {{}} {NOT_NEGATIVE} -1.0 for layer 2"),
    ([np.nan, 1], f"ValueError: {{}} {NOT_NEGATIVE} nan for layer 1"),
    ([1, np.inf], f"ValueError: {{}} {NOT_NEGATIVE} inf for layer 2"),
    (["a", "b"], r"TypeError: {} must hold real numbers, got \['a', 'b'\]"),
    ([True, False], r"TypeError: {} must hold real numbers, got \[True, False\]"),
    ([1j, 1], "TypeError: {} must hold real numbers"), ({1, 2}, "TypeError: {} must hold real numbers"),
    ([[1, 2], [3, 4]], r"ValueError: {} must hold .*, got shape \(2, 2\)"),
    ([1, [2, 3]], r"TypeError: {} must be an array, got \[1, \[2, 3\]\]"),
    (1, r"ValueError: {} must hold .*, got shape \(\)"),
]

ROWS = [
    *(
        ("schedule.Network", {name: values}, message.format(name))
        for name in ("forward", "output_grad", "weight_grad", "sync")
        for values, message in BAD_COSTS
    ),
    *(
        ("schedule.Network", {name: [1, 1, 1]}, rf"ValueError: {name} must hold 2 numbers, .* got shape \(3,\)")
        for name in ("output_grad", "weight_grad", "sync")
    ),
    ("schedule.Network", {"forward": []}, "ValueError: forward must have a cost for one layer or more, got none"),
    ("schedule.Network", {"forward": [1e308] * 2}, "ValueError: forward, output_grad, .* must have a finite sum"),
    ("schedule.Network", {"memory": schedule.Memory(inner=[1])}, r"ValueError: memory.inner .*, got shape \(1,\)"),
    ("schedule.Network", {"memory": schedule.Memory(1e308, 1e308)}, "ValueError: memory must have a finite sum"),
    *(
        ("Assumptions", {name: 1}, f"TypeError: {name} must be True or False, got 1")
        for name in vars(schedule.Assumptions())
    ),
    ("transfer_time", {"size": [1, -1]}, f"ValueError: size {NOT_NEGATIVE}"),
    ("transfer_time", {"bandwidth": 5e-324}, "ValueError: bandwidth must be high enough for size to be sent"),
    ("transfer_time", {"size": [1e308], "bandwidth": 1e-5}, "ValueError: bandwidth must be high enough for size"),
    ("transfer_time", {"latency": 10**400}, f"ValueError: latency {NOT_NEGATIVE} 1000"),
    ("pipeline", {"network": HUGE, "micro_batches": 20}, "ValueError: network .* over all micro-batches, is finite"),
    ("pipeline", {"devices": 4}, r"ValueError: devices must be from 1 to 3 \(the network has 3 layers\), got 4"),
    *(
        ("pipeline", {"policy": policy, "flush": False}, f"ValueError: flush must be True for policy='{policy}'")
        for policy in ("gpipe", "conventional")
    ),
    ("pipeline", {"boundary_cost": [1]}, r"ValueError: boundary_cost must hold 2 numbers.*, got shape \(1,\)"),
    ("pipeline", {"boundary_cost": [1, -3]}, f"ValueError: boundary_cost {NOT_NEGATIVE} -3.0"),
    ("data_parallel", {"network": UNIT}, r"ValueError: network must have sync, the times of S\[δW\]"),
    ("data_parallel", {"policy": "fifo"}, "ValueError: k is for policy='reverse_first_k' only, got 1"),
    ("data_parallel", {"policy": "priority", "k": None, "memory_limit": 0}, "ValueError: memory_limit is for policy="),
    ("data_parallel", {"k": 4}, "ValueError: k must be from 0 to 3, got 4"),
    ("data_parallel", {"memory_limit": 1}, "ValueError: memory_limit .* least .*, which reverse first-k needs; got 1"),
    ("optimum", {"timeline": 3}, "TypeError: timeline must be a Timeline of pipeline or data_parallel, got 3"),
    ("optimum", {"timeline": STREAMS}, "TypeError: timeline must be .* pipeline or data_parallel, got Timeline of"),
    ("optimum", {"timeline": LARGE}, "ValueError: .*460 operations needs more than a search of 400 operations"),
    ("joint_regions", {"kernels": [4, 2]}, r"ValueError: kernels\[0\] must be from 1 to 3 .*got 4"),
    ("joint_regions", {"kernels": [0, 2]}, r"ValueError: kernels\[0\] must be from 1 to 3 .*got 0"),
    ("joint_regions", {"kernels": [2.0, 3]}, r"TypeError: kernels must hold layers.*got \[2.0, 3\]"),
    ("joint_regions", {"kernels": [2, 2]}, "ValueError: kernels must hold a layer once"),
    ("joint_regions", {"speedup": [[1] * 4, [1]]}, "TypeError: speedup must be an array, got"),
    ("joint_regions", {"kernels": [], "speedup": []}, r"ValueError: speedup .* shape \(0, 4\).*got \(0,\)"),
    *(
        ("joint_regions", {"kernels": [2], "speedup": [[1, wrong, 1, 1]]}, f"ValueError: speedup {message} in region 2")
        for wrong, message in (
            (np.nan, "must .*, got nan for δW2"), (0, "must be from 0.01 to 2, got 0.0 for δW2"),
            (2.01, "must be from 0.01 to 2, got 2.01 for δW2"),
        )
    ),
    ("joint_regions", {"speedup": [["a"] * 4] * 2}, "TypeError: speedup must hold real numbers"),
    ("joint_regions", {"k": 5}, "ValueError: k must be from 0 to 4 .*got 5"),
    ("joint_regions", {"carry_over": 1}, "TypeError: carry_over must be True or False, got 1"),
    ("Regions", {"ends": []}, r"ValueError: ends must rise to 6, .*got \[\]"),
    ("Regions", {"ends": [5]}, "ValueError: ends must rise to 6"),
    ("Regions", {"ends": [3, 3, 6]}, "ValueError: ends must rise to 6"),
    ("Regions", {"ends": [0, 6]}, r"ValueError: ends\[0\] must be from 1 to 6, got 0"),
    ("Regions", {"ends": [3.0, 6]}, "TypeError: ends must hold integers"),
    ("Regions.blocks", {"last": [2, 4]}, r"ValueError: last\[1\] must be from 1 to 3, got 4"),
    ("split", {"network": UNIT}, "TypeError: network must be a chain of operators"),
    ("profile", {"x": np.zeros((2, 1, 4, 4))}, "TypeError: x must have the model's dtype float32"),
    ("profile", {"x": np.zeros((2, 2, 4, 4), "f")}, r"ValueError: x must have shape \(B, 1, 4, 4\)"),
    ("profile", {"x": np.zeros((0, 1, 4, 4), "f")}, "ValueError: x must hold at least one sample"),
    ("profile", {"labels": [0, 3]}, "ValueError: labels must be from 0 to 2, got 3"),
    ("Timeline.order", {"worker": 2}, "ValueError: worker must be from 0 to 1, got 2"),
    ("draw.tree", {"trace": None}, "TypeError: trace must be what bppsa_nb.scan.trace.trace returned, got NoneType"),
    ("draw.tree", {"trace": trace(4, "chunked", length=2)}, "ValueError: trace .* 'chunked' .* draw.timeline"),
    ("draw.tree", {"legend": None}, "TypeError: legend must be True or False, got None"),
    ("draw.timeline", {"events": [5]}, r"TypeError: events\[0\] must be an Event, got int"),
    ("draw.timeline", {"until": "x"}, "TypeError: until must be a number, got 'x'"),
    ("draw.timeline", {"events": [Event(0, i, 1, "", str(i)) for i in range(9)]}, "ValueError: colors .* 8 .* got 9"),
    ("draw.timeline", {"events": [Event(2, 0, 1, "a")], "worker": ["a", "b"]}, "ValueError: worker must name all 3 "),
    ("scan_schedule", {"cost": {"mm": 1}}, r"TypeError: cost\['mv'\] must be a number, got None"),
    ("timeline.check", {"needs": [[]]}, "ValueError: needs must have one entry per event, got 1 for 2 events"),
    ("timeline.check", {"needs": [5, []]}, r"TypeError: needs\[0\] must be a list of numbers, got 5"),
    ("timeline.check", {"needs": [[3], []]}, r"ValueError: needs\[0\] must be from 0 to 1, got 3"),
    ("timeline.check", {"needs": [["a"], []]}, r"TypeError: needs\[0\] must be an integer, got 'a'"),
]
