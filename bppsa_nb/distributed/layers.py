"""Recurrent layers whose steps are spread over MPI ranks: what is of size T stays where it is made (Section 3.6)."""

import numpy as np

from bppsa_nb.cells import recurrent, stacked, unroll
from bppsa_nb.cells.chunked import Solved, differ
from bppsa_nb.distributed import arguments, predict, ranks
from bppsa_nb.distributed.segments import DenseSegment
from bppsa_nb.distributed.solver import go_back
from bppsa_nb.distributed.training import add_up
from bppsa_nb.machine import backends
from bppsa_nb.machine.checks import check_params


def forward(model, x, h0, backend, comm, options):
    """Compute hidden states at this rank's steps; parameters, result and errors are those of `Recurrent.forward`."""
    group = ranks.group(comm)

    with group.collective_check() as gather:
        resolved = backends.resolve(backend)
        if h0 is not None and group.rank > 0:
            got = type(h0).__name__
            raise ValueError(f"h0 must be None on all ranks but rank 0, which has the first step, got {got}")
        model.check_input(x, h0)
        costs, method = None, options.method
        if method == "auto":
            costs = predict.forward_costs(x.shape[:2], model.hidden_size, model.dtype, backend, model.cell.gates)
        every = gather(costs, _given(model, x.shape[1]) | {"method": repr(method), "tol": repr(options.tol)})
    method = predict.choose_forward(tuple(every)) if method == "auto" else method
    start = model.start(x, h0)
    if method == "linear" or group.size == 1:
        saved, solved = _one_after_the_other(group, model, resolved, x, start), None
    else:
        tol = unroll.SolverOptions("chunked", tol=options.tol).limits(model.dtype)[0]
        saved, solved = [], []
        for layer, state in enumerate(np.moveaxis(start, 1, 2)):
            run, make = stacked.chunks_of(model, layer, resolved)
            below = saved[-1][0][0, 1:] if saved else x
            (hidden, kept), found = _all_at_once(group, run, make, below, state, tol)
            saved.append(tuple(stacked.plain(stacked.by_states(hidden), kept)))
            solved.append(found)
    with group.collective_check(), np.errstate(all="ignore"):
        states, gates = stacked.stacks(saved)
        logits = None
        if group.rank == group.size - 1:
            logits = states[-1, 0, -1] @ model.params["fc.weight"].T + model.params["fc.bias"]
            if not np.isfinite(logits).all():
                raise FloatingPointError(recurrent.overflow(model.dtype))
    return recurrent.Activations(x, states, gates, logits, solved)


def _one_after_the_other(group, model, backend, x, start):
    """Run all layers, each rank from what the one before ended with; return what is kept of each.

    A layer's last states go to the next rank as soon as known, so that ranks work on different layers at a time.
    """
    saved, below, fault = [], x, None
    with group.collective_check(), np.errstate(all="ignore"):
        for layer in range(model.num_layers):
            state = np.array(start[layer], order="C")
            group.timed(group.comm.Recv, state, group.neighbor(-1))
            if fault is None:
                try:
                    saved.append(stacked.run_layer(model, layer, below, state, backend))
                    below = saved[-1][0][0, 1:]
                    state = saved[-1][0][:, -1]
                except Exception as error:  # the next rank waits for all layers
                    fault = error
            group.timed(group.comm.Send, np.ascontiguousarray(state), group.neighbor(1))
        if fault is not None:
            raise fault
    return saved


def _all_at_once(group, run, make, x, state, tol):
    """Run a layer on all ranks at once, each but the first from zeros, and repair until they meet.

    What a rank ends with, the next one should have begun with: where it did not, it runs again from there, until it
    meets the states it had. After as many rounds as there are ranks all is right, whatever a cell remembers. Returned
    are the arrays of `run`, and a Solved, the same on all ranks: its steps are those of the rank that took longest.
    """
    with group.collective_check() as gather, np.errstate(all="ignore"):
        state = np.array(state if group.rank == 0 else np.zeros_like(state), order="C")
        before, chunks = state.copy(), make(run, *stacked.plain(x), state, len(x)) if len(x) else None
        if chunks is not None:
            chunks.run_all(state[None])
        lengths = gather(len(x))
    total, solved = max(sum(lengths), 1), Solved("chunked", max(lengths), 1, steps=max(lengths), work=1.0)
    took, fault = (0, 0, 0.0), None
    while True:
        end = state if chunks is None else np.ascontiguousarray(chunks.ends[0])
        group.timed(group.comm.Sendrecv, end, group.neighbor(1), recvbuf=before, source=group.neighbor(-1))
        with group.collective_check() as gather, np.errstate(all="ignore"):
            if fault is not None:
                raise fault
            wrong, jump = differ(state[None], before[None], tol)
            indices = np.flatnonzero(wrong)
            every = gather((jump, len(indices), took))
        jumps, unconverged, tooks = zip(*every, strict=True)
        steps, work, mismatches = zip(*tooks, strict=True)
        solved.jumps.append(max(jumps))
        solved.unconverged.append(sum(unconverged))
        solved.steps, solved.work = solved.steps + max(steps), solved.work + sum(work) / (total * len(state))
        solved.mismatch = max(solved.mismatch, *mismatches)
        if not any(unconverged):
            return run(x, state) if chunks is None else chunks.result(), solved
        solved.passes += 1
        took = 0, 0, 0.0
        try:
            state[indices] = before[indices]
            if chunks is not None and len(indices):
                with np.errstate(all="ignore"):
                    chunks.began[0] = chunks.hidden[0] = state
                    took = chunks.run_chunks(indices, tol)
        except Exception as error:  # the others wait for what this rank ends with
            fault = error


def check_method(method, levels, comm):
    """Raise what `backward` would raise for these arguments, whatever the model."""
    ranks.check_comm(comm)
    arguments.check_method(method, levels)


def backward(model, activations, grad_logits, method, backend, levels, comm):
    """Compute the gradients of all parameters; parameters, result and errors are those of `Recurrent.backward`."""
    group = ranks.group(comm)
    with group.collective_check() as gather:
        arguments.check_method(method, levels)
        model.check_activations(activations)
        steps, batch = activations.x.shape[:2]
        arguments.check_grad_logits(group, grad_logits, model, batch, "step")
        check_params(model.params, model.dtype, model.shapes())
        backend, costs = backends.resolve(backend), None
        if method == "auto":
            shape = steps, batch, model.cell.states * model.hidden_size
            costs = predict.rank_costs(shape, batch, model.dtype, backend, model.cell.weights)
        every = gather(costs, _given(model, batch) | {"method": repr(method)})
    method = predict.choose(tuple(every)) if method == "auto" else method
    grads = _go_back(group, model, activations, grad_logits, method, backend)
    if not all(np.isfinite(grad).all() for grad in grads.values()):
        with group.collective_check():
            recurrent.check_saved(activations)
    return grads


def _given(model, batch):
    """Say what must be the same on all ranks."""
    sizes = model.input_size, model.hidden_size, model.num_classes, model.num_layers
    return {
        "model": f"{type(model).__name__}{sizes} of {model.dtype}",
        "model.params": f"those {ranks.checksum(*model.params.values())}",
        "the batch": f"one of {batch} samples",
    }


def _go_back(group, model, activations, grad_logits, method, backend):
    """Go back through all layers; return the gradients of all parameters, summed over ranks."""
    functions, cell, batch = stacked.layer_of(backend), model.cell, activations.x.shape[1]
    local_grads = grad_output = None

    def links_of(layer):
        weights, saved, below = stacked.layer_parts(model, activations.x, activations.of_layers(), layer)
        return weights[0], saved, below, functions.chain(cell, weights[1], *saved)

    with group.collective_check(), np.errstate(all="ignore"):
        grads = {name: np.zeros(shape, model.dtype) for name, shape in model.shapes().items() if "fc" in name}
        weight_ih, saved, below, links = links_of(model.num_layers - 1)
        if grad_logits is not None:
            grads, grad_output = stacked.from_logits(model, activations.states[-1, 0, -1], grad_logits)
            (grad_output,) = stacked.plain(stacked.at_end(grad_output, None, saved[0]))
    for layer in reversed(range(model.num_layers)):
        segment = DenseSegment(links, batch, backend)
        grad_states = go_back(group, segment, grad_output, local_grads, method).gradients
        del segment
        with group.collective_check(), np.errstate(all="ignore"):
            at_sums = functions.sum_gradients(cell, *saved, grad_states)
            found = functions.parameter_gradients(cell, below, saved[0], at_sums)
            grads |= {f"{name}_l{layer}": grad for name, grad in found.items()}
            if layer:
                # What the layer below is read for at this rank's steps; its state before them is the rank before's.
                at_input = functions.input_gradients(cell, weight_ih, at_sums)
                local_grads = stacked.from_h0(at_input, links)
                grad_output = local_grads[-1]
                del at_sums, at_input, grad_states, links
                weight_ih, saved, below, links = links_of(layer - 1)
    return add_up(group, {name: grads[name] for name in model.shapes()})
