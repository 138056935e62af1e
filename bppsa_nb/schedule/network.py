"""Networks as the scheduler sees them: what each layer costs, what it keeps in memory, and what is assumed."""

from dataclasses import dataclass

import numpy as np

from bppsa_nb.machine.checks import as_array, check_amount, check_count, check_flag, check_kind
from bppsa_nb.machine.reprs import with_repr


@dataclass(frozen=True)
class Assumptions:
    """What the paper's text leaves open and makespans depend on; the defaults give the paper's numbers.

    Attributes
    ----------
    first_output_grad : bool
        Whether the first layer computes an output gradient, which nobody needs. The paper's Figure 5 does not.
    weight_grad_first : bool
        Whether a layer's δW comes before its δO where nothing is reordered, as in Algorithm 2, lines 4 and 5.
    send_after_weight_grad : bool
        Whether a layer hands its δO to another device only when its δW is done too, where nothing is reordered. That
        is what TensorFlow does (Section 6, Figure 6); fast-forwarding and zero-bubble schedules never do. It changes
        something only where δW comes after δO.
    backward_first : bool
        Whether a device without a flush prefers an output gradient to a forward pass when both could run.
    """

    first_output_grad: bool = False
    weight_grad_first: bool = True
    send_after_weight_grad: bool = True
    backward_first: bool = True

    def __post_init__(self):
        for name, value in vars(self).items():
            check_flag(name, value)


ASSUMED = Assumptions()


def check_problem(network, assumptions):
    """Raise TypeError unless they are a `Network` and `Assumptions`."""
    check_kind("network", network, Network, "a schedule.Network", repr)
    check_kind("assumptions", assumptions, Assumptions, "schedule.Assumptions", repr)


class Network:
    """The costs of layers 1 to L (Section 2).

    Parameters
    ----------
    forward : array_like [shape=(L,)]
        Times of F_1 ... F_L: each layer's forward pass, for one micro-batch.
    output_grad : array_like [shape=(L,)]
        Times of δO_1 ... δO_L: the gradient at a layer's input from the one at its output. That of the first layer
        counts only if `Assumptions.first_output_grad` says so.
    weight_grad : array_like [shape=(L,)]
        Times of δW_1 ... δW_L: the gradients of a layer's parameters.
    sync : array_like [shape=(L,)], optional
        Times of S[δW_1] ... S[δW_L]: what data-parallel training sends for each layer.
    memory : Memory, optional
        What each layer keeps; by default ``Memory(1, 1, 0)``, which counts tensors.

    Attributes
    ----------
    forward, output_grad, weight_grad, sync : np.ndarray of float64 [shape=(L,)]
        Read-only; `sync` may be None.
    memory : Memory
    layers : int
        L.

    Raises
    ------
    TypeError, ValueError
        For costs that are no numbers, negative, infinite, NaN or of different counts, for no layers, or a memory that
        is none.
    """

    def __init__(self, forward, output_grad, weight_grad, sync=None, memory=None):
        self.forward = costs("forward", forward)
        self.layers = len(self.forward)
        if not self.layers:
            raise ValueError("forward must have a cost for one layer or more, got none")
        self.output_grad = costs("output_grad", output_grad, self.layers)
        self.weight_grad = costs("weight_grad", weight_grad, self.layers)
        self.sync = None if sync is None else costs("sync", sync, self.layers)
        memory = Memory(1, 1, 0) if memory is None else memory
        check_kind("memory", memory, Memory, "a schedule.Memory", repr)
        self.memory = memory.of(self.layers)
        with np.errstate(over="ignore"):
            kinds = self.forward, self.output_grad, self.weight_grad, self.sync
            total = sum(times.sum() for times in kinds if times is not None)
        if not np.isfinite(total):
            raise ValueError("forward, output_grad, weight_grad and sync must have a finite sum, got inf")

    @classmethod
    def uniform(cls, layers, sync=None, memory=None):
        """Make a network of L `layers` whose operations cost one unit each (Figures 5, 13), and each S[δW] `sync`."""
        layers = check_count("layers", layers, 1)
        ones = np.ones(layers)
        return cls(ones, ones, ones, None if sync is None else np.full(layers, check_amount("sync", sync)), memory)

    def __repr__(self):
        return f"Network of {self.layers} layers"


@with_repr("activation", "output_grad", "weight_grad", "inner")
@dataclass(frozen=True, eq=False)
class Memory:
    """What a layer keeps in memory, for one micro-batch, in any unit (bytes, say).

    A single number holds for every layer.

    Attributes
    ----------
    activation : array_like [shape=(L,)]
        Each layer's input: kept from when it is made, or comes, until the layer's δO and δW are done.
    output_grad : array_like [shape=(L,)]
        The gradient at each layer's output: kept likewise.
    weight_grad : array_like [shape=(L,)]
        The gradients of each layer's parameters: kept from its first δW to the end, or until they are sent.
    inner : array_like [shape=(L,)]
        What each layer keeps for its δO alone, such as the input of a batch normalization or an activation function
        behind its weights: from its F until its δO is done, or its δW where it has no δO.
    """

    activation: object = 1
    output_grad: object = 1
    weight_grad: object = 0
    inner: object = 0

    def __post_init__(self):
        for name, part in vars(self).items():
            spread(f"memory.{name}", part, None)

    def of(self, layers):
        """Return the same with arrays of float64 [shape=(L,)], checked."""
        parts = {name: spread(f"memory.{name}", part, layers) for name, part in vars(self).items()}
        with np.errstate(over="ignore"):
            if not np.isfinite(sum(part.sum() for part in parts.values())):
                raise ValueError("memory must have a finite sum, got inf")
        return Memory(**parts)


def spread(name, value, length, of="layer"):
    """Return an array of `costs`, of which one number alone is for all."""
    if np.isscalar(value):
        value = np.full(1 if length is None else length, check_amount(name, value))
    return costs(name, value, length, of)


def costs(name, values, length=None, of="layer"):
    """Return numbers that are neither negative nor infinite nor NaN, as a read-only array of float64."""
    array = as_array(name, values)
    if not np.issubdtype(array.dtype, np.number) or np.iscomplexobj(array):
        raise TypeError(f"{name} must hold real numbers, got {values!r}")
    if array.ndim != 1 or length not in (None, len(array)):
        expected = f"one number per {of}" if length is None else f"{length} numbers, one per {of}"
        raise ValueError(f"{name} must hold {expected}, got shape {array.shape}")
    array = array.astype(np.float64)
    wrong = np.flatnonzero(~(np.isfinite(array) & (array >= 0)))
    if len(wrong):
        raise ValueError(f"{name} must be finite and not negative, got {array[wrong[0]]} for {of} {wrong[0] + 1}")
    array.flags.writeable = False
    return array


def transfer_time(size, bandwidth, latency=0.0):
    """Compute the time to send something over a link.

    Parameters
    ----------
    size : float or array_like
        Bytes.
    bandwidth : float
        Bytes per unit of time.
    latency : float
        Time until the first byte arrives.

    Returns
    -------
    float or np.ndarray
        ``latency + size / bandwidth``.

    Raises
    ------
    ValueError
        For a size or latency below 0, a bandwidth that is not above 0, or so low that the time is infinite.
    """
    latency, rate = check_amount("latency", latency), check_amount("bandwidth", bandwidth)
    if rate == 0:
        raise ValueError(f"bandwidth must be above 0, got {bandwidth}")
    size = np.float64(check_amount("size", size)) if np.isscalar(size) else costs("size", size)
    with np.errstate(over="ignore"):
        time = latency + size / rate
    if not np.isfinite(time).all():
        raise ValueError(f"bandwidth must be high enough for size to be sent in finite time, got {bandwidth}")
    return time if np.ndim(time) else float(time)
