"""Networks as the scheduler sees them: what each layer costs, what it keeps in memory, and what is assumed."""

from dataclasses import dataclass
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from bppsa_nb.machine.arguments import Size, checked
from bppsa_nb.machine.checks import check_kind, with_repr
from bppsa_nb.networks import network as chains
from bppsa_nb.networks.layers import Operator

Amount = Annotated[float, ">= 0"]
Amounts = Annotated[ArrayLike, "real[L]"]
OneOrMore = Annotated[ArrayLike, "real[...]"]  # one number for every layer, or one for all


@checked
@dataclass(frozen=True)
class Assumptions:
    """What the paper's text leaves open and makespans depend on; the defaults give the paper's numbers.

    Attributes
    ----------
    first_output_grad
        Whether the first layer computes an output gradient, which nobody needs. The paper's Figure 5 does not.
    weight_grad_first
        Whether a layer's δW comes before its δO where nothing is reordered, as in Algorithm 2, lines 4 and 5.
    """

    first_output_grad: bool = False
    weight_grad_first: bool = True


ASSUMED = Assumptions()


@with_repr("activation", "output_grad", "weight_grad", "inner")
@checked
@dataclass(frozen=True, eq=False)
class Memory:
    """What a layer keeps in memory, for one micro-batch, in any unit (bytes, say).

    A single number holds for every layer.

    Attributes
    ----------
    activation
        Each layer's input: kept from when it is made, or comes, until the layer's δO and δW are done.
    output_grad
        The gradient at each layer's output: kept likewise.
    weight_grad
        The gradients of each layer's parameters: kept from its first δW to the end, or until they are sent.
    inner
        What each layer keeps for its δO alone, such as the input of a batch normalization or an activation function
        behind its weights: from its F until its δO is done, or its δW where it has no δO.
    """

    activation: OneOrMore = 1
    output_grad: OneOrMore = 1
    weight_grad: OneOrMore = 0
    inner: OneOrMore = 0

    def __post_init__(self):
        for name, part in vars(self).items():
            amounts(name, part)

    def of(self, layers: int) -> Self:
        """Return the same with arrays of float64 [shape=(L,)], checked."""
        parts = {name: spread(f"memory.{name}", part, layers) for name, part in vars(self).items()}
        with np.errstate(over="ignore"):
            if not np.isfinite(sum(part.sum() for part in parts.values())):
                raise ValueError("memory must have a finite sum, got inf")
        return type(self)(**parts)


class Network:
    """The costs of layers 1 to L (Section 2).

    Parameters
    ----------
    forward
        Times of F_1 ... F_L: each layer's forward pass, for one micro-batch.
    output_grad
        Times of δO_1 ... δO_L: the gradient at a layer's input from the one at its output. The first layer's counts
        only if `Assumptions.first_output_grad` says so.
    weight_grad
        Times of δW_1 ... δW_L: the gradients of a layer's parameters.
    sync
        Times of S[δW_1] ... S[δW_L]: what data-parallel training sends for each layer.
    memory
        What each layer keeps; by default ``Memory(1, 1, 0)``, which counts tensors.

    Attributes
    ----------
    forward, output_grad, weight_grad, sync : np.ndarray of float64 [shape=(L,)]
        Read-only; `sync` may be None.
    memory : Memory
    layers : int
        L.
    """

    @checked
    def __init__(
        self, forward: Amounts, output_grad: Amounts, weight_grad: Amounts, sync: Amounts | None = None,
        memory: Memory | None = None,
    ):  # fmt: skip
        self.forward, self.output_grad = amounts("forward", forward), amounts("output_grad", output_grad)
        self.weight_grad = amounts("weight_grad", weight_grad)
        self.sync = None if sync is None else amounts("sync", sync)
        self.layers = len(self.forward)
        self.memory = (memory or Memory(1, 1, 0)).of(self.layers)
        with np.errstate(over="ignore"):
            kinds = self.forward, self.output_grad, self.weight_grad, self.sync
            total = sum(times.sum() for times in kinds if times is not None)
        if not np.isfinite(total):
            raise ValueError("forward, output_grad, weight_grad and sync must have a finite sum, got inf")

    @classmethod
    @checked
    def uniform(cls, layers: Size, sync: Amount | None = None, memory: Memory | None = None) -> Self:
        """Make a network of L `layers` whose operations cost one unit each (Figures 5, 13), and each S[δW] `sync`."""
        ones = np.ones(layers)
        return cls(ones, ones, ones, None if sync is None else np.full(layers, sync), memory)

    def __repr__(self):
        return f"Network of {self.layers} layers"


def amounts(name, array, of="layer") -> np.ndarray:
    """Return numbers that are neither negative nor infinite nor NaN, as a read-only array of float64."""
    array = np.array(array, np.float64)
    wrong = np.argwhere(~(np.isfinite(array) & (array >= 0)))
    if len(wrong):
        where = f" for {of} {wrong[0][0] + 1}" if array.ndim else ""
        raise ValueError(f"{name} must be finite and not negative, got {array[tuple(wrong[0])]}{where}")
    array.flags.writeable = False
    return array


def spread(name, array, length, of="layer") -> np.ndarray:
    """Return an array of `amounts`, of which one alone is for all."""
    array = amounts(name, array, of)
    if array.shape not in ((), (length,)):
        raise ValueError(f"{name} must hold {length} numbers, one per {of}, got shape {array.shape}")
    return np.broadcast_to(array, length)


@checked
def transfer_time(size: OneOrMore, bandwidth: Annotated[float, "> 0"], latency: Amount = 0.0) -> Any:
    """Compute the time to send something over a link: ``latency + size / bandwidth``.

    Parameters
    ----------
    size
        Bytes. An array of sizes gives an array of times, one size a float.
    bandwidth
        Bytes per unit of time.
    latency
        Time until the first byte arrives.
    """
    with np.errstate(over="ignore"):
        time = latency + amounts("size", size, "entry") / bandwidth
    if not np.isfinite(time).all():
        raise ValueError(f"bandwidth must be high enough for size to be sent in finite time, got {bandwidth}")
    return time if time.ndim else float(time)


def _chain(network, name):
    """Return a network, or raise TypeError unless it is the chain of its operators, and nothing else."""
    check_kind(name, network, chains.Network, "a chain of operators, as bppsa_nb.sparse.Network is", repr)
    for own in ("forward", "backward"):
        if getattr(type(network), own) is not getattr(chains.Network, own):
            raise TypeError(f"{name} must be the chain of its operators, got a {own} of its own in {network!r}")
    return network


@checked
def split(network: Annotated[chains.Network, _chain]) -> list[tuple[Operator, ...]]:
    """Group a network's operators into layers 1 to L.

    Each layer ends with an operator that has parameters, and begins with those before it that have none. So the
    gradient at its output is the one that δW needs, and δO goes through all of it. Operators without parameters at
    the network's end are the last layer, whose δW is nothing.
    """
    layers: list[tuple[Operator, ...]] = []
    first, operators = 0, network.operators
    for end, operator in enumerate(operators, 1):
        if operator.param_shapes or end == len(operators):
            layers.append(operators[first:end])
            first = end
    return layers
