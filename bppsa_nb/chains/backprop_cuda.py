"""Gradients along chains whose arrays are on a GPU already; counterpart of `bppsa_nb.chains.backprop`."""

from functools import partial

from bppsa_nb.chains import checks
from bppsa_nb.chains.backprop import choose
from bppsa_nb.chains.methods import go_back, in_range
from bppsa_nb.chains.structured import StructuredChain
from bppsa_nb.machine import backends
from bppsa_nb.machine.arrays_cuda import add, as_device_array, copy
from bppsa_nb.machine.checks import is_finite, on_host
from bppsa_nb.machine.cuda_compiler import cuda


def backprop(jacobians_T, grad_output, local_grads, method, backend, levels):
    """Compute what `bppsa_nb.backprop` computes, which see; the result is on the GPU."""
    structured = isinstance(jacobians_T, StructuredChain)
    if structured:
        for name in ("weights", "slopes", "carry"):
            if getattr(jacobians_T, name) is not None:
                as_device_array(f"jacobians_T.{name}", getattr(jacobians_T, name))
    else:
        jacobians_T = as_device_array("jacobians_T", jacobians_T)
    grad_output = as_device_array("grad_output", grad_output)
    local_grads = None if local_grads is None else as_device_array("local_grads", local_grads)
    parts = jacobians_T, grad_output, local_grads
    seen = [part if part is None or part is jacobians_T and structured else on_host(part) for part in parts]
    *_, shape, _ = checks.check_chain(*seen, backend)
    weights = jacobians_T.num_weights if structured else 0
    method, _, levels = choose(method, backends.cuda_only(backend), levels, shape, grad_output.dtype, weights)
    T, _, H = shape
    chain = jacobians_T if structured or jacobians_T.ndim == 4 else jacobians_T.reshape(T, 1, H, H)
    end = grad_output
    if local_grads is not None:
        end = cuda.device_array(grad_output.shape, grad_output.dtype)
        copy(grad_output, end)
        add(end, local_grads[T])
    gradients = in_range(partial(go_back, chain, end, local_grads, "cuda"), method, levels)
    if not is_finite(gradients):
        checks.check_numbers(jacobians_T, grad_output, local_grads)
    return gradients
