"""One node of PyTorch's graph for layers and all their steps, forward and back, and where PyTorch and Numba meet."""

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import torch

from bppsa_nb.cells import stack, unroll
from bppsa_nb.chains import backprop as chain
from bppsa_nb.torch import composed, threads


def find(layers, sequences, every, given, *tensors):
    """Return a tuple, what `Solve.forward` does, and what `Solve` saves, with the same arguments."""
    x, states = sequences.steps(given), layers.cell.states
    backend, choice = layers.resolve_backend(on_gpu(x)), layers.forward_choice
    spans, starts = sequences.begin(tensors[:states])
    with _beside(x):
        viewed, starts = view_layers(layers.cell, tensors[states:]), list(map(as_array, starts))
        by_layer = [[each[layer] for each in starts] for layer in range(len(starts[0]))]
        how = choice.options(), backend, spans
        if layers.checkpoint_every is None:
            saved, kept, solved = stack.run(viewed, as_array(x), by_layer, *how, _new(x))
            ended = [[spans.last(own[s]) for s in range(states)] for own in saved]
            found = [[own[s][1:] for s in range(states)] for own in saved]
        else:
            shape = (len(by_layer), states) if every else (1, 1)  # the last layer's h is all that is read
            kept, found = None, np.empty((*shape, len(x), *starts[0].shape[1:]), starts[0].dtype)

            def read(steps, states):
                found[:, :, steps] = states[-len(found) :, : found.shape[1], 1:]

            segments = stack.Segments(layers.checkpoint_every, *how)
            saved, ended, solved = segments.forward(viewed, as_array(x), np.array(by_layer), read)
    if choice.rest or any(solved):
        choice.remember(unroll.share_of(viewed, x.shape, solved, backend))
    last = [_stack([sequences.by_sample(own[s]) for own in ended], x) for s in range(states)]
    all_states = ([sequences.given(as_tensor(own[s], x)) for own in found] for s in range(states) if every)
    return (sequences.given(as_tensor(found[-1][0], x)), *last, *map(torch.stack, all_states)), (x, saved, kept)


class Solve(torch.autograd.Function):
    """Layers, one or more, and all steps at once: one node of the graph."""

    @staticmethod
    def forward(ctx, layers, sequences, every, given, *tensors):
        """Return outputs, last states, and all states if `every` asks for them, one after the other.

        They are of inputs, initial states of every sequence [shape=(L, B or n, H)], and parameters.
        """
        (output, *more), (x, *arrays) = find(layers, sequences, every, given, *tensors)
        if sequences.rows is None and not sequences.backward:  # what a caller does to it must not reach what goes back
            output = output.clone()
        # Through PyTorch's hands: it notices where one of them is changed before it is needed again, moves them where
        # hooks say, and lets go of them in the end. Detached ones keep their numbers where others get new memory.
        kept = [each.detach() for each in (x, *tensors)] + [as_tensor(each, x) for each in arrays if each is not None]
        ctx.save_for_backward(given, *tensors, *kept)
        ctx.kept = [(each.shape, each.dtype) for each in kept]
        ctx.cell, ctx.sequences, ctx.every = layers.cell, sequences, every
        ctx.how = layers.method, layers.resolve_backend(on_gpu(x)), layers.levels
        ctx.segments = layers.checkpoint_every, layers.forward_choice.options()
        ctx.set_materialize_grads(False)
        return output, *more

    @staticmethod
    def backward(ctx, *grads):
        """Return gradients of what `forward` was given, from those of what it returned."""
        if all(each is None for each in grads):  # nothing that was read depends on it
            return (None,) * len(ctx.needs_input_grad)
        if torch.is_grad_enabled() or transformed(*grads):  # by create_graph, or is_grads_batched
            return composed.gradients(ctx, grads)
        sequences, states, count = ctx.sequences, ctx.cell.states, len(ctx.needs_input_grad) - 4
        x, *tensors = map(plain, ctx.saved_tensors[1 + count :])
        if [(each.shape, each.dtype) for each in (x, *tensors)] != ctx.kept:
            raise RuntimeError("hooks on saved tensors must return tensors of the same shapes and dtypes")
        params, saved = tensors[states:count], tensors[count:]
        at_last, terms = _side_by_side(grads[1 : 1 + states]), _terms(sequences, len(saved[0]), states, grads)
        spans, _ = sequences.begin(tensors[:states])
        with _beside(x):
            layers, saved = view_layers(ctx.cell, params), [*map(as_array, saved), None][:2]
            ends = [None] * len(terms) if at_last is None else map(as_array, at_last)
            ends = [end if end is None else sequences.by_number(end) for end in ends]
            read = ends, [each if each is None else as_array(each) for each in terms]
            sizes = (*x.shape[:2], states * layers.hidden_size), layers.dtype, layers.cell.weights
            how, (every, options), inputs = chain.choose(*ctx.how, *sizes), ctx.segments, ctx.needs_input_grad[3]
            if every is None:
                found = stack.run_back(layers, as_array(x), saved, read, how, inputs, spans, _new(x))
            else:
                again = stack.Segments(every, options, how[1], spans)
                found = again.backward(layers, as_array(x), saved[0], read, how, inputs)
        grads, at_input, at_start = found
        of_starts = [None] * states
        if any(ctx.needs_input_grad[4 : 4 + states]):
            at_start = at_start if sequences.rows is None else map(sequences.by_sample, at_start)
            of_starts = map(plain, _stack(list(at_start), x).chunk(states, 2))
        of_x = None if at_input is None else sequences.given(as_tensor(at_input, x))
        return None, None, None, of_x, *of_starts, *(as_tensor(grads[name], x) for name in layers.params)


def _terms(sequences, count, states, grads):
    """Return gradients that enter at all states of so many layers, as `cells.stack.backward` takes them, or None."""
    terms = []
    for layer in range(count):
        own = [each if each is None else each[layer] for each in grads[1 + states :]] or [None] * states
        if layer == count - 1 and grads[0] is not None:
            own[0] = grads[0] if own[0] is None else own[0] + grads[0]
        own = [each if each is None else sequences.steps(each) for each in own]
        only_h = own[0] is not None and all(each is None for each in own[1:])
        terms.append(plain(own[0]) if only_h else _side_by_side(own))
    return terms


# Where PyTorch and Numba meet.


def view_layers(cell, params):
    """Return layers as `bppsa_nb.cells.stack` takes them, on the memory of parameters in PyTorch's order."""
    arrays, count = list(map(as_array, params)), len(params) // len(cell.names)
    names = [f"{name}_l{layer}" for layer in range(count) for name in cell.names]
    sizes = {"hidden_size": len(arrays[0]) // cell.gates, "num_layers": count, "dtype": arrays[0].dtype}
    return SimpleNamespace(cell=cell, params=dict(zip(names, arrays, strict=True)), **sizes)


def transformed(*tensors):
    """Tell whether a transform of `torch.func` is at work, or tensors are batches of such, which have no memory."""
    batched = torch._C._functorch.is_legacy_batchedtensor
    return torch._C._are_functorch_transforms_active() or any(each is not None and batched(each) for each in tensors)


def batched():
    """Tell whether `torch.func.vmap` is at work."""
    every = torch._C._functorch.get_interpreter_stack()  # None where no transform is
    return bool(every) and any(each.key() == torch._C._functorch.TransformType.Vmap for each in every)


def on_gpu(tensor):
    """Tell whether a tensor is in a GPU's memory."""
    return tensor.is_cuda


def _new(tensor):
    """Return what makes arrays where a tensor is on a GPU: PyTorch; or None."""
    return (lambda shape: as_array(tensor.new_empty(shape))) if on_gpu(tensor) else None


def plain(tensor):
    """Return a tensor whose numbers are in memory as they are, row by row: without minus signs that were put off."""
    return tensor.resolve_neg().contiguous()


def as_array(tensor):
    """View a tensor, contiguous where it is on a GPU, as an array: NumPy's or Numba's, which keeps it alive."""
    if not on_gpu(tensor):
        return tensor.detach().numpy()
    from bppsa_nb.machine.arrays_cuda import as_device_array

    return as_device_array("input", tensor.detach())


def _side_by_side(grads):
    """Return gradients at states [shape=(L or T, B, S H)], or None if none are given."""
    like = next((grad for grad in grads if grad is not None), None)
    if like is None:
        return None
    return plain(torch.cat([torch.zeros_like(like) if grad is None else grad for grad in grads], 2))


def as_tensor(array, like):
    """View an array as a tensor, which keeps it alive, where another tensor is."""
    return torch.as_tensor(array, device=like.device) if on_gpu(like) else torch.from_numpy(array)


def _stack(arrays, like):
    """Copy arrays to a tensor where another one is."""
    if on_gpu(like):
        return torch.stack([as_tensor(array, like) for array in arrays])
    return torch.from_numpy(np.array(arrays))


@contextmanager
def _beside(tensor):
    """Have a block compute where a tensor is; whatever leaves the range is infinite or NaN, as in PyTorch.

    Numba launches on the legacy default stream. It is PyTorch's default stream, too; where PyTorch is on another one,
    either waits for the other. Nothing of PyTorch's is launched in between.
    """
    if not tensor.is_cuda:
        with threads.lent(), np.errstate(all="ignore"):
            yield
        return
    from bppsa_nb.machine.cuda_compiler import cuda

    with torch.cuda.device(tensor.device), cuda.gpus[tensor.device.index], np.errstate(all="ignore"):
        here, legacy = torch.cuda.current_stream(), torch.cuda.default_stream()
        legacy.wait_stream(here)
        try:
            yield
        finally:
            here.wait_stream(legacy)
