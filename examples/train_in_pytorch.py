"""Train a GRU in PyTorch, with its own layer and with ours: ``python examples/train_in_pytorch.py``.

The only line that differs is the import. Both start from the same weights and see the same batches.
"""

import time

import torch
from torch import nn

import bppsa_nb.torch

T, B, INPUTS, H, STEPS = 500, 16, 4, 20, 60


class Classifier(nn.Module):
    def __init__(self, GRU):
        super().__init__()
        self.gru = GRU(INPUTS, H, batch_first=True)
        self.head = nn.Linear(H, 2)

    def forward(self, x):
        output, h_n = self.gru(x)
        return self.head(h_n[-1])


def train(GRU):
    torch.manual_seed(0)
    model = Classifier(GRU)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses, seconds = [], []
    for _ in range(STEPS):
        x = torch.randn(B, T, INPUTS)
        y = (x[:, -20:, 0].sum(dim=1) > 0).long()
        start = time.perf_counter()
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
        losses.append(loss.item())
    return losses, sorted(seconds)[STEPS // 2]


theirs, ours = train(nn.GRU), train(bppsa_nb.torch.GRU)
print(f"median training step: torch.nn.GRU {1e3 * theirs[1]:.1f} ms, bppsa_nb.torch.GRU {1e3 * ours[1]:.1f} ms")
print(f"loss from {ours[0][0]:.3f} to {ours[0][-1]:.3f}")
print("largest difference of the losses:", f"{max(abs(a - b) for a, b in zip(theirs[0], ours[0], strict=True)):.1e}")
