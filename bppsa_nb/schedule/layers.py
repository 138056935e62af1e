"""A network of operators as the scheduler's layers: what F, δO and δW compute there, and what they cost."""

from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike

from bppsa_nb.machine.arguments import Size, checked
from bppsa_nb.machine.checks import check_array, check_finite, check_kind
from bppsa_nb.networks import network as chains
from bppsa_nb.networks.network import param_shapes
from bppsa_nb.schedule.network import Memory, Network
from bppsa_nb.schedule.operations import F, O, W
from bppsa_nb.schedule.steps import Steps
from bppsa_nb.training.loss import check_labels


class Layer:
    """Neighboring operators that are scheduled as one layer, of which only the last may have parameters; see `split`.

    `shapes` are one sample's at the first operator's input and after every operator. `params` has the shapes of
    parameters by their names in the network, and `masks` say which weights are kept, of those that they have.
    """

    def __init__(self, operators, shapes: tuple[tuple[int, ...], ...], dtype: np.dtype, masks=None):
        self._operators, self.dtype = tuple(operators), dtype
        self.input_shape, self.output_shape = shapes[0], shapes[-1]
        last = self._operators[-1]
        self.params = param_shapes([last])
        self._pruned = {name: ~mask for name, mask in (masks or {}).items() if name in self.params}

    def __repr__(self):
        return f"Layer({', '.join(operator.name for operator in self._operators)})"

    def forward(self, x, params):
        """Compute F of x [shape=(B, ...)], with parameters in the order of `Layer.params`.

        Returns what δO and δW read: the input, and the output of every operator, the last of which is the layer's.
        Raises FloatingPointError if it leaves the range of the dtype.
        """
        kept = [x]
        for operator in self._operators:
            kept.append(operator.forward(kept[-1], *(params if operator.param_shapes else ())))
        if self.params and not np.isfinite(kept[-1]).all():  # found where it arises, as in Network.forward
            raise FloatingPointError(f"the output of {self._operators[-1].name!r} overflows {self.dtype}")
        return kept

    def output_grad(self, kept, grad, params):
        """Compute δO: turn the gradient at the layer's output into the one at its input; `forward` returned `kept`."""
        for operator, x, y in zip(self._operators[::-1], kept[-2::-1], kept[:0:-1], strict=True):
            grad = operator.backward(grad, x, y, *(params if operator.param_shapes else ()))
        return grad

    def weight_grad(self, kept, grad):
        """Compute δW: the gradients of `Layer.params`, summed over the batch; zero where masks prune."""
        if not self.params:
            return []
        grads = list(self._operators[-1].parameter_gradients(grad, kept[-2]))
        for place, name in enumerate(self.params):
            if name in self._pruned:
                grads[place][self._pruned[name]] = 0
        return grads


def _chain(network, name):
    """Return a network, or raise TypeError unless it is the chain of its operators, and nothing else."""
    check_kind(name, network, chains.Network, "a chain of operators, as bppsa_nb.sparse.Network is", repr)
    for own in ("forward", "backward"):
        if getattr(type(network), own) is not getattr(chains.Network, own):
            raise TypeError(f"{name} must be the chain of its operators, got a {own} of its own in {network!r}")
    return network


Chain = Annotated[chains.Network, _chain]


@checked
def split(network: Chain) -> list[Layer]:
    """Group a network's operators into layers 1 to L.

    Each layer ends with an operator that has parameters, and begins with those before it that have none. So the
    gradient at its output is the one that δW needs, and δO goes through all of it. Operators without parameters at
    the network's end are the last layer, whose δW is nothing.
    """
    layers, first, operators = [], 0, network.operators
    for i, operator in enumerate(operators):
        if operator.param_shapes or i == len(operators) - 1:
            shapes = network.shapes[first : i + 2]
            layers.append(Layer(operators[first : i + 1], shapes, network.dtype, network.masks))
            first = i + 1
    return layers


@checked
def profile(
    network: Chain, x: Annotated[np.ndarray, "float[B, ...]"], labels: Annotated[ArrayLike, "int[n]"], rounds: Size = 7
) -> Network:
    """Measure what a network's layers cost on this machine.

    Parameters
    ----------
    network
        Such as a `sparse.Network`.
    x
        One micro-batch, in the network's dtype: images (B, C, H, W).
    labels
        Their classes.
    rounds
        How many forward and backward passes are timed; the one that comes first does not count.

    Returns
    -------
    schedule.Network
        For the layers of `split`: medians in seconds, with BLAS on one thread; F of the last layer includes the
        loss. Memory in bytes: inputs and outputs of the operators before the one with parameters, whose output is
        the next layer's input, all of them as `activation`, since an `Executor` keeps what a layer saved until both of
        its gradients are done; the gradient at its output; those of its parameters. For data-parallel training, give
        another one `sync`, such as ``transfer_time(net.memory.weight_grad, bandwidth)``.

    Raises
    ------
    FloatingPointError
        If an output leaves the range of the dtype.
    """
    from bppsa_nb.machine.workers import one_blas_thread

    layers = split(network)
    check_array("x", x, network.dtype, ("B", *layers[0].input_shape))
    check_finite(x=x)
    L = len(layers)
    back = [(kind, number) for number in range(L, 0, -1) for kind in (W, O)]
    program = [(i, *each, 0) for i, each in enumerate([*((F, number) for number in range(1, L + 1)), *back])]
    steps, measured = Steps(dict(enumerate(layers, 1)), L, program, [slice(None)], share=1), []
    batch, times = (x, check_labels(labels, len(x), layers[-1].output_shape[0])), np.empty((3 * L, 2))
    with one_blas_thread():
        for _ in range(rounds + 1):
            steps.run(network.params, batch, None, times)
            measured.append(times[:, 1] - times[:, 0])
    seconds, kept = np.median(measured[1:], axis=0), [[x]]
    with np.errstate(all="ignore"):
        for layer in layers:
            kept.append(layer.forward(kept[-1][-1], [network.params[name] for name in layer.params]))
    forward, (weight_grad, output_grad) = seconds[:L], seconds[L:].reshape(L, 2)[::-1].T
    weight_grad[[not layer.params for layer in layers]] = 0
    itemsize = network.dtype.itemsize
    memory = Memory(
        activation=[_bytes(each[:-1] if layer.params else each) for layer, each in zip(layers, kept[1:], strict=True)],
        output_grad=[len(x) * int(np.prod(layer.output_shape)) * itemsize for layer in layers],
        weight_grad=[sum(int(np.prod(shape)) for shape in layer.params.values()) * itemsize for layer in layers],
    )
    return Network(forward, output_grad, weight_grad, memory=memory)


def _bytes(arrays):
    """Add up the sizes of arrays; views of one memory, as Flatten makes them, count once."""
    return sum({array.__array_interface__["data"][0]: array.nbytes for array in arrays}.values())
