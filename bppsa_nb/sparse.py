"""Sparse transposed Jacobians: made analytically, multiplied by plan, and the networks that train with them."""

from bppsa_nb.machine import dispatch as _dispatch

_OPERATORS = "avg_pool2d", "conv2d", "flatten", "linear", "max_pool2d", "relu", "sigmoid", "tanh"
_NAMES = {
    "networks.layers": ["AvgPool2d", "Conv2d", "Flatten", "Linear", "MaxPool2d", "ReLU", "Sigmoid", "Tanh"],
    "networks.matrices": ["kinds_of_zeros", *(f"{operator}_jacobian_T" for operator in _OPERATORS)],
    "networks.weights": ["load_weights", "save_weights"], "networks.pruning": ["masks_of", "prune"],
    "networks.network": ["Network"], "networks.models": ["LeNet5", "VGG11"],
    "operands.pattern": ["CSRPattern", "PlannedProduct"],
}  # fmt: skip
__getattr__, __dir__, __all__ = _dispatch.names(__name__, _NAMES)
