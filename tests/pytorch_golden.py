"""What PyTorch computes, for machines without it: ``python tests/pytorch_golden.py`` writes golden/ anew.

It needs the bench extra.
"""

from pathlib import Path

import numpy as np


def run_pytorch(cell, num_layers, seed):
    """Return parameters, inputs, results and all gradients of a small float64 classifier, under their names."""
    import torch

    torch.manual_seed(seed)
    kind = {"rnn": torch.nn.RNN, "gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[cell]
    layers = kind(3, 5, num_layers).double()
    fc = torch.nn.Linear(5, 4).double()
    x, h0 = torch.randn(9, 2, 3).double(), torch.rand(num_layers, 2, 5).double()
    more = {"c0": torch.randn(num_layers, 2, 5).double()} if cell == "lstm" else {}
    output, last = layers(x, (h0, more["c0"]) if more else h0)
    if more:
        last, more["last_c"] = last
    logits = fc(output[-1])
    grad_logits = torch.randn(2, 4).double()
    logits.backward(grad_logits)
    named = dict(layers.named_parameters()) | {f"fc.{name}": param for name, param in fc.named_parameters()}
    tensors = {"x": x, "h0": h0, "output": output, "last": last, "logits": logits, "grad_logits": grad_logits}
    tensors |= more
    tensors |= {f"params/{name}": param for name, param in named.items()}
    tensors |= {f"grads/{name}": param.grad for name, param in named.items()}
    return {name: tensor.detach().numpy() for name, tensor in tensors.items()}


if __name__ == "__main__":
    for cell in ("rnn", "gru", "lstm"):
        for num_layers in (1, 2):
            np.savez_compressed(
                Path(__file__).parent / "golden" / f"{cell}_{num_layers}.npz", **run_pytorch(cell, num_layers, 0)
            )
