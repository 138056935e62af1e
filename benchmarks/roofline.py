"""How close our kernels come to what the machine can do: counted bytes and operations over measured roofs.

An operation is an addition, a multiplication, or one of tanh and the logistic function. Bytes are those that must move:
inputs once for every pass over them, results once, and what is stored in between once in and once out. What stays in
registers and caches within a pass costs nothing.
"""

from functools import partial

import numpy as np
import on_gpu
from comparisons import dense_chain, problem
from turns import take_turns

import bppsa_nb as bp
from bppsa_nb.chains import plan
from bppsa_nb.scan.levels import down_levels, num_pairs, up_levels

WIDTH = 4  # bytes of a float32
LARGE = 2**28  # bytes of an array that no cache holds
SHAPES = {  # kernels: cells, T, B, H, I
    "the paper's": (("RNN", 1000, 16, 20, 1), ("GRU", 259, 16, 20, 38)),
    "large": (("RNN", 1000, 256, 64, 1),),
}


def sweep(T, B, H, weights, carry):
    """Count a step-by-step sweep of a structured chain: operations, bytes."""
    each = weights * (2 * H * H + 2 * H) + 2 * H * carry
    numbers = (weights + carry + 1) * T * B * H + B * H + weights * H * H
    return T * B * each, WIDTH * numbers


def chunked(T, B, H, weights, carry, length):
    """Count a chunked scan of a structured chain: products of the inner chunks, across, replay."""
    inner = max(-(-T // length) - 2, 0)
    steps = inner * length * B
    replay, numbers = sweep(T, B, H, weights, carry)
    multiply = steps * (weights * (2 * H**3 + 2 * H * H) + 2 * H * H * carry)
    products = inner * B * H * H
    return replay + multiply + 2 * products, numbers + WIDTH * ((weights + carry) * steps * H + 2 * products)


def dense_linear(T, B, H):
    """Count a linear scan of stored Jacobians."""
    return 2 * T * B * H * H, WIDTH * (T * B * H * H + (T + 1) * B * H)


def dense_chunked(T, B, H, length):
    """Count a chunked scan of stored Jacobians."""
    inner = max(-(-T // length) - 2, 0)
    replay, numbers = dense_linear(T, B, H)
    steps, products = inner * length * B, inner * B * H * H
    return replay + 2 * steps * H**3 + 2 * products, numbers + WIDTH * (steps * H * H + 2 * products)


def dense_blelloch(T, B, H):
    """Count a Blelloch scan of stored Jacobians: every product is written going up, and read going down."""
    products = sum(num_pairs(T, d) - 1 for d in range(up_levels(T)))
    vectors = sum(num_pairs(T, d) - 1 for d in range(down_levels(T))) + up_levels(T) + (T > 0)
    numbers = T * B * H * H + 2 * products * B * H * H + (T + 1) * B * H
    return products * B * 2 * H**3 + vectors * B * 2 * H * H, WIDTH * numbers


def forward(T, B, H, inputs, cell):
    """Count a layer's forward pass; the products with the inputs are stored before the time loop."""
    sums, elementwise, kept = {"RNN": (1, 3, 1), "GRU": (3, 15, 5)}[cell]
    operations = T * B * (2 * sums * H * (inputs + H) + elementwise * H)
    numbers = T * B * (inputs + (2 * sums + kept) * H) + sums * H * (inputs + H + 2)
    return operations, WIDTH * numbers


def kernels(cell, T, B, H, inputs, backend, rng):
    """List our kernels at one size: name, operations, bytes, the call."""
    model, x, _ = problem(cell, T, B, H, inputs, rng)
    activations = model.forward(x, backend="cpu")
    chain = model.chain(activations, backend="numpy")
    grad_output = rng.standard_normal((B, H), np.float32)
    weights, carry = len(chain.weights), int(chain.carry is not None)
    length = plan.chunk_length(T, B, H, backend=backend, weights=weights)

    def scan(links, method):
        if backend == "cuda":
            return on_gpu.gradients(links, grad_output, method)[0]
        return partial(bp.backprop, links, grad_output, method=method, backend=backend)

    go_forward = on_gpu.forward(model, x)[0] if backend == "cuda" else partial(model.forward, x, backend=backend)
    listed = [
        (f"{cell} forward", *forward(T, B, H, inputs, cell), go_forward),
        (f"{cell} sweep", *sweep(T, B, H, weights, carry), scan(chain, "linear")),
        (f"{cell} chunked", *chunked(T, B, H, weights, carry, length), scan(chain, "chunked")),
    ]
    if cell == "RNN" and 4 * T * B * H * H <= LARGE:
        jacobians_T, _ = dense_chain(T, B, H, rng)
        length = plan.chunk_length(T, B, H, backend=backend)
        listed += [
            ("dense linear", *dense_linear(T, B, H), scan(jacobians_T, "linear")),
            ("dense chunked", *dense_chunked(T, B, H, length), scan(jacobians_T, "chunked")),
            ("dense Blelloch", *dense_blelloch(T, B, H), scan(jacobians_T, "blelloch")),
        ]
    return listed


def copy(size, backend):
    """Return a call that moves `size` bytes, half of them in and half out."""
    if backend == "cuda":
        import torch

        source = torch.ones(size // 2, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        return lambda: (target.copy_(source), torch.cuda.synchronize())
    source, target = np.ones(size // 2, np.uint8), np.empty(size // 2, np.uint8)
    return partial(np.copyto, target, source)


def product(size, backend):
    """Return a call that multiplies two large matrices in float32, 2 size³ operations; on a GPU without TF32."""
    if backend == "cuda":
        import torch

        torch.backends.cuda.matmul.allow_tf32 = False
        a = torch.ones(size, size, device="cuda")
        return lambda: (a @ a, torch.cuda.synchronize())
    a = np.ones((size, size), np.float32)
    return lambda: a @ a


def roofs(backend, seconds):
    """Measure the machine: bytes per second of a large copy, operations per second of a large product."""
    size = 8192 if backend == "cuda" else 2048
    calls = {"copy": [copy(LARGE, backend)], "product": [product(size, backend)]}
    timed = {name: np.median(turns) for name, turns in take_turns(calls, seconds).items()}
    return LARGE / timed["copy"], 2 * size**3 / timed["product"]


def roofline(backend, seconds, say):
    """Time our kernels, each beside a copy of as many bytes as it must move.

    Returns
    -------
    list of dict
        A row for each kernel: `operations` and `bytes` counted, `seconds`; `copy`, how long a copy of that size takes;
        `bandwidth` and `peak`, the machine's roofs per second; `of_copy` and `of_peak`, the shares attained.
    """
    bandwidth, peak = roofs(backend, seconds)
    say(f"roofs: copy {bandwidth / 1e9:.3g} GB/s, product {peak / 1e9:.4g} GFLOP/s")
    rows = []
    for title, shapes in SHAPES.items():
        for cell, T, B, H, inputs in shapes:
            listed = kernels(cell, T, B, H, inputs, backend, np.random.default_rng(0))
            calls = {}
            for name, _, size, call in listed:
                calls |= {name: [call], f"copy for {name}": [copy(int(size), backend)]}
            timed = {name: float(np.median(turns)) for name, turns in take_turns(calls, seconds).items()}
            for name, operations, size, _ in listed:
                row = {"size": title, "kernel": name, "T": T, "B": B, "H": H, "I": inputs}
                row |= {"operations": int(operations), "bytes": int(size), "seconds": timed[name]}
                row |= {"copy": timed[f"copy for {name}"], "bandwidth": bandwidth, "peak": peak}
                row |= {"of_copy": row["copy"] / row["seconds"], "of_peak": operations / timed[name] / peak}
                rows.append(row)
                shares = f"{row['of_copy']:6.1%} of a copy, {row['of_peak']:6.1%} of the peak"
                say(f"  {name:<16} T={T} B={B} H={H}: {1e3 * timed[name]:8.3f} ms, {shares}")
    return rows
