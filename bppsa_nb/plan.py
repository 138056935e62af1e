"""Which method ``"auto"`` takes, and why: a cost model of a few terms."""

from dataclasses import dataclass

import numpy as np

from bppsa_nb import backends
from bppsa_nb.scan.levels import down_levels, num_pairs, up_levels

METHODS = ("linear", "blelloch", "truncated")


@dataclass(frozen=True)
class _Costs:
    """What a backend pays, in seconds; multiply-adds are counted over the whole batch."""

    step: float  # one step of the linear scan, whatever its size
    level: float  # one level of the tree: a launch, or waking the threads
    call: float  # one ⋄ of the tree, where Python calls each by itself
    matvec_rate: float  # float32 multiply-adds per second in matrix-vector products
    matmul_rate: float  # float32 multiply-adds per second in matrix-matrix products


# Orders of magnitude, on two CPU cores and on a large GPU. They need only tell methods apart that differ by a factor.
_COSTS = {
    "numpy": _Costs(step=5e-6, level=0, call=8e-5, matvec_rate=1e9, matmul_rate=5e9),
    "cpu": _Costs(step=2e-7, level=3e-5, call=0, matvec_rate=3e9, matmul_rate=1e10),
    "cuda": _Costs(step=2e-6, level=1e-5, call=0, matvec_rate=3e11, matmul_rate=2e12),
}


@dataclass(frozen=True)
class Explanation:
    """What ``method="auto"`` takes for a chain, and what each candidate was expected to cost.

    Attributes
    ----------
    method, backend : str
        What runs.
    seconds : dict
        Predicted time of every candidate method.
    reason : str
        One sentence. `str()` of the explanation shows everything.
    """

    method: str
    backend: str
    seconds: dict
    reason: str

    def __str__(self):
        lines = [f"method={self.method!r}, backend={self.backend!r}: {self.reason}"]
        for name, seconds in sorted(self.seconds.items(), key=lambda item: item[1]):
            lines.append(f"  {name:<10} {seconds * 1e3:10.3g} ms predicted")
        lines.append(
            "Matrix products carry exact powers of two; where the entries of one lie too far apart for the dtype, "
            "the linear scan computes the answer."
        )
        return "\n".join(lines)


def explain(T, B, H, dtype=np.float32, backend="auto"):
    """Say which method and backend ``"auto"`` takes for a dense chain, and why.

    Parameters
    ----------
    T, B, H : int
        Length of the chain, batch size, size of each x_t.
    dtype : np.dtype
        float32 or float64.
    backend : {"auto", "numpy", "cpu", "cuda"}

    Returns
    -------
    Explanation

    Raises
    ------
    ValueError
        If T is negative, B or H not positive, or the backend unknown.
    """
    for name, value, least in (("T", T, 0), ("B", B, 1), ("H", H, 1)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            raise ValueError(f"{name} must be an integer >= {least}, got {value!r}")
    dtype = np.dtype(dtype)
    if dtype not in (np.float32, np.float64):
        raise TypeError(f"dtype must be float32 or float64, got {dtype}")
    T, B, H = int(T), int(B), int(H)
    backend = backends.resolve(backend)
    costs, width = _COSTS[backend], dtype.itemsize / 4
    matvec = width * B * H**2 / costs.matvec_rate
    matmul = width * B * H**3 / costs.matmul_rate
    # Each level's first pair meets the gradient going up, and the identity going down; the gradient at x_0 is one more.
    levels = up_levels(T) + down_levels(T)
    matmuls = sum(num_pairs(T, d) - 1 for d in range(up_levels(T)))
    matvecs = up_levels(T) + (T > 0) + sum(num_pairs(T, d) - 1 for d in range(down_levels(T)))
    seconds = {
        "linear": T * (costs.step + matvec),
        "blelloch": levels * costs.level + (matmuls + matvecs) * costs.call + matmuls * matmul + matvecs * matvec,
    }
    method = min(seconds, key=seconds.get)
    work = (matmuls * H + matvecs) / max(T, 1)
    if method == "linear":
        reason = (
            f"the tree has {levels} levels instead of {T} steps, but multiplies matrices by matrices, "
            f"{work:.3g} times the work, and this backend has too few workers to make up for it"
        )
    else:
        reason = (
            f"{levels} levels instead of {T} steps: the workers make up for {work:.3g} times the work of the "
            "linear scan"
        )
    return Explanation(method, backend, seconds, reason)
