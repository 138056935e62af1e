"""Single-device training with two streams: weight gradients beside the main stream, region by region (Section 4.1)."""

from typing import Annotated, Self

import numpy as np
from numpy.typing import ArrayLike

from bppsa_nb.machine.arguments import checked
from bppsa_nb.schedule.network import ASSUMED, Amount, Assumptions, Network
from bppsa_nb.schedule.operations import KINDS, F, O, W
from bppsa_nb.schedule.streams import Problem, TwoStreams
from bppsa_nb.schedule.timeline import within

Ends = Annotated[ArrayLike, "int[N]"]
_LEAST = 0.01  # speed-up; what runs a hundred times as slow is a mistake, and soon lost in rounding


class Regions:
    """The main stream's work, cut into regions.

    The main stream makes 2 L passes through layers: backward through L to 1, then, for the next iteration, forward
    through 1 to L. A region is a run of them.

    Parameters
    ----------
    network
        What is cut.
    ends
        How many passes are in each region and those before it; rising to 2 L. ``[2, 4, 6, 8]`` cuts the 8 passes of
        4 layers into backward 4 and 3, backward 2 and 1, forward 1 and 2, forward 3 and 4.
    assumptions
        What else makespans depend on.

    Attributes
    ----------
    ends : np.ndarray of int [shape=(N,)]
        As given, as are `network` and `assumptions`; read-only.
    names : tuple of str
        What is in each region, as in ``"δO 4–3"`` or ``"F 1–2"``.
    """

    @checked
    def __init__(self, network: Network, ends: Ends, assumptions: Assumptions = ASSUMED):
        self.network, self.assumptions = network, assumptions
        self.ends = _rising("ends", ends, 2 * network.layers, f"twice {network.layers} layers")
        self.names = tuple(self._name(*part) for part in zip([0, *self.ends[:-1]], self.ends, strict=True))

    @classmethod
    @checked
    def blocks(cls, network: Network, last: Ends, assumptions: Assumptions = ASSUMED) -> Self:
        """Cut between blocks of layers, the backward pass and the forward pass separately, as in Figure 9.

        `last` are the last layers of the blocks, rising to L. ``[2, 4]`` makes the four regions of the example above.
        """
        L = network.layers
        blocks = _rising("last", last, L, "the number of layers")
        return cls(network, [*(L - blocks[:-1][::-1]), L, *(L + blocks)], assumptions)

    def __len__(self) -> int:
        return len(self.ends)

    def __repr__(self):
        return f"Regions {', '.join(self.names)} of {self.network!r}"

    def of(self, kind, layer):
        """Return which region, from 0, operations of the main stream are in."""
        L = self.network.layers
        return np.searchsorted(self.ends, np.where(np.equal(kind, F), L + layer - 1, L - layer), "right")

    def _name(self, first, end) -> str:
        L, parts = self.network.layers, []
        if first < L:
            parts.append((KINDS[O], L - first, max(L - end, 0) + 1))
        if end > L:
            parts.append((KINDS[F], max(first - L, 0) + 1, end - L))
        return ", ".join(f"{kind} {a}" if a == b else f"{kind} {a}–{b}" for kind, a, b in parts)


@checked
def joint_regions(
    main_regions: Regions, kernels: Annotated[ArrayLike, "int[n]"], speedup: Annotated[ArrayLike, "real[...]"],
    memory_limit: Amount | None = None, k: Annotated[int, ">= 0, <= main_regions.ends.size"] = 0,
    carry_over: bool = False,
) -> TwoStreams:  # fmt: skip
    """Schedule weight gradients beside the main stream: multi-region joint scheduling (Algorithm 1).

    The main stream computes output gradients and the next iteration's forward pass, and the weight gradients that do
    not go to the sub stream, in the conventional order. F_i waits for δW_i.

    Parameters
    ----------
    main_regions
        R[1..N].
    kernels
        The layers whose δW goes to the sub stream. The paper's are 2 to L: δW_1 ends the backward pass, and F_1 waits
        for it. None at all is conventional training in one stream.
    speedup
        How many times as fast each kernel (a row) and the main stream's kernels of each of the N regions (a column) are
        together as one after the other, as profiled: 1 gains nothing, 2 is a perfect overlap, below 1 they are slower
        together.
    memory_limit
        What `Timeline.peak_memory` must not exceed, in the unit of `Network.memory`. The first k regions are
        pre-scheduled: kernels of their layers run as soon as they are ready. k rises until the peak fits.
    k
        At least this many regions are pre-scheduled. With all N, all kernels run as soon as they are ready.
    carry_over
        Whether the plan expects that a kernel that outlasts its region takes the beginning of the next. Algorithm 1
        plans every region by itself, and kernels may then start later than planned.

    Returns
    -------
    TwoStreams
        Its `k` is the one that was used.

    Notes
    -----
    What Algorithm 1 leaves open, and how it is settled here:

    - A kernel may go to a region if it is ready there, and would end before its layer's F (step 3).
    - Of equal speed-ups, the first region wins, and there the kernel that was ready first.
    - A region where nothing is runnable goes on to when something will be, or is dropped if that is not in it. One
      without any work of the main stream is dropped at once.
    - Kernels that fit into no region run as soon as they are ready, like those that are pre-scheduled.
    - The sub stream takes all in the order of their planned starts, and none before the main stream has come to its
      region. As no kernel is planned later than its layer's F, the streams never wait for each other in a circle.
    - A kernel that ends late, or outlasts its region, runs on; those after it start later than planned.
    """
    kernels, L = np.array(kernels, np.int64), main_regions.network.layers
    if len(np.unique(kernels)) < len(kernels) or not ((kernels >= 1) & (kernels <= L)).all():
        raise ValueError(f"kernels must hold layers from 1 to {L}, each of them once, got {kernels.tolist()}")
    problem = _problem(main_regions, kernels, _speedups(speedup, kernels, main_regions))
    ks = range(k, len(main_regions) + 1)
    tried = (TwoStreams(problem, *_algorithm_1(problem, each, carry_over), each) for each in ks)
    return next(within(memory_limit, tried, "{}, which these regions and kernels need"))


def _problem(regions, kernels, speedup):
    """List the main stream's operations, and when what a kernel reads is there, and its gradient is needed."""
    net, L = regions.network, regions.network.layers
    order = np.argsort(-kernels, kind="stable")
    kernels, speedup = kernels[order], speedup[order].T
    main, sub = [], set(kernels.tolist())
    for layer in range(L, 0, -1):
        pair = [(O, layer)] if layer > 1 or regions.assumptions.first_output_grad else []
        if layer not in sub:
            pair.insert(0 if regions.assumptions.weight_grad_first else len(pair), (W, layer))
        main += pair
    main += [(F, layer) for layer in range(1, L + 1)]
    kind, layer = np.array(main, np.int64).T
    duration = np.choose(kind, [net.forward[layer - 1], net.output_grad[layer - 1], net.weight_grad[layer - 1]])
    upto = np.concatenate([[0.0], np.cumsum(duration)])
    first = np.searchsorted(regions.of(kind, layer), np.arange(len(regions) + 1))
    after = np.zeros(L + 1, np.int64)  # how many operations are over when each layer's output gradient is there
    made = np.flatnonzero((kind == O) & (layer > 1))
    after[layer[made] - 1] = made + 1
    forward = len(kind) - L + kernels - 1
    return Problem(
        regions=regions, kernels=kernels, speedup=speedup, kind=kind, layer=layer, duration=duration, first=first[:-1],
        begin=upto[first[:-1]], end=upto[first[1:]], took=net.weight_grad[kernels - 1], ready=upto[after[kernels]],
        due=upto[forward],
    )  # fmt: skip


def _algorithm_1(problem, k, carry_over):
    """Plan the sub stream: Algorithm 1, after k pre-scheduled regions.

    Returns kernels in the order of the sub stream, as places in `problem.kernels`, and where each one (in `problem`'s
    order) was put: 1 to N, or 0 if it runs as soon as it is ready.
    """
    kernels, took, ready, due, end = problem.kernels, problem.took, problem.ready, problem.due, problem.end
    N, close = len(end), 1e-12 * problem.total  # sums of the same costs in another order differ by rounding
    planned, region = ready.copy(), np.zeros(len(kernels), np.int64)
    now = problem.begin.copy()  # line 1; counted from the main stream's start
    left = problem.regions.of(W, kernels) >= k  # line 2: U
    open_ = (np.arange(N) >= k) & (end > now)  # and C
    last = problem.regions.of(F, kernels)
    fits = np.arange(N)[:, None] <= last  # a region that begins after the layer's F is none for it
    while left.any() and open_.any():  # line 3
        may = open_[:, None] & left & fits & (np.maximum(ready, now[:, None]) + took <= due + close)
        runnable = may & (ready <= now[:, None])
        stuck = open_ & ~runnable.any(axis=1)
        if stuck.any():  # not in the published text, which has nothing to append then
            now[stuck] = np.where(may[stuck], ready, np.inf).min(axis=1)
            open_ &= now < end
            continue
        # Lines 4-8: in each region the kernel with the largest speed-up, then the region where that is largest.
        j, K = divmod(int(np.argmax(np.where(runnable, problem.speedup, -1.0))), len(kernels))
        planned[K], region[K] = min(now[j], due[K]), j + 1  # line 9
        left[K] = False
        now[j] += took[K]  # line 10
        if carry_over:
            now[j + 1 :] = np.maximum(now[j + 1 :], now[j])
        open_ &= now < end  # line 11
    return np.lexsort((region, planned)), region


def _rising(name, values, most, why) -> np.ndarray:
    """Return integers that rise to their most, as a read-only array."""
    array = np.array(values, np.int64)
    if array[-1] != most or (np.diff(array, prepend=0) <= 0).any():
        raise ValueError(f"{name} must rise from 1 or more to {most}, {why}, got {array.tolist()}")
    array.flags.writeable = False
    return array


def _speedups(speedup, kernels, regions):
    shape = (len(kernels), len(regions))
    if speedup.shape != shape:
        raise ValueError(f"speedup must have shape {shape}, a row per kernel, a column per region; got {speedup.shape}")
    array = speedup.astype(np.float64)
    wrong = np.argwhere(~((array >= _LEAST) & (array <= 2)))
    if len(wrong):
        row, column = wrong[0]
        where = f"for δW{kernels[row]} in region {column + 1}"
        raise ValueError(f"speedup must be from {_LEAST} to 2, got {array[row, column]} {where}")
    return array
