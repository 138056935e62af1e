"""Ours on a GPU, on arrays that are there and stay: what `bppsa_nb.papers.bppsa.on_gpu` has, and whole steps."""

import numpy as np

import bppsa_nb as bp
from bppsa_nb.papers.bppsa.on_gpu import backward, check_range, replayed, scan

__all__ = ["backward", "gradients", "training_step"]


def gradients(chain, grad_output, method):
    """Prepare to find the gradients along a chain that is on the device.

    Parameters
    ----------
    chain : StructuredChain or np.ndarray [shape=(T, B, H, H)]
        Of host arrays; copied once.
    grad_output : np.ndarray [shape=(B, H)]
    method : {"linear", "chunked", "blelloch"}

    Returns
    -------
    run : callable
        Without arguments. Whatever the method prepares is part of it, such as writing scaled Jacobians.
    fetch : callable
        Returns what the last run found, np.ndarray [shape=(T + 1, B, H)].
    """
    from bppsa_nb.chains.methods_cuda import Links

    launch, found, lost = scan(Links(chain, len(grad_output)), grad_output, method, isinstance(chain, np.ndarray))
    run = replayed(launch)

    def fetch():
        check_range(lost)
        return found.copy_to_host()

    return run, fetch


def training_step(model, x, y, method, graph, sub_stream=True, forward="auto"):
    """Prepare a training step that is on the device, inputs and labels included.

    Parameters
    ----------
    model : RNN or GRU
    x, y : np.ndarray
    method : str
    graph, sub_stream : bool
        As for `bppsa_nb.training.step_cuda.Shared`.
    forward : {"auto", "linear", "chunked"}
        How the states are found.

    Returns
    -------
    issue : callable
        Issues a step, and does not wait.
    wait : callable
        Returns when it is done.
    """
    from bppsa_nb.cells.unroll import SolverOptions
    from bppsa_nb.training import step_cuda

    optimizer = bp.Adam(lr=1e-5)
    shared = {"gpu": step_cuda.Shared(model, optimizer, graph, sub_stream)}
    how = model.choose(method, "cuda", None, x.shape)
    step = step_cuda.Step(model, optimizer, x.shape, how, SolverOptions(forward), shared)
    step.run(x, y)
    return step.last.run, shared["gpu"].stream.sync
