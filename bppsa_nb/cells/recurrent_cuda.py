"""Recurrent layers whose inputs are on a GPU already: activations and gradients stay there, parameters are copied.

Twin of `bppsa_nb.cells.recurrent`.
"""

from functools import partial

import numpy as np
from numba import cuda

from bppsa_nb.cells import layer_cuda as cells
from bppsa_nb.cells.recurrent import Activations, overflow
from bppsa_nb.cells.repair_cuda import Chunks
from bppsa_nb.cells.stacked import settled
from bppsa_nb.chains import backprop as chain
from bppsa_nb.chains.backprop_cuda import cuda_only
from bppsa_nb.chains.structured import StructuredChain
from bppsa_nb.machine.arrays_cuda import all_finite, fill, put, taken
from bppsa_nb.machine.checks import check_array, check_finite, check_params, on_host
from bppsa_nb.machine.cuda import on_device
from bppsa_nb.machine.twins import twin

_NAMES = "weight_ih", "weight_hh", "bias_ih", "bias_hh"


def forward(model, x, h0, backend, how):
    """Compute what `Recurrent.forward` computes, which see; everything but `h0` is on the GPU, and so may that be."""
    cuda_only(backend)
    cell, x = _cell(model), taken("x", x)
    model.check_sizes(x, h0)
    (T, B, _), H, L, dtype = x.shape, model.hidden_size, model.num_layers, model.dtype
    if T == 0:
        raise ValueError(f"x must hold at least one step where it is on a GPU, got shape {x.shape}")
    check_finite(**model.named_params())
    _check_finite(x=x, **({} if h0 is None else {"h0": h0}))
    hidden = cuda.device_array((L, T + 1, B, H), dtype)
    gates = cuda.device_array((L, cell.sums, T, B, H), dtype) if cell.sums > 1 else None
    rows = len(model.params["weight_hh_l0"])
    weight_hh_T, products = cuda.device_array((H, rows), dtype), cuda.device_array((T, B, rows), dtype)
    below, solved = x, []
    how, length = settled(model, how, x.shape, "cuda")
    for layer in range(L):
        if h0 is None:
            fill(hidden[layer, 0], dtype.type(0))
        else:
            put(h0[layer], hidden[layer, 0])
        params = [on_device(model.params[f"{name}_l{layer}"]) for name in _NAMES]
        loop = products, weight_hh_T, params[3], hidden[layer], None if gates is None else gates[layer]
        cells.launch_inputs(below, params, weight_hh_T, products)
        if how.method == "linear":
            cells.launch_loop(cell, cells.run_forward_of, B, *loop)
        else:
            solved.append(Chunks(cell, loop, length).solve(*how.limits(dtype)))
        below = hidden[layer, 1:]
    logits = cuda.device_array((B, model.num_classes), dtype)
    fc = (on_device(model.params[name]) for name in ("fc.weight", "fc.bias"))
    cells.launch_linear(hidden[L - 1, T], *fc, logits)
    if not all_finite(logits):
        raise FloatingPointError(overflow(dtype))
    return Activations(x, hidden, gates, logits, solved or None)


def backward(model, activations, grad_logits, method, backend, levels):
    """Compute what `Recurrent.backward` computes, which see; everything is on the GPU."""
    cell, (x, hidden, gates) = _cell(model), (activations.x, activations.hidden, activations.gates)
    (L, _, B, H), T, dtype = hidden.shape, len(x), model.dtype
    grad_logits = taken("grad_logits", grad_logits)
    check_array("grad_logits", on_host(grad_logits), dtype, (B, model.num_classes))
    _check_finite(grad_logits=grad_logits)
    shapes = model.shapes()
    check_params(model.params, dtype, shapes)
    method, _, levels = chain.choose(method, cuda_only(backend), levels, (T, B, H), dtype, model._rows)
    grads = {name: cuda.device_array(shape, dtype) for name, shape in shapes.items()}
    cells.launch_linear_gradients(hidden[L - 1, T], grad_logits, grads["fc.weight"], grads["fc.bias"])
    grad_output, local_grads = cuda.device_array((B, H), dtype), None
    cells.launch_back_linear(grad_logits, on_device(model.params["fc.weight"]), grad_output)
    slopes = cuda.device_array((cell.sums, T, B, H), dtype)
    for layer in reversed(range(L)):
        weights = model.params[f"weight_hh_l{layer}"].reshape(-1, H, H)
        states, kept, carry = hidden[layer], None, None
        if gates is not None:
            kept, carry = gates[layer], gates[layer, 1]
        cells.launch_slopes(cell, states, kept, slopes)
        links = StructuredChain.made(on_device(weights), slopes[-len(weights) :], carry)
        run = partial(chain.go_back, links, grad_output, local_grads, "cuda")
        cells.launch_at_sums(slopes, chain.in_range(run, method, levels))
        below = hidden[layer - 1, 1:] if layer else x
        parts = [cuda.device_array((cells.parts_of(T), model._rows * H, n + 1), dtype) for n in (below.shape[2], H)]
        cells.launch_gradients(below, states, slopes, *parts, [grads[f"{name}_l{layer}"] for name in _NAMES])
        if layer:
            # The layer below is read at every step: its loss terms enter everywhere but at h_0.
            local_grads = cuda.device_array((T + 1, B, H), dtype)
            fill(local_grads[:1], dtype.type(0))
            weight_ih = on_device(model.params[f"weight_ih_l{layer}"])
            cells.launch_input_gradients(slopes, weight_ih, local_grads[1:])
            grad_output = local_grads[T]
    return grads


def _cell(model):
    own = twin(model._cell, "cuda", otherwise="numpy")
    if not hasattr(own, "CELL"):
        raise ValueError(f"x must be on the host for a {type(model).__name__}: its cell has no kernels")
    return own.CELL


def _check_finite(**arrays):
    for name, array in arrays.items():
        if not (all_finite(array) if hasattr(array, "copy_to_host") else np.isfinite(array).all()):
            check_finite(**{name: array.copy_to_host() if hasattr(array, "copy_to_host") else array})
