"""Residual networks layer by layer, ours and PyTorch's, and by two cycles of multigrid, in one run.

Install the peer with ``pip install -e '.[bench]'``, then run ``python benchmarks/multigrid.py``. In a turn, everybody
propagates forward, propagates gradients back, and computes the gradients of the parameters; PyTorch does the last two
at once. Results are compared first.
"""

import argparse

import numpy as np
import torch
from turns import quartiles, take_turns

from bppsa_nb import multigrid

CASES = {  # layers, shape of the state, size of the kernel, dtype
    "narrow": (1024, (16, 16), 0, np.float32),
    "dense": (256, (32, 128), 0, np.float32),
    "dense, double": (256, (32, 128), 0, np.float64),
    "wide": (64, (64, 256), 0, np.float32),
    "3 x 3": (64, (4, 8, 28, 28), 3, np.float32),
    "7 x 7": (64, (4, 8, 28, 28), 7, np.float32),
}


def ours(net, u0, grad_output):
    """Return the stages of ordinary propagation, those of two cycles, and where results are left."""
    kept = {}

    def parameters():
        kept["grads"] = net.parameter_gradients(kept["states"], kept["gradients"], backend="cpu")

    def forward():
        kept["states"] = net.forward(u0, backend="cpu")

    def backward():
        kept["gradients"] = net.backward(kept["states"], grad_output, backend="cpu")

    def solve():
        kept["states"] = multigrid.solve(net, u0, cycles=2, backend="cpu").states

    def solve_adjoint():
        found = multigrid.solve_adjoint(net, kept["states"], grad_output, cycles=2, backend="cpu")
        kept["gradients"] = found.states

    return [forward, backward, parameters], [solve, solve_adjoint, parameters], kept


def peer(net, u0, grad_output):
    """Return PyTorch's stages, and where results are left."""
    weights, biases = (
        [torch.tensor(each, requires_grad=True) for each in array] for array in (net.weights, net.biases)
    )
    u0, grad_output = torch.from_numpy(u0), torch.from_numpy(grad_output)
    kept = {}

    def forward():
        u = u0
        for weight, bias in zip(weights, biases, strict=True):
            if u.ndim == 4:
                z = torch.nn.functional.conv2d(u, weight, bias, padding="same")
            else:
                z = torch.nn.functional.linear(u, weight, bias)
            u = torch.add(u, torch.tanh(z), alpha=net.h)
        kept["state"] = u

    def backward():
        for parameter in (*weights, *biases):
            parameter.grad = None
        kept["state"].backward(grad_output)
        kept["grads"] = weights, biases

    return [forward, backward], kept


def main():
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5, help="for each network, about")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    for name in arguments.only:
        depth, state, kernel, dtype = CASES[name]
        units, u0, grad_output = state[1], *rng.standard_normal((2, *state)).astype(dtype)
        weights = rng.standard_normal((depth, units, units, *[kernel] * (2 if kernel else 0)))
        weights = (weights / np.sqrt(weights[0, 0].size)).astype(dtype)
        net = multigrid.ResidualNetwork(weights, rng.standard_normal((depth, units)).astype(dtype), 1 / depth)
        ordinary, cycles, kept = ours(net, u0, grad_output)
        theirs, kept_by_peer = peer(net, u0, grad_output)
        for stage in (*ordinary, *theirs):
            stage()
        tolerance = 1000 * np.finfo(dtype).eps
        np.testing.assert_allclose(kept["states"][-1], kept_by_peer["state"].detach(), atol=tolerance, rtol=tolerance)
        for grads, parameters in zip(kept["grads"], kept_by_peer["grads"], strict=True):
            expected = np.stack([parameter.grad for parameter in parameters])
            np.testing.assert_allclose(grads, expected, rtol=0, atol=tolerance * np.abs(expected).max())
        timed = take_turns({"PyTorch": theirs, "ordinary": ordinary, "two cycles": cycles}, arguments.seconds)
        print(f"{name}: {depth} layers, states {state}, {np.dtype(dtype)}")
        for who, turns in timed.items():
            times = [quartiles("t", 1e3 * stage) for stage in (turns.sum(axis=1), *turns.T)]
            whole, *stages = (f"{t['t']:.2f} ms [{t['t_low']:.2f}, {t['t_high']:.2f}]" for t in times)
            print(
                f"  {who:<12}{whole:<28} forward, back{', parameters' if len(stages) > 2 else ''}: {'; '.join(stages)}"
            )


if __name__ == "__main__":
    main()
