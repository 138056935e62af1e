"""Recurrent layers whose inputs are on a GPU already: activations and gradients stay there, parameters are copied.

Counterpart of `bppsa_nb.cells.recurrent`.
"""

import numpy as np

from bppsa_nb.cells import layer_cuda as cells
from bppsa_nb.cells import stacked_cuda as stacked
from bppsa_nb.cells.recurrent import Activations, overflow
from bppsa_nb.cells.weight_gradients_cuda import launch_linear_gradients
from bppsa_nb.chains import backprop as chain
from bppsa_nb.chains.backprop_cuda import cuda_only
from bppsa_nb.machine.arrays_cuda import all_finite, as_device_array
from bppsa_nb.machine.checks import check_array, check_finite, check_params, named_params, on_gpu, on_host
from bppsa_nb.machine.cuda import on_device
from bppsa_nb.machine.cuda_compiler import cuda


def forward(model, x, h0, backend, options):
    """Compute what `Recurrent.forward` computes, which see; everything but `h0` is on the GPU, and so may that be."""
    cuda_only(backend)
    cell, x, h0 = stacked.cell_of(model), as_device_array("x", x), as_device_array("h0", h0) if on_gpu(h0) else h0
    model.check_sizes(x, h0)
    (T, B, _), H, L, dtype = x.shape, model.hidden_size, model.num_layers, model.dtype
    if T == 0:
        raise ValueError(f"x must hold at least one step where it is on a GPU, got shape {x.shape}")
    check_finite(**named_params(model.params))
    _check_finite(x=x, **({} if h0 is None else {"h0": h0}))
    hidden = cuda.device_array((L, T + 1, B, H), dtype)
    gates = cuda.device_array((L, cell.sums, T, B, H), dtype) if cell.sums > 1 else None
    _, solved = stacked.forward(model, x, h0, options, saved=_of_layers(hidden, gates))
    logits = cuda.device_array((B, model.num_classes), dtype)
    fc = (on_device(model.params[name]) for name in ("fc.weight", "fc.bias"))
    cells.launch_linear(hidden[L - 1, T], *fc, logits)
    if not all_finite(logits):
        raise FloatingPointError(overflow(dtype))
    return Activations(x, hidden, gates, logits, solved if any(solved) else None)


def backward(model, activations, grad_logits, method, backend, levels):
    """Compute what `Recurrent.backward` computes, which see; everything is on the GPU."""
    x, hidden, gates = activations.x, activations.hidden, activations.gates
    (L, _, B, H), T, dtype = hidden.shape, len(x), model.dtype
    grad_logits = as_device_array("grad_logits", grad_logits)
    check_array("grad_logits", on_host(grad_logits), dtype, (B, model.num_classes))
    _check_finite(grad_logits=grad_logits)
    shapes = model.shapes()
    check_params(model.params, dtype, shapes)
    how = chain.choose(method, cuda_only(backend), levels, (T, B, H), dtype, model.gate_blocks)
    grads = {name: cuda.device_array(shapes[name], dtype) for name in ("fc.weight", "fc.bias")}
    launch_linear_gradients(hidden[L - 1, T], grad_logits, *grads.values())
    end = cuda.device_array((B, H), dtype)
    cells.launch_back_linear(grad_logits, on_device(model.params["fc.weight"]), end)
    grads |= stacked.backward(model, x, _of_layers(hidden, gates), [None] * (L - 1) + [end], None, how)[0]
    return {name: grads[name] for name in shapes}


def _of_layers(hidden, gates):
    """Return what each layer has kept, as `stacked` takes it."""
    kept = [hidden] if gates is None else [hidden, gates]
    return [tuple(array[layer] for array in kept) for layer in range(len(hidden))]


def _check_finite(**arrays):
    for name, array in arrays.items():
        if not (all_finite(array) if hasattr(array, "copy_to_host") else np.isfinite(array).all()):
            check_finite(**{name: array.copy_to_host() if hasattr(array, "copy_to_host") else array})
