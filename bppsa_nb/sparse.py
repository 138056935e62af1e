"""Sparse transposed Jacobians: made analytically, multiplied by plan, and the networks that train with them."""

from importlib import import_module as _import_module

_HOME = {
    "AvgPool2d": "networks.layers",
    "CSRPattern": "operands.pattern",
    "Conv2d": "networks.layers",
    "Flatten": "networks.layers",
    "LeNet5": "networks.models",
    "Linear": "networks.layers",
    "MaxPool2d": "networks.layers",
    "Network": "networks.network",
    "PlannedProduct": "operands.pattern",
    "ReLU": "networks.layers",
    "Sigmoid": "networks.layers",
    "Tanh": "networks.layers",
    "VGG11": "networks.models",
    "avg_pool2d_jacobian_T": "networks.matrices",
    "conv2d_jacobian_T": "networks.matrices",
    "flatten_jacobian_T": "networks.matrices",
    "kinds_of_zeros": "networks.matrices",
    "linear_jacobian_T": "networks.matrices",
    "load_weights": "networks.weights",
    "masks_of": "networks.pruning",
    "max_pool2d_jacobian_T": "networks.matrices",
    "prune": "networks.pruning",
    "relu_jacobian_T": "networks.matrices",
    "save_weights": "networks.weights",
    "sigmoid_jacobian_T": "networks.matrices",
    "tanh_jacobian_T": "networks.matrices",
}
__all__ = sorted(_HOME)


def __getattr__(name):
    # Names load on first use (PEP 562): numbers of a pattern are asked for where Numba is not wanted.
    if name not in _HOME:
        raise AttributeError(f"module 'bppsa_nb.sparse' has no attribute {name!r}")
    value = getattr(_import_module(f"bppsa_nb.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted([*globals(), *__all__])
