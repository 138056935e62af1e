"""Layers once more, of PyTorch's own operations: for those who differentiate a backward pass, or batch it."""

from itertools import compress, pairwise

import numpy as np
import torch


def gradients(ctx, grads):
    """Return what `Solve.backward` returns with its `ctx`, by operations that PyTorch can differentiate and batch."""
    needed = ctx.needs_input_grad[2:]
    given, _, *tensors = ctx.saved_tensors
    with torch.enable_grad():  # each under a name of its own: one may depend on another, or be given twice
        own = [tensor.view_as(tensor) for tensor in (given, *tensors[: len(needed) - 1])]
        outputs = run(ctx.module, ctx.sequences, *own)
    read = [each is not None for each in grads]
    outputs, grads = list(compress(outputs, read)), list(compress(grads, read))
    wanted = [tensor for tensor, need in zip(own, needed, strict=True) if need]
    more = {"create_graph": torch.is_grad_enabled(), "allow_unused": True}
    found = iter(torch.autograd.grad(outputs, wanted, grads, **more))
    return None, None, *(next(found) if need else None for need in needed)


def run(module, sequences, given, *tensors):
    """Return what `Solve.forward` returns of the same arguments."""
    states, (spans, _, _, turned, sizes, backward) = module.cell.states, sequences
    starts, params, function = tensors[:states], tensors[states:], getattr(torch, module.mode.lower())
    settings = params, True, len(starts[0]), 0.0, False, False

    def through(*x, starts):
        hx = starts[0] if states == 1 else starts
        with torch.backends.cudnn.flags(enabled=False):  # which has no second derivatives
            return function(*x, hx, *settings) if len(x) > 1 else function(*x, hx, *settings, False)

    if sizes is not None:
        x = given if turned is None else given.index_select(0, turned)
        output, *last = through(x, sizes, starts=starts)
        return output if turned is None else output.index_select(0, turned), *last
    x, parts = given.flip(0) if backward else given, []
    anew = np.flatnonzero(spans.resets.any(axis=1)).tolist()
    for first, last in pairwise(sorted({0, *anew, len(x)})):
        if first in anew:
            begun = torch.from_numpy(spans.resets[first] != 0).to(x.device)[None, :, None]
            starts = [torch.where(begun, 0, start) for start in starts]
        part, *starts = through(x[first:last], starts=tuple(starts))
        parts.append(part)
    output = torch.cat(parts)
    return output.flip(0) if backward else output, *starts
