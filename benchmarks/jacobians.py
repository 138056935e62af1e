"""Generate the transposed Jacobians of Table 1: ours, and PyTorch's autograd one column at a time, in one run.

Install the peer with ``pip install -e '.[bench]'``, then run ``python benchmarks/jacobians.py``. The operators are the
first convolution, ReLU and max-pooling of VGG-11 on 32 x 32 images, in float32.

Ours: "values" fills them into an array that exists, with the pattern there, as in every iteration; "pattern and values"
does all from scratch. "copy" is an `np.copyto` of as many values. Copies and values are repeated within a turn, so that
the caches are warm.

The baseline is one ``torch.autograd.grad`` per output, after a forward pass that is not counted, with a one-hot vector
as the output's gradient: it gives one dense column of the transposed Jacobian. "autograd, stored" also copies the
column to its place in a dense matrix, whose columns are contiguous. A column takes the same time wherever it is, so
every round samples some, spread over all outputs, and the time of the whole matrix is extrapolated: seconds per column
times the number of outputs. (No more of the dense matrix than the sampled columns is ever there: all of ReLU's would
take 16 GiB.)

All take turns, on one thread and on all cores; reported are medians and quartiles of the rounds.
"""

import argparse
from unittest import mock

import numpy as np
import pandas as pd
import torch

from bppsa_nb.machine import workers
from bppsa_nb.papers import experiments, provenance, timing
from bppsa_nb.papers.bppsa import table_1


def competitors(operator, sampled, rng):
    """List what takes turns: its name, how many threads it has, how many matrices it makes in a turn, the function."""
    make, source = table_1.OPERATORS[operator], table_1.source(operator, rng)
    jacobian = make()
    values = jacobian.fill(source)
    copy = values.copy()
    function, x = peer(operator, source, rng)
    outputs = jacobian.pattern.shape[1]
    chosen = np.linspace(0, outputs - 1, sampled).astype(int).tolist()
    dense = torch.zeros(sampled, jacobian.pattern.shape[0])

    def columns(stored):
        x.requires_grad_(True)
        y = function(x)
        one_hot = torch.zeros_like(y)
        flat = one_hot.view(-1)
        check = jacobian.pattern.matrix(values).tocsc()

        def run(checking=False):
            for place, j in enumerate(chosen):
                flat[j] = 1
                (column,) = torch.autograd.grad(y, x, one_hot, retain_graph=True)
                flat[j] = 0
                if stored:
                    dense[place] = column.view(-1)
                if checking:
                    np.testing.assert_array_equal(check[:, [j]].toarray()[:, 0], column.numpy().reshape(-1))

        run(checking=True)
        return run

    def turn(threads, matrices, call):
        def run():
            torch.set_num_threads(threads)
            with mock.patch.object(workers, "THREADS", threads):
                for _ in range(max(1, int(matrices))):
                    call()

        return run

    share = sampled / outputs
    calls = [
        ("copy", 20, lambda: np.copyto(values, copy)),
        ("values", 20, lambda: jacobian.fill(source, values)),
        ("pattern and values", 1, lambda: make().fill(source)),
        ("autograd", share, columns(stored=False)),
        ("autograd, stored", share, columns(stored=True)),
    ]
    return [
        (name, threads, matrices, turn(threads, matrices, call))
        for threads in sorted({1, provenance.cores()})
        for name, matrices, call in calls
    ]


def peer(operator, source, rng):
    """Return PyTorch's function, and an input for it."""
    if operator == "Convolution":
        weight, x = torch.from_numpy(source), torch.from_numpy(rng.standard_normal((1, 3, 32, 32), np.float32))
        return lambda x: torch.nn.functional.conv2d(x, weight, padding=1), x
    function = torch.relu if operator == "ReLU" else lambda x: torch.nn.functional.max_pool2d(x, 2)
    return function, torch.from_numpy(source)[None].clone()


def main():
    """Run the comparison, print it, and record the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=51)
    parser.add_argument("--columns", type=int, default=64, help="sampled in a round")
    parser.add_argument("--reference", action="store_true", help="record references, which git tracks")
    arguments = parser.parse_args()
    if arguments.reference:
        provenance.check_committed()
    rows = []
    for operator, make in table_1.OPERATORS.items():
        compared = competitors(operator, arguments.columns, np.random.default_rng(0))
        seconds = timing.take_turns([call for *_, call in compared], np.inf, (arguments.rounds, arguments.rounds))
        pattern = make().pattern
        print(f"{operator}: {pattern.shape[0]} x {pattern.shape[1]}, {pattern.nnz} values, {arguments.rounds} rounds")
        for (name, threads, matrices, _), values in zip(compared, seconds.T, strict=True):
            low, median, high = np.quantile(values, [0.25, 0.5, 0.75]) / matrices
            times = {"seconds": median, "seconds_low": low, "seconds_high": high}
            rows.append({"operator": operator, "name": name, "threads": threads, "matrices": matrices} | times)
            print(f"  {name:<20}{threads} thread(s)  {1e3 * median:12.4f} ms  [{1e3 * low:.4f}, {1e3 * high:.4f}]")
    table = pd.DataFrame(rows)
    table.attrs = {
        "backend": "cpu",
        "torch": torch.__version__,
        "seconds": "for one whole matrix: the time of a turn over how many matrices it makes",
        "baseline": "one torch.autograd.grad per output; the columns sampled are less than a matrix",
    }
    speedups = table_1.speedups(table)
    print(speedups.set_index("operator").T.map("{:.3g}".format).to_string())
    with experiments.references(arguments.reference):
        print("recorded in", experiments.record(table, "jacobian_generation", "paper", 0))


if __name__ == "__main__":
    main()
