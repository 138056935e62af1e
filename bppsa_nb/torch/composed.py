"""Layers once more, of PyTorch's own operations: for those who differentiate a backward pass, or batch it."""

from itertools import compress, pairwise

import numpy as np
import torch


def gradients(ctx, grads):
    """Return what `Solve.backward` returns with its `ctx`, by operations that PyTorch can differentiate and batch."""
    needed = ctx.needs_input_grad[2:]
    tensors = ctx.saved_tensors[: len(needed)]
    # Each under a name of its own: one may depend on another, or be given twice. cuDNN has no second derivatives.
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
        own = [tensor.view_as(tensor) for tensor in tensors]
        outputs = run(ctx, *own)
    read = [each is not None for each in grads]
    outputs, grads, wanted = list(compress(outputs, read)), list(compress(grads, read)), list(compress(own, needed))
    found = iter(torch.autograd.grad(outputs, wanted, grads, None, torch.is_grad_enabled(), allow_unused=True))
    return None, None, *(next(found) if need else None for need in needed)


def run(ctx, given, *tensors):
    """Return outputs and last states, as `find` does with the same tensors."""
    states, (spans, _, _, turned, sizes, backward) = ctx.cell.states, ctx.sequences
    starts, params, function = tensors[:states], tensors[states:], getattr(torch, ctx.mode.lower())

    def through(starts, *x):
        hx = starts[0] if states == 1 else tuple(starts)
        return function(*x, hx, params, True, len(starts[0]), 0.0, False, False, *[False] * (len(x) == 1))

    if sizes is not None:
        output, *last = through(starts, given if turned is None else given.index_select(0, turned), sizes)
        return output if turned is None else output.index_select(0, turned), *last
    x, parts = given.flip(0) if backward else given, []
    anew = np.flatnonzero(spans.resets.any(axis=1)).tolist()
    for first, last in pairwise(sorted({0, *anew, len(x)})):
        if first in anew:
            begun = torch.from_numpy(spans.resets[first] != 0).to(x.device)[None, :, None]
            starts = [torch.where(begun, 0, start) for start in starts]
        part, *starts = through(starts, x[first:last])
        parts.append(part)
    output = torch.cat(parts)
    return output.flip(0) if backward else output, *starts
