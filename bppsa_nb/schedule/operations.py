"""The problem of Section 2: operations, who does them, what they wait for."""

from dataclasses import dataclass

import numpy as np

from bppsa_nb.machine.checks import with_repr
from bppsa_nb.schedule.network import Assumptions, Network

KINDS = ("F", "δO", "δW", "S[F]", "S[δO]", "S[δW]")
F, O, W, SF, SO, SW = range(6)


@with_repr("workers", "network", "kind")
@dataclass(frozen=True, eq=False)
class Operations:
    """What is to be done in one iteration, one entry per operation: arrays of int64, but `duration` of float64."""

    kind: np.ndarray  # [shape=(n,)] places in KINDS
    layer: np.ndarray  # [shape=(n,)] 1 to L; for S, the layer whose output, output or weight gradient is sent
    micro_batch: np.ndarray  # [shape=(n,)] from 0
    worker: np.ndarray  # [shape=(n,)] who does it: devices first, then links
    duration: np.ndarray  # [shape=(n,)]
    needs: np.ndarray  # [shape=(n, k)] the operations whose results it reads; -1 for none
    workers: tuple[str, ...]  # what they are called
    devices: int  # how many of them compute; the others are links
    network: Network
    assumptions: Assumptions

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def micro_batches(self) -> int:
        """How many there are."""
        return 1 + int(self.micro_batch.max())

    @property
    def synchronizes(self) -> bool:
        """Whether weight gradients are sent, and a forward pass follows (data-parallel training)."""
        return bool((self.kind == SW).any())

    @property
    def ends_forward(self) -> bool:
        """Whether gradients come first, and then the next iteration's forward pass, which needs them."""
        needs = self.needs[self.select(F)[0, 0]]
        return bool(np.isin(self.kind[needs[needs >= 0]], (W, SW)).any())

    def name(self, i: int) -> str:
        """Say which operation number i is, as in ``δO3`` or ``δO3 of micro-batch 1``."""
        kind, layer = KINDS[self.kind[i]], self.layer[i]
        label = f"{kind[:-1]}{layer}]" if kind.endswith("]") else f"{kind}{layer}"
        return label if self.micro_batches == 1 else f"{label} of micro-batch {self.micro_batch[i]}"

    def select(self, kind: int) -> np.ndarray:
        """Return the numbers of one kind's operations [shape=(micro_batches, L)]; -1 where there is none."""
        numbers = np.full((self.micro_batches, self.network.layers), -1)
        chosen = np.flatnonzero(self.kind == kind)
        numbers[self.micro_batch[chosen], self.layer[chosen] - 1] = chosen
        return numbers


def _listed(micro_batches, *blocks):
    """List kinds of operations for some layers (counted from 0) of every micro-batch.

    `blocks` have kind, layers, workers and durations. Returns columns of `Operations`, and of each block the numbers of
    its operations [shape=(micro_batches, len(layers))].
    """
    columns, numbers, count = [], [], 0
    for kind, layers, worker, duration in blocks:
        shape = (micro_batches, len(layers))
        numbers.append(count + np.arange(shape[0] * shape[1]).reshape(shape))
        count += numbers[-1].size
        parts = kind, layers + 1, np.arange(micro_batches)[:, None], worker, duration
        columns.append([np.broadcast_to(part, shape).reshape(-1) for part in parts])
    return [np.concatenate(column) for column in zip(*columns, strict=True)], numbers


def training(network, device, micro_batches, boundary, assumptions):
    """List one iteration of pipeline-parallel training: forward pass, then backward pass, of every micro-batch.

    Layers are on `device` [shape=(L,)]; `boundary` [shape=(L - 1,)] is what sending a layer's output to the next one's
    device takes, and the gradient back. A link carries one thing at a time; each direction has its own.
    """
    every, low = np.arange(network.layers), 0 if assumptions.first_output_grad else 1
    crossed = np.flatnonzero((device[:-1] != device[1:]) & (boundary > 0))
    up = list(zip(device[crossed].tolist(), device[crossed + 1].tolist(), strict=True))
    down = [(b, a) for a, b in up]
    pairs = list(dict.fromkeys(way for both in zip(up, down, strict=True) for way in both))
    devices = 1 + int(device.max())
    names = [f"GPU {d + 1}" for d in range(devices)] + [f"link {a + 1} to {b + 1}" for a, b in pairs]
    links = [np.array([devices + pairs.index(way) for way in each], np.int64) for each in (up, down)]
    columns, (forward, output, weight, sent, back) = _listed(
        micro_batches,
        (F, every, device, network.forward),
        (O, every[low:], device[low:], network.output_grad[low:]),
        (W, every, device, network.weight_grad),
        (SF, crossed, links[0], boundary[crossed]),  # of layer l's output
        (SO, crossed + 1, links[1], boundary[crossed]),  # of the gradient that layer l + 1 made
    )
    needs = np.full((len(columns[0]), 1), -1)
    needs[forward[:, 1:], 0] = forward[:, :-1]
    incoming = np.empty_like(forward)  # what brings the gradient at each layer's output
    incoming[:, -1] = forward[:, -1]  # the loss's
    incoming[:, :-1] = output[:, 1 - low :]
    needs[sent, 0] = forward[:, crossed]
    needs[forward[:, crossed + 1], 0] = sent
    needs[back, 0] = incoming[:, crossed]
    incoming[:, crossed] = back
    needs[output, 0] = incoming[:, low:]
    needs[weight, 0] = incoming
    return Operations(*columns, needs, tuple(names), devices, network, assumptions)


def synchronized(network, assumptions):
    """List a backward pass, synchronization and the next forward pass: worker 0 computes, worker 1 is the link."""
    every, low = np.arange(network.layers), 0 if assumptions.first_output_grad else 1
    columns, numbers = _listed(
        1,
        (O, every[low:], 0, network.output_grad[low:]),
        (W, every, 0, network.weight_grad),
        (SW, every, 1, network.sync),
        (F, every, 0, network.forward),
    )
    output, weight, sent, forward = (each[0] for each in numbers)
    needs = np.full((len(columns[0]), 2), -1)
    needs[output[:-1], 0] = output[1:]
    needs[weight[:-1], 0] = output[1 - low :]
    needs[sent, 0] = weight
    needs[forward, 0] = sent
    needs[forward[1:], 1] = forward[:-1]
    return Operations(*columns, needs, ("GPU", "link"), 1, network, assumptions)
