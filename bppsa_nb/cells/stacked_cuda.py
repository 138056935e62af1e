"""Recurrent layers on layers on a GPU, apart from what reads their states; counterpart of `bppsa_nb.cells.stacked`.

All arrays are on the GPU and stay there, but for parameters that are on the host: these are copied.
"""

from functools import partial

from bppsa_nb.cells import layer_cuda as cells
from bppsa_nb.cells import weight_gradients_cuda as weight_gradients
from bppsa_nb.cells.chunked_cuda import Chunks
from bppsa_nb.cells.layer import chain_of
from bppsa_nb.cells.stacked import params_of, resolve_method
from bppsa_nb.chains import backprop as chain
from bppsa_nb.machine.arrays_cuda import add, copy, fill, put, put_rows
from bppsa_nb.machine.cuda import on_device
from bppsa_nb.machine.cuda_compiler import cuda


def forward(model, x, h0, options, new=None, saved=None):
    """Run all layers of a model, on values of any kind: what is not finite passes through.

    Arguments and results are those of `bppsa_nb.cells.stacked.forward`, with arrays on the device, no axis of which is
    0; `h0` are an array [shape=(L, B, H)] for each of the S initial states, which may be on the host, or None for
    zeros; `options` is not Newton's method. `new` makes device arrays, in the model's dtype, from their shapes, in
    Numba's place. What is only worked on is dropped as soon as all launches are issued; scans and chunks ask Numba for
    memory of their own. `saved`, if given, is written into.
    """
    cell, new = model.cell, new or partial(cuda.device_array, dtype=model.dtype)
    (T, B, _), H, L = x.shape, model.hidden_size, model.num_layers
    if saved is None:
        saved = [(new((cell.states, T + 1, B, H)), cells.new_kept(cell, (T, B, H), new)) for _ in range(L)]
    weight_hh_T, products = new((H, cell.gates * H)), new((T, B, cell.gates * H))
    below, solved = x, []
    options, length = resolve_method(model, options, x.shape, "cuda")
    for layer, (states, kept) in enumerate(saved):
        for s in range(cell.states):
            if h0 is None:
                fill(states[s, 0], model.dtype.type(0))
            else:
                put(h0[s][layer], states[s, 0])
        params = list(map(on_device, params_of(model, layer)))
        loop = products, weight_hh_T, params[3], states, kept
        cells.launch_inputs(below, params, weight_hh_T, products)
        if options.method == "linear":
            cells.launch_loop(cell, cells.run_forward_of, B, loop)
            solved.append(None)
        else:
            solved.append(Chunks(cell, loop, length).solve(*options.limits(model.dtype)))
        below = states[0, 1:]
    return saved, solved


def backward(model, x, saved, ends, local_grads, how, inputs=False, new=None):
    """Go back through all layers of a model, from the last one to the first.

    Arguments and results are those of `bppsa_nb.cells.stacked.backward`, on the device; `new` is as for `forward`.
    """
    (method, _, levels), cell, new = how, model.cell, new or partial(cuda.device_array, dtype=model.dtype)
    (T, B, _), H, L = x.shape, model.hidden_size, model.num_layers
    grads, starts, at_sums = {}, new((L, B, cell.states * H)), new((cell.sums, T, B, H))
    slopes, carry = cells.new_diagonals(cell, (T, B, H), new)
    terms, at_input = None, None
    if local_grads is not None:
        terms = _at_all_states(new, (T, B, cell.states * H), H)
        put_rows(local_grads, terms[1:])
    for layer in reversed(range(L)):
        (states, kept), below = saved[layer], saved[layer - 1][0][0, 1:] if layer else x
        cells.launch_derive(cell, states, kept, slopes, carry)
        links = chain_of(cell, on_device(model.params[f"weight_hh_l{layer}"]), slopes, carry if cell.carries else None)
        run = partial(chain.go_back, links, _at_end(new, ends[layer], terms, starts[layer]), terms, "cuda")
        grad_states = chain.in_range(run, method, levels)
        cells.launch_sum_gradients(cell, states, kept, grad_states, at_sums)
        copy(grad_states[0], starts[layer])
        own = {f"{name}_l{layer}": new(model.params[f"{name}_l{layer}"].shape) for name in cell.names}
        parts = new(weight_gradients.parts_of(at_sums.shape, below.shape[2]))
        weight_gradients.launch_gradients(cell, below, states[0], at_sums, parts, list(own.values()))
        grads |= own
        weight_ih = on_device(model.params[f"weight_ih_l{layer}"])
        if layer:  # the layer below is read at every step: its loss terms enter at all h but the initial one
            terms = _at_all_states(new, links.shape, H)
            cells.launch_input_gradients(cell, at_sums, weight_ih, terms[1:])
        elif inputs:
            at_input = new(x.shape)
            cells.launch_input_gradients(cell, at_sums, weight_ih, at_input)
    return grads, at_input, [starts[layer] for layer in range(L)]


def _at_all_states(new, shape, size):
    """Make room for loss terms at all states [shape=(T + 1, B, S H)], zeros but where h of all steps are."""
    T, B, N = shape
    terms = new((T + 1, B, N))
    fill(terms if N > size else terms[:1], terms.dtype.type(0))
    return terms


def _at_end(new, end, terms, like):
    """Return the gradient at a layer's last states: what was read of them by themselves, and h with all the others."""
    if end is None and terms is not None:
        return terms[len(terms) - 1]
    if terms is None and end is not None and end.shape == like.shape:
        return end
    total = new(like.shape)
    fill(total, total.dtype.type(0))
    if end is not None:
        put_rows(end, total)
    if terms is not None:
        add(total, terms[len(terms) - 1])
    return total
