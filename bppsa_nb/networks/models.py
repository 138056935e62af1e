"""The paper's convolutional networks, for images of 32 x 32 pixels in three colors and ten classes."""

import numpy as np

from bppsa_nb.machine.arguments import Dtype, Rng
from bppsa_nb.networks.layers import Conv2d, Flatten, Linear, MaxPool2d, Operator, ReLU
from bppsa_nb.networks.network import Network


class LeNet5(Network):
    """LeNet-5 (LeCun et al., 1998), as PyTorch's tutorials train it on CIFAR-10 (Figure 6).

    Two 5 x 5 convolutions of 6 and 16 channels, each with ReLU and max-pooling, and three linear operators of 120, 84
    and 10 outputs with ReLU between them. Parameters are called ``conv1``, ``conv2``, ``fc1``, ``fc2`` and ``fc3``,
    and begin as PyTorch's do by default. The scan goes through all of it.

    Parameters
    ----------
    rng, dtype
        Where the initial parameters come from, and what they are: float32 or float64.
    """

    def __init__(self, rng: Rng = 0, dtype: Dtype = np.float32):
        operators = [
            Conv2d("conv1", 3, 6, 5), ReLU("relu1"), MaxPool2d("pool1", 2),
            Conv2d("conv2", 6, 16, 5), ReLU("relu2"), MaxPool2d("pool2", 2), Flatten("flatten"),
            Linear("fc1", 400, 120), ReLU("relu3"), Linear("fc2", 120, 84), ReLU("relu4"), Linear("fc3", 84, 10),
        ]  # fmt: skip
        super().__init__((3, 32, 32), operators, rng=rng, dtype=dtype)


class VGG11(Network):
    """VGG-11 (Simonyan & Zisserman, 2015) for images of 32 x 32 pixels (Section 4.3).

    Eight 3 x 3 convolutions of 64, 128, 256, 256 and four times 512 channels, each with ReLU, five of them with
    max-pooling: 21 operators, ``features.0`` to ``features.20``, through which the scan goes. Then three linear
    operators of 512, 512 and 10 outputs with ReLU between them, ``classifier.1`` to ``classifier.6``; their gradients
    are found by ordinary backward, as in the paper. The numbers are PyTorch's; 0 and 3 of the classifier are dropout
    there, which is left out here. Weights begin by He initialization, biases as zeros.

    Parameters
    ----------
    rng, dtype
        As for `LeNet5`.
    """

    def __init__(self, rng: Rng = 0, dtype: Dtype = np.float32):
        operators: list[Operator] = []
        channels = 3
        for entry in (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"):
            if entry == "M":
                operators.append(MaxPool2d(f"features.{len(operators)}", 2))
            else:
                operators.append(Conv2d(f"features.{len(operators)}", channels, entry, 3, padding=1))
                operators.append(ReLU(f"features.{len(operators)}"))
                channels = entry
        scan_until = operators[-1].name
        operators += [
            Flatten("flatten"), Linear("classifier.1", 512, 512), ReLU("classifier.2"),
            Linear("classifier.4", 512, 512), ReLU("classifier.5"), Linear("classifier.6", 512, 10),
        ]  # fmt: skip
        super().__init__((3, 32, 32), operators, scan_until=scan_until, init="he", rng=rng, dtype=dtype)
