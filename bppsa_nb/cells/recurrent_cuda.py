"""Recurrent layers whose inputs are on a GPU already: activations and gradients stay there, parameters are copied.

Counterpart of `bppsa_nb.cells.recurrent`.
"""

import numpy as np

from bppsa_nb.cells import layer_cuda as cells
from bppsa_nb.cells import stacked_cuda as stacked
from bppsa_nb.cells.recurrent import Activations, overflow
from bppsa_nb.cells.weight_gradients_cuda import launch_linear_gradients
from bppsa_nb.chains.backprop_cuda import cuda_only
from bppsa_nb.machine.arrays_cuda import all_finite, as_device_array
from bppsa_nb.machine.checks import check_array, check_finite, check_params, named_params, on_gpu, on_host
from bppsa_nb.machine.cuda import on_device
from bppsa_nb.machine.cuda_compiler import cuda


def forward(model, x, h0, backend, options):
    """Compute what `Recurrent.forward` computes, which see; everything but `h0` is on the GPU, and so may that be."""
    cuda_only(backend)
    x = as_device_array("x", x)
    given = {name: as_device_array(name, h) if on_gpu(h) else h for name, h in model.each_state(h0).items()}
    model.check_sizes(x, h0)
    (T, B, _), H, L, dtype = x.shape, model.hidden_size, model.num_layers, model.dtype
    if T == 0:
        raise ValueError(f"x must hold at least one step where it is on a GPU, got shape {x.shape}")
    check_finite(**named_params(model.params))
    _check_finite(x=x, **given)
    states = cuda.device_array((L, model.cell.states, T + 1, B, H), dtype)
    gates = cuda.device_array((L, model.cell.kept, T, B, H), dtype) if model.cell.kept else None
    start = list(given.values()) or None
    _, solved = stacked.forward(model, x, start, options, saved=_of_layers(states, gates))
    logits = cuda.device_array((B, model.num_classes), dtype)
    fc = (on_device(model.params[name]) for name in ("fc.weight", "fc.bias"))
    cells.launch_linear(states[L - 1, 0, T], *fc, logits)
    if not all_finite(logits):
        raise FloatingPointError(overflow(dtype))
    return Activations(x, states, gates, logits, solved if any(solved) else None)


def backward(model, activations, grad_logits, method, backend, levels):
    """Compute what `Recurrent.backward` computes, which see; everything is on the GPU."""
    x, states, gates = activations.x, activations.states, activations.gates
    (L, _, _, B, H), T, dtype = states.shape, len(x), model.dtype
    grad_logits = as_device_array("grad_logits", grad_logits)
    check_array("grad_logits", on_host(grad_logits), dtype, (B, model.num_classes))
    _check_finite(grad_logits=grad_logits)
    shapes = model.shapes()
    check_params(model.params, dtype, shapes)
    how = model.choose(method, cuda_only(backend), levels, x.shape)
    grads = {name: cuda.device_array(shapes[name], dtype) for name in ("fc.weight", "fc.bias")}
    launch_linear_gradients(states[L - 1, 0, T], grad_logits, *grads.values())
    end = cuda.device_array((B, H), dtype)
    cells.launch_back_linear(grad_logits, on_device(model.params["fc.weight"]), end)
    grads |= stacked.backward(model, x, _of_layers(states, gates), [None] * (L - 1) + [end], None, how)[0]
    return {name: grads[name] for name in shapes}


def _of_layers(states, gates):
    """Return what each layer has saved, as `stacked` takes it."""
    nothing = None if gates is not None else cuda.device_array((1, 1, 1, 1), states.dtype)
    return [(states[layer], nothing if gates is None else gates[layer]) for layer in range(len(states))]


def _check_finite(**arrays):
    for name, array in arrays.items():
        if not (all_finite(array) if hasattr(array, "copy_to_host") else np.isfinite(array).all()):
            check_finite(**{name: array.copy_to_host() if hasattr(array, "copy_to_host") else array})
