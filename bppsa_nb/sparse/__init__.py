"""Sparse transposed Jacobians: made analytically, multiplied by plan, and the networks that train with them."""

from importlib import import_module as _import_module

_HOME = {
    "AvgPool2d": "layers",
    "CSRPattern": "pattern",
    "Conv2d": "layers",
    "Flatten": "layers",
    "LeNet5": "models",
    "Linear": "layers",
    "MaxPool2d": "layers",
    "Network": "network",
    "PlannedProduct": "products",
    "ReLU": "layers",
    "Sigmoid": "layers",
    "Tanh": "layers",
    "VGG11": "models",
    "avg_pool2d_jacobian_T": "matrices",
    "conv2d_jacobian_T": "matrices",
    "flatten_jacobian_T": "matrices",
    "kinds_of_zeros": "matrices",
    "linear_jacobian_T": "matrices",
    "load_weights": "weights",
    "masks_of": "pruning",
    "max_pool2d_jacobian_T": "matrices",
    "prune": "pruning",
    "relu_jacobian_T": "matrices",
    "save_weights": "weights",
    "sigmoid_jacobian_T": "matrices",
    "tanh_jacobian_T": "matrices",
}
__all__ = sorted(_HOME)


def __getattr__(name):
    # Names load on first use (PEP 562): numbers of a pattern are asked for where Numba is not wanted.
    if name not in _HOME:
        raise AttributeError(f"module 'bppsa_nb.sparse' has no attribute {name!r}")
    value = getattr(_import_module(f"bppsa_nb.sparse.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted([*globals(), *__all__])
