"""Transposed Jacobians compiled for CPUs: their entries, listed once, and their values, filled in again and again.

Functions take a range ``first ... last`` of rows, planes or entries, so that `machine.workers.parallel_for` can hand it
out in chunks. They fill arrays they are given, and return whether what they read could be used. They cut that range out
first: an index that starts at zero is known not to be negative, and loops over it are vectorized.
"""

import numpy as np

from bppsa_nb.machine.compiling import njit

_compile = njit(cache=True, error_model="numpy", nogil=True)


@_compile
def list_entries(mask, axes, out_shape, indptr, of_weight, entries, first, last):
    """List the entries of a convolution's transposed Jacobian, for rows of input channels and rows of the image.

    `mask` has shape (C_in, C_out, kh, kw). Both `axes` [shape=(size, kernel)] say which output an input reaches through
    a tap, or -1; outputs rise as taps fall. `entries` [shape=(nnz,)] become columns or, `of_weight`,
    places in the weight, with shape (C_out, C_in, kh, kw).
    """
    inputs, outputs, kernel_h, kernel_w = mask.shape
    vertical, horizontal = axes
    height, width = len(vertical), len(horizontal)
    for line in range(first, last):
        channel, y = line // height, line % height
        for x in range(width):
            p = indptr[line * width + x]
            for o in range(outputs):
                for a in range(kernel_h - 1, -1, -1):
                    for b in range(kernel_w - 1, -1, -1):
                        if vertical[y, a] >= 0 and horizontal[x, b] >= 0 and mask[channel, o, a, b]:
                            if of_weight:
                                entries[p] = ((o * inputs + channel) * kernel_h + a) * kernel_w + b
                            else:
                                entries[p] = (o * out_shape[0] + vertical[y, a]) * out_shape[1] + horizontal[x, b]
                            p += 1
    return True


@_compile
def gather(weight, source, values, first, last):
    """Fill ``values[i] = weight[source[i]]``."""
    source, values = source[first:last], values[first:last]
    for i in range(len(values)):
        values[i] = weight[source[i]]
    return True


@_compile
def repeat_rows(distinct, begin, indptr, values, first, last):
    """Fill row i with the entries of `distinct` from ``begin[i]`` on."""
    for i in range(first, last):
        row = values[indptr[i] : indptr[i + 1]]
        same = distinct[begin[i] :]
        for j in range(len(row)):
            row[j] = same[j]
    return True


@_compile
def _shift(tap, kernel, width):
    return tap // kernel[1] * width + tap % kernel[1]


@_compile
def _first_of_four(x, second, third, fourth, winner):
    """Find out which of four is the first maximum, everywhere; three are so many entries further on."""
    b, c, d = x[second:], x[third:], x[fourth:]
    for i in range(len(winner)):
        best, tap = x[i], np.uint32(0)
        tap, best = (np.uint32(1), b[i]) if b[i] > best else (tap, best)
        tap, best = (np.uint32(2), c[i]) if c[i] > best else (tap, best)
        winner[i] = np.uint32(3) if d[i] > best else tap
    return True


@_compile
def _challenge(x, tap, best, winner):
    """Let another tap replace the winner where it is larger."""
    for i in range(len(winner)):
        larger = x[i] > best[i]
        best[i] = x[i] if larger else best[i]
        winner[i] = tap if larger else winner[i]
    return True


@_compile
def max_pool(planes, width, kernel, stride, slot, values, first, last):
    """Fill 1 at the first maximum of every window of planes [shape=(P, h * w)], else 0.

    Taps take turns over a whole plane, in loops that the compiler vectorizes: at every place there might be a window,
    of which `slot` [shape=(h_out, w_out, kh * kw)] then picks those there are: where in a plane's values [shape=(P,
    slot.size)] the entry of a window and a tap is. `kernel` and `stride` are vertical and horizontal.
    """
    out_h, out_w, taps = slot.shape
    slots = slot.reshape(-1)
    step = stride[0] * width
    places = (out_h - 1) * step + (out_w - 1) * stride[1] + 1
    winner = np.empty(places, np.uint32)
    best = np.empty(places if taps > 4 else 0, planes.dtype)
    finite = True
    for p in range(first, last):
        x, ones = planes[p], values[p]
        for i in range(len(x)):
            finite &= x[i] - x[i] == 0
        for i in range(len(ones)):
            ones[i] = 0
        if taps <= 4:  # the last tap once more is never larger
            second, third = _shift(min(1, taps - 1), kernel, width), _shift(min(2, taps - 1), kernel, width)
            _first_of_four(x, second, third, _shift(taps - 1, kernel, width), winner)
        else:
            for i in range(places):
                best[i] = x[i]
                winner[i] = 0
            for tap in range(1, taps):
                _challenge(x[_shift(tap, kernel, width) :], np.uint32(tap), best, winner)
        window = np.uint64(0)  # unsigned, as no index here is negative
        for y in range(out_h):
            at = np.uint64(y * step)
            for _ in range(out_w):
                ones[slots[window + winner[at]]] = 1
                at += np.uint64(stride[1])
                window += np.uint64(taps)
    return finite
