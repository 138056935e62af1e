"""Residual networks and multigrid as the paper writes them, in loops: slow, and easy to check by eye.

Imports nothing of the package. `fas` keeps every term of Equations 16 and 19 to 24, also those that cancel.
"""

import math

import numpy as np


def meetings(weights, shape):
    """What meets in W u of one sample, place by place: of the result, of u, and of the weight between them.

    A state is a vector, or an image with zeros around it.
    """
    if weights.ndim == 2:
        for i in range(shape[0]):
            for j in range(shape[0]):
                yield (i,), (j,), (i, j)
        return
    channels, height, width = shape
    size = weights.shape[-1]
    for o in range(channels):
        for y in range(height):
            for x in range(width):
                for c in range(channels):
                    for i in range(size):
                        for j in range(size):
                            row, column = y + i - size // 2, x + j - size // 2
                            if 0 <= row < height and 0 <= column < width:
                                yield (o, y, x), (c, row, column), (o, c, i, j)


def product(weights, u):
    """W u of one sample."""
    result = np.zeros_like(u)
    for out, place, weight in meetings(weights, u.shape):
        result[out] += weights[weight] * u[place]
    return result


def transposed_product(weights, v):
    """W^T v of one sample."""
    result = np.zeros_like(v)
    for out, place, weight in meetings(weights, v.shape):
        result[place] += weights[weight] * v[out]
    return result


def activate(z, activation):
    """σ(z) and σ'(z), entry by entry."""
    value, slope = np.zeros_like(z), np.zeros_like(z)
    for place in np.ndindex(z.shape):
        if activation == "tanh":
            value[place] = math.tanh(z[place])
            slope[place] = 1 - math.tanh(z[place]) ** 2
        elif z[place] > 0:
            value[place], slope[place] = z[place], 1
    return value, slope


def before_activation(weights, bias, u):
    """W u + b of one sample."""
    z = product(weights, u)
    for place in np.ndindex(z.shape):
        z[place] += bias[place[0]]
    return z


def step(weights, bias, size, activation, u):
    """u + size F(u) for a batch."""
    return np.stack([each + size * activate(before_activation(weights, bias, each), activation)[0] for each in u])


def adjoint_step(weights, bias, size, activation, u, g):
    """The gradient at u, from that at u + size F(u)."""
    found = []
    for each, grad in zip(u, g, strict=True):
        slope = activate(before_activation(weights, bias, each), activation)[1]
        found.append(grad + size * transposed_product(weights, slope * grad))
    return np.stack(found)


class Level:
    """A level's points among those of the network, and the step from each of them to the next."""

    def __init__(self, steps, points):
        self.steps, self.points = steps, points
        self.size = len(points) - 1

    def phi(self, k, u):
        return self.steps(self.points[k], self.points[k + 1], u)

    def apply(self, values):
        """L(U): the first value, and what every other one differs by from the step before it."""
        return [values[0]] + [values[k + 1] - self.phi(k, values[k]) for k in range(self.size)]


def points_of_levels(depth, coarsening, levels):
    """The points of every level, finest first: every c-th of those before, and the last."""
    points = [list(range(depth + 1))]
    for _ in range(levels - 1):
        points.append([p for k, p in enumerate(points[-1]) if k % coarsening == 0 or p == depth])
    return points


def fas(steps, points, first, guess, relaxation, cycle, cycles):
    """Cycles of Algorithm 1 on any number of levels; returns values and the residual's norm after each cycle.

    ``steps(a, b, u)`` is the one step from point a to point b. `points` are those of every level, finest first, in the
    order of propagation.
    """
    levels = len(points)
    grids = [Level(steps, each) for each in points]
    kept = [[fine.index(p) for p in coarse] for fine, coarse in zip(points[:-1], points[1:], strict=True)]

    def f_relax(i, values, right):
        for k in range(grids[i].size):
            if k + 1 not in kept[i]:
                values[k + 1] = grids[i].phi(k, values[k]) + right[k + 1]

    def c_relax(i, values, right):
        before = list(values)
        for k in kept[i][1:]:
            values[k] = grids[i].phi(k - 1, before[k - 1]) + right[k]

    def residual(i, values, right):
        return [f - left for f, left in zip(right, grids[i].apply(values), strict=True)]

    def visit(i, values, right, kind):
        if i == levels - 1:
            for k in range(grids[i].size):
                values[k + 1] = grids[i].phi(k, values[k]) + right[k + 1]
            return
        f_relax(i, values, right)
        if relaxation == "FCF":
            c_relax(i, values, right)
            f_relax(i, values, right)
        rest = residual(i, values, right)
        injected = [values[k] for k in kept[i]]
        source = [left + rest[k] for left, k in zip(grids[i + 1].apply(injected), kept[i], strict=True)]
        coarse = list(injected)
        visit(i + 1, coarse, source, kind)
        if kind == "F" and i + 1 < levels - 1:
            visit(i + 1, coarse, source, "V")
        for place, k in enumerate(kept[i]):
            values[k] = values[k] + (coarse[place] - injected[place])
        f_relax(i, values, right)
        if relaxation == "FC":
            c_relax(i, values, right)
            f_relax(i, values, right)

    values = [first, *guess[1:]]
    right = [first] + [np.zeros_like(first)] * grids[0].size
    norms = []
    for _ in range(cycles):
        visit(0, values, right, cycle)
        norms.append(math.sqrt(sum(float((r**2).sum()) for r in residual(0, values, right))))
    return np.stack(values), np.array(norms)
