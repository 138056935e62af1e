"""One node of PyTorch's graph for layers and all their steps, forward and back, and where PyTorch and Numba meet."""

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import torch

from bppsa_nb.cells import stack, unroll
from bppsa_nb.cells.cell import NAMES
from bppsa_nb.chains import backprop as chain
from bppsa_nb.torch import composed, threads


def find(module, sequences, given, *tensors):
    """Return outputs, last states, and what `Solve` saves, of inputs, initial states (L, B, H), and parameters."""
    x = sequences.steps(given)
    states, backend = module.cell.states, module.resolve_backend(on_gpu(x))
    starts, params = tensors[:states], tensors[states:]
    with _beside(x):
        layers = view_layers(module.cell, params)
        spans, by_layer = sequences.begin(list(map(as_array, starts)))
        choice = module.forward_choice
        hidden, kept, solved = stack.run(layers, as_array(x), by_layer, choice.options(), backend, spans, _new(x))
    if choice.rest or any(solved):
        choice.remember(unroll.share_of(layers, x.shape, solved, backend))
    output = sequences.given(as_tensor(hidden[len(hidden) - 1, 0, 1:], x))
    last = ([sequences.by_sample(spans.last(own[s])) for own in hidden] for s in range(states))
    return output, [_stack(each, x) for each in last], (x, hidden, kept)


class Solve(torch.autograd.Function):
    """Layers, one or more, and all steps at once: one node of the graph."""

    @staticmethod
    def forward(ctx, module, sequences, given, *tensors):
        """Return the first two that `find` returns, one after the other."""
        output, last, (x, *arrays) = find(module, sequences, given, *tensors)
        if sequences.rows is None and not sequences.backward:  # what a caller does to it must not reach what goes back
            output = output.clone()
        # Through PyTorch's hands: it notices where one of them is changed before it is needed again, moves them where
        # hooks say, and lets go of them in the end. Detached ones keep their numbers where others get new memory.
        kept = [each.detach() for each in (x, *tensors)] + [as_tensor(each, x) for each in arrays if each is not None]
        ctx.save_for_backward(given, *tensors, *kept)
        ctx.kept = [(each.shape, each.dtype) for each in kept]
        ctx.cell, ctx.mode, ctx.sequences = module.cell, module.mode, sequences
        ctx.how = module.method, module.resolve_backend(on_gpu(x)), module.levels
        ctx.set_materialize_grads(False)
        return output, *last

    @staticmethod
    def backward(ctx, grad_output, *at_last):
        """Return gradients of what `forward` was given, from those of what it returned."""
        if grad_output is None and at_last.count(None) == len(at_last):  # nothing that was read depends on it
            return (None,) * len(ctx.needs_input_grad)
        if torch.is_grad_enabled() or transformed(grad_output, *at_last):  # by create_graph, or is_grads_batched
            return composed.gradients(ctx, (grad_output, *at_last))
        sequences, states, count = ctx.sequences, len(at_last), len(ctx.needs_input_grad) - 3
        x, *tensors = map(plain, ctx.saved_tensors[1 + count :])
        if [(each.shape, each.dtype) for each in (x, *tensors)] != ctx.kept:
            raise RuntimeError("hooks on saved tensors must return tensors of the same shapes and dtypes")
        params, saved = tensors[states:count], tensors[count:]
        grad_output = None if grad_output is None else plain(sequences.steps(grad_output))
        at_last = _side_by_side(at_last)
        with _beside(x):
            layers, saved = view_layers(ctx.cell, params), [*map(as_array, saved), None][:2]
            spans, _ = sequences.begin(list(map(as_array, tensors[:states])))
            ends = [None] * len(saved[0]) if at_last is None else map(as_array, at_last)
            ends = [end if end is None else sequences.by_number(end) for end in ends]
            terms = [None] * (len(ends) - 1) + [None if grad_output is None else as_array(grad_output)]
            sizes = (*x.shape[:2], states * layers.hidden_size), layers.dtype, layers.cell.weights
            how = chain.choose(*ctx.how, *sizes)
            more = ctx.needs_input_grad[2], spans, _new(x)
            found = stack.run_back(layers, as_array(x), saved, (ends, terms), how, *more)
        grads, at_input, at_start = found
        of_starts = [None] * states
        if any(ctx.needs_input_grad[3 : 3 + states]):
            of_starts = map(plain, _stack(list(map(sequences.by_sample, at_start)), x).chunk(states, 2))
        of_x = None if at_input is None else sequences.given(as_tensor(at_input, x))
        return None, None, of_x, *of_starts, *(as_tensor(grads[name], x) for name in layers.params)


# Where PyTorch and Numba meet.


def view_layers(cell, params):
    """Return layers as `bppsa_nb.cells.stack` takes them, on the memory of parameters in PyTorch's order."""
    arrays, count = list(map(as_array, params)), len(params) // len(NAMES)
    names = [f"{name}_l{layer}" for layer in range(count) for name in NAMES]
    named, sizes = dict(zip(names, arrays, strict=True)), {"hidden_size": arrays[1].shape[1], "num_layers": count}
    return SimpleNamespace(cell=cell, dtype=arrays[0].dtype, params=named, **sizes)


def transformed(*tensors):
    """Tell whether a transform of `torch.func` is at work, or tensors are batches of such, which have no memory."""
    batched = torch._C._functorch.is_legacy_batchedtensor
    return torch._C._are_functorch_transforms_active() or any(each is not None and batched(each) for each in tensors)


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


def _side_by_side(at_last):
    """Return gradients at last states [shape=(L, B, S H)], or None if none are given."""
    like = next((grad for grad in at_last if grad is not None), None)
    if like is None:
        return None
    return plain(torch.cat([torch.zeros_like(like) if grad is None else grad for grad in at_last], 2))


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
