"""Sparse transposed Jacobians: made analytically, multiplied by plan, and the networks that train with them."""

from bppsa_nb.machine import lazy as _lazy

__getattr__, __dir__, __all__ = _lazy.names(
    __name__,
    {
        "networks.layers": ["AvgPool2d", "Conv2d", "Flatten", "Linear", "MaxPool2d", "ReLU", "Sigmoid", "Tanh"],
        "operands.pattern": ["CSRPattern", "PlannedProduct"],
        "networks.models": ["LeNet5", "VGG11"],
        "networks.network": ["Network"],
        "networks.matrices": [
            "avg_pool2d_jacobian_T",
            "conv2d_jacobian_T",
            "flatten_jacobian_T",
            "kinds_of_zeros",
            "linear_jacobian_T",
            "max_pool2d_jacobian_T",
            "relu_jacobian_T",
            "sigmoid_jacobian_T",
            "tanh_jacobian_T",
        ],
        "networks.weights": ["load_weights", "save_weights"],
        "networks.pruning": ["masks_of", "prune"],
    },
)
