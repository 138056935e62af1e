"""A watched launch that also tells who stored what, and how much each thread multiplied."""

from functools import partial

import numpy as np

from warpwatch.launch import launch as launch_watched
from warpwatch.memory import GlobalSpace
from warpwatch.races import thread_of


def launch(kernel, grid, block, arguments, steps=None):
    """Launch; return the report, with `stores` by array and `work`, how many numbers each thread multiplied.

    Stores are rows (element, block, thread), each once, with elements as `array.flat` counts them.
    """
    space = partial(_Stores, seen := [], int(np.prod(grid) * np.prod(block)))
    report = launch_watched(kernel, grid, block, arguments, steps=steps, space=space)
    report.stores, report.work = seen[0].told(), seen[0].work
    return report


class _Stores(GlobalSpace):
    """Global memory that remembers where something was stored and who did it, and the `work` of each thread."""

    def __init__(self, seen, threads, *about):
        super().__init__(*about)
        self.stored, self.work = [(np.zeros(0, "i8"),) * 2], np.zeros(threads, int)
        seen.append(self)

    def ran(self, block, lanes):
        self.work[self.machine.first * self.machine.threads + lanes] += block.products

    def store(self, tell, address, place, mark, view, strong, *values):
        self.stored += [(address + n * view.itemsize, self.machine.of(self.machine.stamp)) for n in range(len(values))]
        super().store(tell, address, place, mark, view, strong, *values)

    def atomic(self, tell, address, *how):
        self.stored.append((address, self.machine.of(self.machine.stamp)))
        return super().atomic(tell, address, *how)

    def told(self):
        (address, stamp), found = map(np.concatenate, zip(*self.stored, strict=True)), {}
        for r in (r for r in self.regions if r.array is not None):
            here = (r.start <= address) & (address < r.end)
            element = (address[here] - r.shift - r.array.ctypes.data) // r.array.itemsize
            found[r.name] = np.unique(np.stack([element, *thread_of(stamp[here])], 1), axis=0)
        return found
