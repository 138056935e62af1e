"""The problem of Section 2: operations, who does them, what they wait for."""

from dataclasses import dataclass

import numpy as np

from bppsa_nb.machine.reprs import with_repr
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


class _Table:
    """Operations as they are listed: blocks [shape=(micro_batches, layers)] that know their numbers."""

    def __init__(self, micro_batches):
        self.micro_batches, self.count, self.blocks = micro_batches, 0, []

    def add(self, kind, layers, worker, duration):
        """List one kind for some layers (counted from 0); return the numbers [shape=(micro_batches, len(layers))]."""
        layers = np.asarray(layers, np.int64)
        shape = (self.micro_batches, len(layers))
        numbers = self.count + np.arange(shape[0] * shape[1]).reshape(shape)
        self.count += numbers.size
        micro_batch = np.broadcast_to(np.arange(self.micro_batches)[:, None], shape)
        columns = [np.full(shape, kind), np.broadcast_to(layers + 1, shape), micro_batch]
        columns += [np.broadcast_to(worker, shape), np.broadcast_to(duration, shape).astype(np.float64)]
        self.blocks.append([column.reshape(-1) for column in columns])
        return numbers

    def operations(self, needs, workers, devices, network, assumptions):
        columns = [np.concatenate(column) for column in zip(*self.blocks, strict=True)]
        return Operations(*columns, needs, tuple(workers), devices, network, assumptions)


def training(network, device, micro_batches, boundary, assumptions):
    """List one iteration of pipeline-parallel training: forward pass, then backward pass, of every micro-batch.

    Layers are on `device` [shape=(L,)]; `boundary` [shape=(L - 1,)] is what sending a layer's output to the next one's
    device takes, and the gradient back. A link carries one thing at a time; each direction has its own.
    """
    L, table = network.layers, _Table(micro_batches)
    every = np.arange(L)
    low = 0 if assumptions.first_output_grad else 1
    forward = table.add(F, every, device, network.forward)
    output = table.add(O, every[low:], device[low:], network.output_grad[low:])
    weight = table.add(W, every, device, network.weight_grad)
    crossed = np.flatnonzero((device[:-1] != device[1:]) & (boundary > 0))
    pairs = {}
    below, above = device[crossed].tolist(), device[crossed + 1].tolist()
    for a, b in zip(below, above, strict=True):
        pairs.setdefault((a, b), len(pairs))
        pairs.setdefault((b, a), len(pairs))
    devices = 1 + int(device.max())
    names = [f"GPU {d + 1}" for d in range(devices)] + [f"link {a + 1} to {b + 1}" for a, b in pairs]
    ways = zip(below, above, strict=True), zip(above, below, strict=True)
    links = [np.array([devices + pairs[way] for way in each], np.int64) for each in ways]
    sent = table.add(SF, crossed, links[0], boundary[crossed])  # of layer l's output
    back = table.add(SO, crossed + 1, links[1], boundary[crossed])  # of the gradient that layer l + 1 made

    needs = np.full((table.count, 1), -1)
    needs[forward[:, 1:], 0] = forward[:, :-1]
    incoming = np.empty((micro_batches, L), np.int64)  # what brings the gradient at each layer's output
    incoming[:, -1] = forward[:, -1]  # the loss's
    incoming[:, :-1] = output[:, 1 - low :]
    needs[sent, 0] = forward[:, crossed]
    needs[forward[:, crossed + 1], 0] = sent
    needs[back, 0] = incoming[:, crossed]
    incoming[:, crossed] = back
    needs[output, 0] = incoming[:, low:]
    needs[weight, 0] = incoming
    return table.operations(needs, names, devices, network, assumptions)


def synchronized(network, assumptions):
    """List a backward pass, synchronization and the next forward pass: worker 0 computes, worker 1 is the link."""
    L, table = network.layers, _Table(1)
    every = np.arange(L)
    low = 0 if assumptions.first_output_grad else 1
    output = table.add(O, every[low:], 0, network.output_grad[low:])[0]
    weight = table.add(W, every, 0, network.weight_grad)[0]
    sent = table.add(SW, every, 1, network.sync)[0]
    forward = table.add(F, every, 0, network.forward)[0]
    needs = np.full((table.count, 2), -1)
    needs[output[:-1], 0] = output[1:]
    needs[weight[:-1], 0] = output[1 - low :]
    needs[sent, 0] = weight
    needs[forward, 0] = sent
    needs[forward[1:], 1] = forward[:-1]
    return table.operations(needs, ("GPU", "link"), 1, network, assumptions)
