"""Our scans and forward passes on a GPU, on arrays that are there already and stay, as in a training loop there.

Every function returns a call that launches its kernels and waits for them, and one that fetches the result.
"""

import numpy as np


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
    from numba import cuda

    from bppsa_nb import plan
    from bppsa_nb.scan import cuda as levels
    from bppsa_nb.structured import cuda as chunks

    (T, B, H), dtype, dense = chain.shape[:3], chain.dtype, isinstance(chain, np.ndarray)
    links, output = chunks.Links(chain, B), cuda.to_device(np.ascontiguousarray(grad_output))
    if method == "blelloch":
        mats, exps, vecs, lost = levels.workspace(T, B, B, H, dtype)
        last = vecs[T + 1]

        def launch():
            last.copy_to_device(output)
            if dense:
                levels.launch_prepare(levels.prepare, links.arguments[:1], mats, exps, lost)
            else:
                levels.launch_prepare(chunks.prepare, links.arguments[2:], mats, exps, lost)
            levels.launch_scan(mats, exps, vecs, False, None, lost)

        return _with_wait(launch), lambda: levels.collect(vecs, lost)
    start = np.zeros((T + 1, B, H), dtype)
    start[T] = grad_output
    start, found = cuda.to_device(start), cuda.device_array_like(start)
    lost = cuda.to_device(np.zeros(1, np.int32))
    if method == "linear":
        kept, ends = None, cuda.device_array((1, B, H), dtype)
    else:
        length = plan.chunk_length(T, B, H, dtype, "cuda", 0 if dense else len(chain.weights))
        kept = chunks.Chunks((T, B, H), length, dtype)
        ends = kept.ends
    last = ends[len(ends) - 1]  # what the sweep starts from, and overwrites

    def launch():
        found.copy_to_device(start)
        last.copy_to_device(output)
        if kept is None:
            chunks.launch_sweep(links, 0, 1, T, ends, found)
        else:
            chunks.launch_chunked(links, kept, found, False, lost)

    def fetch():
        if lost.copy_to_host()[0]:
            raise ArithmeticError("products left the range of their dtype: this is no time of a complete scan")
        return found.copy_to_host()

    return _with_wait(launch), fetch


def forward(model, x):
    """Prepare a layer's forward pass; `fetch` returns the hidden states [shape=(T + 1, B, H)]."""
    from numba import cuda

    from bppsa_nb.cells import cuda as cells

    (T, B, _), H = x.shape, model.hidden_size
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    params = tuple(cuda.to_device(model.params[name]) for name in names)
    sums, dtype = len(model.params["weight_hh_l0"]), x.dtype
    transposed, products = cuda.device_array((H, sums), dtype), cuda.device_array((T, B, sums), dtype)
    hidden, x = cuda.to_device(np.zeros((T + 1, B, H), dtype)), cuda.to_device(x)
    gates = None if sums == H else cuda.device_array((4, T, B, H), dtype)

    def launch():
        cells.launch_forward(x, params, transposed, products, hidden, gates)

    return _with_wait(launch), hidden.copy_to_host


def _with_wait(launch):
    from numba import cuda

    def run():
        launch()
        cuda.synchronize()

    return run
