"""Recurrent layers on layers on a GPU, apart from what reads their states; counterpart of `bppsa_nb.cells.stacked`.

All arrays are on the GPU and stay there, but for parameters that are on the host: these are copied.
"""

from functools import partial

from bppsa_nb.cells import layer_cuda as cells
from bppsa_nb.cells import weight_gradients_cuda as weight_gradients
from bppsa_nb.cells.chunked_cuda import Chunks
from bppsa_nb.cells.layer import NAMES
from bppsa_nb.cells.stacked import resolve_method
from bppsa_nb.chains import backprop as chain
from bppsa_nb.chains.structured import StructuredChain
from bppsa_nb.machine.arrays_cuda import add, copy, fill, put
from bppsa_nb.machine.cuda import on_device
from bppsa_nb.machine.cuda_compiler import cuda
from bppsa_nb.machine.dispatch import implementation


def forward(model, x, h0, options, new=None, saved=None):
    """Run all layers of a model, on values of any kind: what is not finite passes through.

    Arguments and results are those of `bppsa_nb.cells.stacked.forward`, with arrays on the device, no axis of which is
    0; `h0` may be on the host, or None for zeros; `options` is not Newton's method. `new` makes device arrays, in the
    model's dtype, from their shapes, in Numba's place. What is only worked on is dropped as soon as all launches are
    issued; scans and chunks ask Numba for memory of their own. `saved`, if given, is written into.
    """
    cell, new = cell_of(model), new or partial(cuda.device_array, dtype=model.dtype)
    (T, B, _), H, L = x.shape, model.hidden_size, model.num_layers
    if saved is None:
        gates = [(cell.sums, T, B, H)] if cell.sums > 1 else []
        saved = [tuple(map(new, [(T + 1, B, H), *gates])) for _ in range(L)]
    rows = model.gate_blocks * H
    weight_hh_T, products = new((H, rows)), new((T, B, rows))
    below, solved = x, []
    options, length = resolve_method(model, options, x.shape, "cuda")
    for layer, (hidden, *gates) in enumerate(saved):
        if h0 is None:
            fill(hidden[0], model.dtype.type(0))
        else:
            put(h0[layer], hidden[0])
        params = [on_device(model.params[f"{name}_l{layer}"]) for name in NAMES]
        loop = products, weight_hh_T, params[3], hidden, gates[0] if gates else None
        cells.launch_inputs(below, params, weight_hh_T, products)
        if options.method == "linear":
            cells.launch_loop(cell, cells.run_forward_of, B, loop)
            solved.append(None)
        else:
            solved.append(Chunks(cell, loop, length).solve(*options.limits(model.dtype)))
        below = hidden[1:]
    return saved, solved


def backward(model, x, saved, ends, local_grads, how, inputs=False, new=None):
    """Go back through all layers of a model, from the last one to the first.

    Arguments and results are those of `bppsa_nb.cells.stacked.backward`, on the device; `new` is as for `forward`.
    """
    (method, _, levels), cell, new = how, cell_of(model), new or partial(cuda.device_array, dtype=model.dtype)
    (T, B, _), H, L, rows = x.shape, model.hidden_size, model.num_layers, model.gate_blocks
    grads, starts, slopes, terms = {}, new((L, B, H)), new((cell.sums, T, B, H)), None
    if local_grads is not None:
        terms = _from_h0(new, local_grads.shape)
        copy(local_grads, terms[1:])
    for layer in reversed(range(L)):
        (hidden, *gates), below = saved[layer], saved[layer - 1][0][1:] if layer else x
        cells.launch_slopes(cell, hidden, gates[0] if gates else None, slopes)
        weights = on_device(model.params[f"weight_hh_l{layer}"].reshape(rows, H, H))
        links = StructuredChain.made(weights, slopes[cell.sums - rows :], gates[0][1] if gates else None)
        run = partial(chain.go_back, links, _at_end(new, ends[layer], terms, starts[layer]), terms, "cuda")
        grad_hidden = chain.in_range(run, method, levels)
        cells.launch_at_sums(slopes, grad_hidden)
        copy(grad_hidden[0], starts[layer])
        own = {f"{name}_l{layer}": new(model.params[f"{name}_l{layer}"].shape) for name in NAMES}
        parts = new(weight_gradients.parts_of(slopes.shape, below.shape[2]))
        weight_gradients.launch_gradients(below, hidden, slopes, parts, list(own.values()))
        grads |= own
        if inputs or layer:
            # The layer below is read at every step: its loss terms enter everywhere but at h_0.
            terms = _from_h0(new, below.shape)
            weight_ih = on_device(model.params[f"weight_ih_l{layer}"])
            cells.launch_input_gradients(slopes, weight_ih, terms[1:])
    return grads, terms[1:] if inputs else None, [starts[layer] for layer in range(L)]


def cell_of(model):
    """Return what launchers need to know of a model's cell; raise ValueError for one that has no kernels."""
    own = implementation(model.cell_module, "cuda", otherwise="numpy")
    if not hasattr(own, "CELL"):
        raise ValueError(f"x must be on the host for a {type(model).__name__}: its cell has no kernels")
    return own.CELL


def _from_h0(new, shape):
    """Make room for loss terms at all states [shape=(T + 1, B, ...)]; at the initial one, none enters."""
    terms = new((shape[0] + 1, *shape[1:]))
    fill(terms[:1], terms.dtype.type(0))
    return terms


def _at_end(new, end, terms, like):
    """Return the gradient at a layer's last state: what was read of it by itself, and with all the others."""
    if terms is None and end is not None:
        return end
    if end is None and terms is not None:
        return terms[len(terms) - 1]
    total = new(like.shape)
    if end is None:
        fill(total, total.dtype.type(0))
    else:
        copy(end, total)
        add(total, terms[len(terms) - 1])
    return total
