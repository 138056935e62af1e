"""Recurrent layers whose steps are spread over MPI ranks: what is of size T stays where it is made (Section 3.6)."""

from contextlib import nullcontext

import numpy as np

from bppsa_nb.cells import recurrent, stack, unroll
from bppsa_nb.cells.chunked import Solved, differ
from bppsa_nb.distributed import ranks, segments
from bppsa_nb.distributed.solver import go_back
from bppsa_nb.distributed.training import add_up
from bppsa_nb.machine import backends
from bppsa_nb.machine.memory import contiguous


def forward(model, x, h0, backend, comm, options):
    """Compute hidden states at this rank's steps; parameters, result and errors are those of `Recurrent.forward`."""
    group = ranks.group(comm)

    with group.collective_check() as gather:
        resolved = backends.resolve(backend)
        group.check_owner(0, "has the first step", h0=h0)
        given = model.each_state(h0)
        model.check_input(x, given)
        gather(alike=_given(model, x.shape[1]) | {"method": repr(options.method), "tol": repr(options.tol)})
    # Rank after rank, the last one is done with the last layer when each would be done with size + num_layers - 1 of
    # its own; all at once, repairs are expected to take as long as the first pass.
    most = model.num_layers + 1 if options.method == "auto" else 1
    method = "linear" if group.size <= most else options.method.replace("auto", "chunked")
    layers = Ranks(group, model, x, resolved, method, tol=options.tol)
    with group.collective_check() if layers.method == "linear" else nullcontext(), np.errstate(all="ignore"):
        stack.forward(layers, x, model.start(x, given))
        if layers.fault is not None:
            raise layers.fault
    with group.collective_check(), np.errstate(all="ignore"):
        inner, logits = layers.inner, None
        states, kept = inner.give(inner.states, x), inner.give(inner.kept, x) if model.cell.kept else None
        if group.is_last:
            logits = stack.logits(model.head, states[-1, 0, -1])
            if not np.isfinite(logits).all():
                raise FloatingPointError(recurrent.overflow(model.dtype))
    solved = layers.solved if any(layers.solved) else None
    return recurrent.Activations(x, states, kept, logits, solved).sign(model.kind)


class Ranks:
    """Layers whose steps are spread over ranks, each of which has its own, on the host or on a GPU; see `stack.Host`.

    States are found rank after rank (``"linear"``) or by all ranks at once (``"chunked"``), and so are gradients.
    """

    sweeps = False

    def __init__(self, group, model, x, backend, method, saved=None, tol=None):
        self.group, self.model, self.x, self.backend, self.method = group, model, x, backend, method
        on_host = saved is None and method == "chunked"  # chunks of a forward pass, whose loops may be on a GPU
        make = stack.Host if on_host else stack.layers_of
        self.inner = make(model, x.shape if on_host else x, backend, how=("linear", backend, None), saved=saved)
        self.hidden, self.solved, self.fault = self.inner.hidden, [None] * model.num_layers, None
        self.tol = unroll.SolverOptions("chunked", tol=tol).limits(model.dtype)[0]

    def forward(self, layer, below, start):
        """Find the states of a layer at this rank's steps; `start` counts on rank 0.

        Rank after rank, a layer's last states go on as soon as known, so that ranks work on different layers at a time.
        """
        group, below = self.group, self.inner.take(below)
        if self.method != "linear":
            run, make = self.inner.chunks_of(layer)
            found, self.solved[layer] = _all_at_once(group, run, make, below, stack.by_samples(start), self.tol)
            states, kept = self.inner.saved[layer]
            states[...], kept[...] = stack.by_states(found[0]), found[1]
            return
        state = np.array(start, order="C")
        group.timed(group.comm.Recv, state, group.neighbor(-1))
        if self.fault is None:
            try:
                self.inner.forward(layer, below, state)
                for s, last in enumerate(state):
                    last[...] = self.inner.give(self.inner.states[layer, s, len(self.x)], self.x)
            except Exception as error:  # the next rank waits for all layers
                self.fault = error
        group.timed(group.comm.Send, state, group.neighbor(1))

    def enter(self, layer, end, terms):
        """Return where the loss enters a layer at this rank's steps: at its last states, and at all states, or None."""
        N, size = self.model.cell.states * self.model.hidden_size, self.model.hidden_size
        if terms is not None:  # what the layer above reads; the state before this rank's steps is the rank before's
            at_all = np.zeros((len(self.x) + 1, self.x.shape[1], N), self.model.dtype)
            at_all[1:, :, :size] = terms
            return at_all[-1], at_all
        if end is not None and end.shape[1] < N:
            end = np.concatenate([end, np.zeros((len(end), N - size), end.dtype)], axis=1)
        return end, None

    def chain(self, layer):
        """Return the transposed Jacobians of a layer's states at this rank's steps."""
        with self.group.collective_check():
            return self.inner.chain(layer)

    def scan(self, chain, entering):
        """Return the gradients at all states of a layer at this rank's steps."""
        segment = segments.DenseSegment(chain, self.x.shape[1], self.backend)
        return go_back(self.group, segment, *entering, self.method).gradients

    def gradients(self, layer, below, grad_states, wanted):
        """Find this rank's part of the gradients of a layer's parameters; return those at its input, if wanted."""
        with self.group.collective_check():
            below, grad_states = map(self.inner.take, (below, grad_states))
            terms = self.inner.gradients(layer, below, grad_states, wanted)
            if terms is None:
                return None
            # On a GPU, they have room for the initial states, and for others than h.
            return self.inner.give(terms, self.x)[-len(self.x) :, :, : self.model.hidden_size]


def _all_at_once(group, run, make, x, state, tol):
    """Run a layer on all ranks at once, each but the first from zeros, and repair until they meet.

    What a rank ends with, the next one should have begun with: where it did not, it runs again from there, until it
    meets the states it had. After as many rounds as there are ranks all is right, whatever a cell remembers. Returned
    are the arrays of `run`, and a Solved, the same on all ranks: its steps are those of the rank that took longest.
    """
    with group.collective_check() as gather, np.errstate(all="ignore"):
        state = np.array(state if group.rank == 0 else np.zeros_like(state), order="C")
        before, chunks = state.copy(), make(run, *contiguous(x), state, len(x)) if len(x) else None
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
    segments.check_method(method, levels)


def backward(model, activations, grad_logits, method, backend, levels, comm):
    """Compute the gradients of all parameters; parameters, result and errors are those of `Recurrent.backward`."""
    group = ranks.group(comm)
    with group.collective_check() as gather:
        segments.check_method(method, levels)
        activations.check(model.kind, model)
        batch = activations.x.shape[1]
        group.check_grad_logits(grad_logits, model, batch, "step")
        backend = backends.resolve(backend)
        gather(alike=_given(model, batch) | {"method": repr(method)})
    method, end = segments.choose(method, group.size, model.cell.states * model.hidden_size), None
    with group.collective_check(), np.errstate(all="ignore"):
        grads = {name: np.zeros(shape, model.dtype) for name, shape in model.shapes().items() if name in recurrent.HEAD}
        layers = Ranks(group, model, activations.x, backend, method, activations.saved)
        if grad_logits is not None:
            *of_head, end = stack.from_logits(model.head, activations.states[-1, 0, -1], grad_logits)
            grads = dict(zip(recurrent.HEAD, of_head, strict=True))
    with np.errstate(all="ignore"):
        stack.backward(layers, activations.x, [None] * (model.num_layers - 1) + [end])
    grads |= {name: layers.inner.give(grad, activations.x) for name, grad in layers.inner.grads.items()}
    grads = add_up(group, {name: grads[name] for name in model.shapes()})
    if not all(np.isfinite(grad).all() for grad in grads.values()):
        with group.collective_check():
            recurrent.check_saved(activations)
    return grads


def _given(model, batch):
    """Say what must be the same on all ranks."""
    sizes = model.input_size, model.hidden_size, model.num_classes, model.num_layers
    return {
        "model": f"{type(model).__name__}{sizes} of {model.dtype}",
        "model.params": f"those {ranks.checksum(model.params.flat)}",
        "the batch": f"one of {batch} samples",
    }
