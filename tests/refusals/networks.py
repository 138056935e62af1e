"""What sparse Jacobians, networks of operators and residual networks refuse."""

from fractions import Fraction

import numpy as np
from garbage import numbers

from bppsa_nb import sparse
from bppsa_nb.networks.network import Activations

SPOILED = np.where(np.arange(12).reshape(1, 3, 4) == 6, np.nan, 1)
READ_ONLY = np.broadcast_to(np.ones((1, 1)), (2, 2))
LAYERS = np.zeros((4, 3, 3, 2, 2), np.float32)
BEYOND = (2**31, 2**63, (1, 10**30))

ROWS = [
    *(
        (name, {option: value}, rf"ValueError: {option} must be less than 2\*\*31, got")
        for name in ("conv2d_jacobian_T", "Conv2d")
        for option in ("stride", "padding", "dilation")
        for value in BEYOND
    ),
    ("conv2d_jacobian_T", {"input_shape": (3, 5, 5)}, r"ValueError: .* 2 channels as the filters have, .*\(3, 5, 5\)"),
    ("conv2d_jacobian_T", {"input_shape": (2, 5)}, r"ValueError: input_shape .* 3 sizes, \(C, h, w\), .* got \(2, 5\)"),
    ("conv2d_jacobian_T", {"input_shape": (2, 0, 5)}, r"ValueError: .* at least 1, got \(2, 0, 5\)"),
    ("conv2d_jacobian_T", {"input_shape": (2, 2.0, 5)}, "TypeError: input_shape must be a tuple of integers"),
    ("conv2d_jacobian_T", {"input_shape": (2, 10**30, 5)}, r"ValueError: input_shape must .* less than 2\*\*31"),
    ("conv2d_jacobian_T", {"input_shape": (2, 2, 5), "padding": 0}, "ValueError: kernel .* larger .* got 3 for 2$"),
    ("conv2d_jacobian_T", {"input_shape": (2, 2, 5), "dilation": 2}, r"ValueError: .*3 \(dilated: 5\) for 2 \+ 2 \* 1"),
    ("conv2d_jacobian_T", {"stride": (1, 2, 3)}, "TypeError: stride must be an integer or two"),
    ("relu_jacobian_T", {"x": SPOILED}, r"ValueError: x must be finite, got nan at \[0, 1, 2\]"),
    ("relu_jacobian_T", {"x": -np.inf * np.ones(3)}, r"ValueError: x must be finite, got -inf at \[0\]"),
    ("relu_jacobian_T", {"x": np.ones(())}, r"ValueError: x must have one axis or more, .* got shape \(\)"),
    ("tanh_jacobian_T", {"y": np.ones((2, 0))}, r"ValueError: y must have .* none .* empty, got shape \(2, 0\)"),
    ("tanh_jacobian_T", {"y": SPOILED}, "ValueError: y must be finite"),
    ("tanh_jacobian_T", {"y": np.array([0, 2.5])}, "ValueError: y must be the output of tanh.* from 0.0 to 2.5"),
    ("tanh_jacobian_T", {"y": np.array([-1.5, 0])}, "ValueError: y must be the output of tanh.* from -1.5 to 0.0"),
    ("sigmoid_jacobian_T", {"y": np.array([-0.5, 0.5])}, "ValueError: y must be the output of sigmoid, from 0 to 1"),
    ("sigmoid_jacobian_T", {"y": np.array([0.5, 1.5])}, "ValueError: y must be the output of sigmoid, from 0 to 1"),
    ("max_pool2d_jacobian_T", {"x": SPOILED}, r"ValueError: x must be finite, got nan at \[0, 1, 2\]"),
    ("max_pool2d_jacobian_T", {"x": SPOILED[0]}, r"ValueError: x must have shape \(C, h, w\), .* \(3, 4\)"),
    ("max_pool2d_jacobian_T", {"x": SPOILED[:0]}, r"ValueError: x must have shape .* empty .* \(0, 3, 4\)"),
    ("max_pool2d_jacobian_T", {"kernel_size": 5}, "ValueError: kernel must not be larger"),
    ("flatten_jacobian_T", {"input_shape": (2, -1)}, r"ValueError: .* at least 1, got \(2, -1\)"),
    ("Linear", {"in_features": 10**30}, r"ValueError: \(in_features, out_features\) must .* less than 2\*\*31"),
    ("Conv2d", {"stride": (1, 2, 3)}, "TypeError: stride must be an integer or two"),
    ("Network", {"operators": []}, "ValueError: operators must be one or more, got none"),
    ("Network", {"operators": [sparse.ReLU("a"), None]}, r"TypeError: operators\[1\] must be an operator, .* got None"),
    ("Network", {"operators": sparse.ReLU("l")}, r"TypeError: operators must be a list .* got ReLU\('l'\)"),
    ("Network", {"operators": [sparse.ReLU("a")] * 2}, r"ValueError: operators must have names of their own, .*'a'"),
    ("Network", {"input_shape": (0, 4, 4)}, "ValueError: input_shape must be sizes, each at least 1"),
    *(
        ("Network", {"input_shape": shape, "operators": [operator], "scan_until": None}, f"ValueError: .*{message}")
        for shape, operator, message in (
            ((1, 4, 4), sparse.Conv2d("c", 1, 1, 3), r"but 'c' has an output of shape \(1, 2, 2\)"),
            ((4,), sparse.Linear("a", 3, 2), r"operator 'a' needs an input of shape \(3,\)"),
            ((3, 1), sparse.Linear("a", 3, 2), r"operator 'a' needs an input of shape \(3,\)"),
            ((3, 4, 4), sparse.Conv2d("c", 2, 1, 1), r"'c' needs an input of shape \(2, h, w\)"),
            ((2,), sparse.Conv2d("c", 2, 1, 1), r"'c' needs an input of shape \(2, h, w\)"),
            ((5,), sparse.AvgPool2d("a", 1), r"'a' needs an input of shape \(C, h, w\)"),
            ((1, 3, 2), sparse.Conv2d("c", 1, 1, 3, 1, 1, 2), r"'c' .* covers \(5, 5\), larger .* input of \(5, 4\)"),
            ((1, 2, 5), sparse.MaxPool2d("m", 3), r"'m' has a kernel that covers \(3, 3\)"),
        )
    ),
    ("Network.jacobian", {"name": "conv9"}, "ValueError: name must be one of .* got 'conv9'"),
    ("Network.forward", {"x": np.zeros((2, 1, 4, 4))}, "TypeError: x .* the model's dtype float32, got float64"),
    ("Network.forward", {"x": numbers(2, 1, 4, 5)}, r"ValueError: x must have shape \(B, 1, 4, 4\), got \(2"),
    ("Network.forward", {"x": numbers(1, 4, 4)}, r"ValueError: x must .* got \(1, 4, 4\); one sample is x\[None\]"),
    ("Network.forward", {"x": numbers(0, 1, 4, 4)}, "ValueError: x must hold at least one sample"),
    ("Network.backward", {"method": "fast"}, "ValueError: .*'auto', 'ordinary', 'linear', .*, 'chunked', got 'fast'"),
    ("Network.backward", {"method": ["linear"]}, r"ValueError: method must be one of .* got \['linear'\]"),
    ("Network.backward", {"method": "auto", "backend": "tpu", "levels": None}, "ValueError: backend .* got 'tpu'"),
    ("Network.backward", {"levels": None}, "ValueError: levels must be an integer >= 0"),
    ("Network.backward", {"method": "ordinary"}, "ValueError: levels is for method='truncated' only"),
    ("Network.backward", {"method": "linear"}, "ValueError: levels is for method='truncated' only"),
    ("Network.backward", {"activations": numbers(3)}, "TypeError: activations must come from Network.forward"),
    ("Network.backward", {"activations": Activations(numbers(2, 1, 4, 4), ())}, "ValueError: .* a tuple of 5 arrays"),
    ("Network.backward", {"activations": Activations(numbers(2, 1, 4, 4), (numbers(2),) * 6)}, "ValueError: .* of 5 a"),
    ("prune", {"params": {"z": np.ones((2, 2), int)}}, r"TypeError: params\['z'\] .* floating point .* int64"),
    ("prune", {"params": {"z": [[1.0]]}}, r"TypeError: params\['z'\] must be a numpy.ndarray, got list"),
    ("prune", {"params": {"z": READ_ONLY}}, r"ValueError: params\['z'\] must be writable"),
    ("prune", {"params": {"a": np.ones(3), "b": np.ones(2)}}, r"ValueError: params must hold weights, .*'b'"),
    ("load_weights", {"path": "nowhere.npz"}, "FileNotFoundError"),
    *((f"{use}_weights", {"model": sparse.LeNet5}, "TypeError: model must be ") for use in ("load", "save")),
    ("ResidualNetwork", {"weights": np.ma.zeros((4, 3, 3))}, "TypeError: weights must be .* got MaskedArray"),
    ("ResidualNetwork", {"weights": LAYERS[..., 0]}, r"ValueError: .*got \(4, 3, 3, 2\)"),
    ("ResidualNetwork", {"weights": LAYERS[..., :1]}, r"ValueError: .*got \(4, 3, 3, 2, 1\)"),
    ("ResidualNetwork", {"weights": LAYERS}, r"ValueError: .*odd size.*got \(2, 2\)"),
    *(
        ("ResidualNetwork", {"h": h}, f"ValueError: h must be positive and finite in float32, got {str(h)[:9]}")
        for h in (0, np.inf, 1e-39, 10**400, Fraction(1, 10**400))
    ),
    ("ResidualNetwork", {"activation": np.array(["tanh"])}, r"ValueError: activation .* got <U4\[1\]"),
    ("ResidualNetwork.parameter_gradients", {"gradients": numbers(5, 1, 3)}, r"ValueError: gradients .*\(5, 1, 3\)"),
]
