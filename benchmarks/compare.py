"""Compare with JAX and PyTorch on this machine's CPU, side by side in one run.

Install the peers with ``pip install -e '.[bench]'``, then run ``python benchmarks/compare.py``. The competitors of
one comparison take turns, so that a busy moment of the machine meets all of them; reported are medians and
quartiles of the rounds, and the ratio of medians to ours. Compilation and warm-up are not counted; what a method
must prepare (the RNN's transposed Jacobians) is.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import torch

import bppsa_nb as bp
from bppsa_nb import experiments
from bppsa_nb.trainer import cross_entropy

CORES = torch.get_num_threads()


def take_turns(competitors, rounds):
    """Time every competitor once per round; return seconds [shape=(rounds,)] per name."""
    for run in competitors.values():
        run()
        run()
    seconds = {name: np.empty(rounds) for name in competitors}
    for i in range(rounds):
        for name, run in competitors.items():
            start = time.perf_counter()
            run()
            seconds[name][i] = time.perf_counter() - start
    return seconds


def chains(T, B, H, rng):
    """Gradients of one dense float32 chain: our scans, JAX's scans."""
    jacobians_T = np.ascontiguousarray(np.linalg.qr(rng.standard_normal((T, B, H, H)))[0], np.float32)
    grad_output = rng.standard_normal((B, H)).astype(np.float32)

    def ours(method, backend):
        return lambda: bp.backprop(jacobians_T, grad_output, method=method, backend=backend)

    @jax.jit
    def associative_scan(jacobians_T, grad_output):
        products = jax.lax.associative_scan(lambda a, b: b @ a, jacobians_T[::-1])
        return jnp.einsum("tbij,bj->tbi", products, grad_output)

    @jax.jit
    def products_only(jacobians_T):
        return jax.lax.associative_scan(lambda a, b: b @ a, jacobians_T[::-1])

    @jax.jit
    def scan(jacobians_T, grad_output):
        def step(gradient, jacobian_T):
            gradient = jnp.einsum("bij,bj->bi", jacobian_T, gradient)
            return gradient, gradient

        return jax.lax.scan(step, grad_output, jacobians_T, reverse=True)[1]

    on_device = jnp.asarray(jacobians_T), jnp.asarray(grad_output)
    expected = bp.backprop(jacobians_T, grad_output, method="linear", backend="numpy")[:-1]
    for result in (associative_scan(*on_device)[::-1], scan(*on_device)):
        np.testing.assert_allclose(result, expected, atol=1e-4)
    return {
        "ours: blelloch, cpu": ours("blelloch", "cpu"),
        "ours: linear, cpu": ours("linear", "cpu"),
        "jax.lax.associative_scan and gradients": lambda: associative_scan(*on_device).block_until_ready(),
        "jax.lax.associative_scan, products only": lambda: products_only(on_device[0]).block_until_ready(),
        "jax.lax.scan": lambda: scan(*on_device).block_until_ready(),
    }


class Peer(torch.nn.Module):
    """The paper's classifier on torch.nn.RNN or torch.nn.GRU, with a model's parameters."""

    def __init__(self, model):
        super().__init__()
        kind = {bp.RNN: torch.nn.RNN, bp.GRU: torch.nn.GRU}[type(model)]
        self.layers = kind(model.input_size, model.hidden_size)
        self.fc = torch.nn.Linear(model.hidden_size, model.num_classes)
        with torch.no_grad():
            for name, value in model.params.items():
                getattr(self.fc if name.startswith("fc.") else self.layers, name.removeprefix("fc.")).copy_(
                    torch.from_numpy(value)
                )

    def forward(self, x):
        """Return logits."""
        return self.fc(self.layers(x)[0][-1])


def rnn_steps(T, B, H, rng):
    """One iteration of the paper's RNN (Section 4.1)."""
    x, y = bp.Bitstream(T, num_samples=B, rng=rng).batch(np.arange(B))
    return training_steps(lambda: bp.RNN(1, H, 10, rng=0), x, y)


def gru_steps(T, B, H, rng):
    """One iteration of the paper's GRU (Section 4.2), on numbers like those of the set S."""
    x = rng.standard_normal((T, B, 38)).astype(np.float32)
    return training_steps(lambda: bp.GRU(38, H, 11, rng=0), x, np.arange(B) % 11)


def training_steps(make_model, x, y):
    """Forward pass, loss, backward pass and Adam: ours, and PyTorch's on one thread and on all."""
    model = make_model()
    peer, kind = Peer(model), type(model).__name__
    loss, _ = cross_entropy(model.forward(x, backend="cpu").logits, y)
    x_torch, y_torch = torch.from_numpy(x), torch.from_numpy(y)
    assert abs(torch.nn.functional.cross_entropy(peer(x_torch), y_torch).item() - loss) < 1e-5
    optimizer = torch.optim.Adam(peer.parameters(), lr=1e-5)

    def torch_step():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(peer(x_torch), y_torch).backward()
        optimizer.step()

    def ours(method, backend):
        trainer = bp.Trainer(make_model(), bp.Adam(lr=1e-5), method=method, backend=backend)
        return lambda: trainer.step(x, y)

    def threads(count, flush=False):
        def run():
            torch.set_num_threads(count)
            torch.set_flush_denormal(flush)
            torch_step()
            torch.set_flush_denormal(False)

        return run

    return {
        "ours: auto, cpu": ours("auto", "cpu"),
        "ours: blelloch, cpu": ours("blelloch", "cpu"),
        "ours: linear, numpy": ours("linear", "numpy"),
        f"torch.nn.{kind}, 1 thread": threads(1),
        f"torch.nn.{kind}, 1 thread, flush_denormal": threads(1, flush=True),
        f"torch.nn.{kind}, {CORES} threads": threads(CORES),
    }


COMPARISONS = {  # name: what to run, T, B, H
    "gradients of a dense chain": (chains, 1000, 16, 20),
    "RNN training step": (rnn_steps, 1000, 16, 20),
    "GRU training step": (gru_steps, 259, 16, 20),
}


def main():
    """Run every comparison at the paper's sizes, print it, and record the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    arguments = parser.parse_args()
    rows = []
    for title, (make, *sizes) in COMPARISONS.items():
        seconds = take_turns(make(*sizes, np.random.default_rng(0)), arguments.rounds)
        ours = np.median(next(iter(seconds.values())))
        print(f"{title}: T={sizes[0]}, B={sizes[1]}, H={sizes[2]}, float32, {arguments.rounds} rounds")
        for name, values in seconds.items():
            low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
            print(f"  {name:<42} {median * 1e3:8.2f} ms  [{low * 1e3:.2f}, {high * 1e3:.2f}]  {median / ours:6.2f}x")
            times = {"seconds": median, "seconds_low": low, "seconds_high": high, "ratio": median / ours}
            rows.append({"comparison": title, "name": name, "T": sizes[0], "B": sizes[1], "H": sizes[2]} | times)
    table = pd.DataFrame(rows)
    table.attrs = {"backend": "cpu", "jax": jax.__version__, "torch": torch.__version__}
    print("recorded in", experiments.record(table, "compare", "paper", seed=0))


if __name__ == "__main__":
    main()
