"""Recurrences, run step by step, in chunks that are repaired, or by Newton's method; and which of these to take."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from bppsa_nb.cells.chunked import Chunks, Solved, distance
from bppsa_nb.chains.backprop import backprop
from bppsa_nb.chains.plan import chunk_length, explain, solve_seconds
from bppsa_nb.machine import checks
from bppsa_nb.machine.arguments import Size, Steps, checked
from bppsa_nb.machine.checks import short_repr, with_repr
from bppsa_nb.operands.range import DynamicRangeError

METHODS = ("linear", "chunked", "newton")
TOLERANCE = {4: 2 * float(np.finfo(np.float32).eps), 8: 1e-12}  # by bytes of a number
REPAIRS = 4  # loops' work, before chunks are taken one after the other
REPAIRS_OF_ARRAYS = 16  # where a step is a function of arrays, for which more samples are little more work
CORRECTIONS = 8  # before Newton's method is given up
AGAIN = 50  # passes by the loop, before chunks are tried again


@dataclass(frozen=True)
class SolverOptions:
    """How a recurrence is solved, checked; see `bppsa_nb.cells.recurrent.Recurrent.forward`."""

    method: str
    length: int | None = None
    tol: float | None = None
    most: float | None = None

    def __post_init__(self):
        checks.check_choice("method", self.method, ("auto", *METHODS))
        for name in ("length", "tol", "most") if self.method in ("auto", "linear") else ():
            if getattr(self, name) is not None:
                only = "is for method='chunked' and 'newton' only"
                raise ValueError(f"{name} {only}, got {getattr(self, name)!r} with {self.method!r}")
        if self.method == "newton" and self.most is not None and not (self.most >= 1 and self.most % 1 == 0):
            raise ValueError(f"most must be an integer of at least 1 with method='newton', got {self.most!r}")

    def limits(self, dtype):
        """Return the tolerance, and what may be spent."""
        tol = TOLERANCE[np.dtype(dtype).itemsize] if self.tol is None else self.tol
        return tol, {"newton": CORRECTIONS}.get(self.method, REPAIRS) if self.most is None else self.most


def solve(options, length, run, x, h0, make=Chunks, linearize=None, bound=None):
    """Solve a recurrence as `options` says, in chunks of `length` steps; if it is no longer, as a loop.

    The method is not "auto". `run`, `x` and `h0` are as `Chunks` takes them; ``make(run, x, h0, length)`` cuts the
    recurrence into chunks; `linearize` and `bound` are as `correct` takes them, for method "newton" only.
    Returns a tuple of arrays, the states (T + 1, B, ...) and what else `run` keeps; and `Solved`, or None for the loop.
    """
    if options.method == "linear" or len(x) <= length:
        return run(x, h0), None
    tol, most = options.limits(h0.dtype)
    chunks = make(run, x, h0, length)
    if options.method == "newton":
        chunks.solved.method = "newton"
        chunks.run_all(np.concatenate([h0[None], np.zeros((chunks.count - 1, *h0.shape), h0.dtype)]))
        chunks.run_all(np.concatenate([h0[None], chunks.ends[:-1]]))  # no worse a guess than others, and free
        if not correct(chunks, linearize, tol, most, bound):
            arrays, solved = solve(SolverOptions("chunked", tol=tol), length, run, x, h0, make)
            return arrays, chunks.solved.add(solved)
        most = REPAIRS
    else:
        chunks.run_all(chunks.guess())
    chunks.repair(tol, most)
    return chunks.result(), chunks.solved


def correct(chunks, linearize, tol, most, bound):
    """Correct what chunks that ran begin with until the gaps between them are within `tol`; tell whether they are.

    With chunks of one step, this is DEER: all states at once, each step linearized where it is, and the linear
    recurrence that is left solved by the scan that back-propagates. Longer chunks need fewer products, but each pass
    runs them step by step (multiple shooting).

    `linearize` takes chunks and returns the derivative of each lane's end by its beginning, an array (lanes, H, H), or
    raises DynamicRangeError. There are at most `most` corrections. States cannot be larger than `bound` [shape=(B,
    ...)], if given: where Newton's method goes beyond, it is brought back.
    """
    while True:
        began, ended = chunks.began, chunks.ends[:-1]
        if (distance(began[1:], ended) <= tol).all():
            return True
        if chunks.solved.corrections == most:
            return False
        with np.errstate(all="ignore"):
            try:
                gaps = (ended - began[1:]).reshape(*ended.shape[:2], -1)
                corrected = began[1:] + propagate(linearize(chunks), gaps).reshape(ended.shape)
            except DynamicRangeError:  # tangents that no float can hold together, or of what is not finite
                corrected = np.full_like(ended, np.nan)
        if bound is not None:
            corrected = np.clip(corrected, -bound, bound)
        corrected = np.where(np.isfinite(corrected), corrected, ended)  # where tangents do not lead, just a pass
        chunks.run_all(np.concatenate([began[:1], corrected]))
        chunks.solved.corrections += 1


def propagate(products, gaps):
    """Solve ``d_{c+1} = P_c d_c + gaps[c]`` with ``d_0 = 0``, all steps of it at once, by the scan.

    Of the products [shape=(C, B, H, H)], the first and the last are not needed. Gaps and result, d_1 ... d_{C-1}, are
    [shape=(C - 1, B, H)]; NaN where products or gaps are not finite.
    """
    if not (checks.all_finite(products) and checks.all_finite(gaps)):
        return np.full_like(gaps, np.nan)
    local = np.zeros_like(gaps)
    local[:-1] = gaps[:0:-1]  # backprop goes from high indices to low ones
    return backprop(products[1:-1][::-1], gaps[0], local_grads=local)[::-1]


@dataclass
class Forward:
    """The method of forward passes that come again and again, and what ``"auto"`` remembers of them.

    Whether chunks soon converge is not known before they did, and changes as a network learns. What they took is
    counted, and priced as `bppsa_nb.explain` prices it, not timed: training twice gives the same bits.
    """

    method: str  # as for the model's `forward`, as is `checkpoint_every`
    checkpoint_every: int | None = None
    spent: float | None = None  # predicted time of recent iterations in chunks, a moving average, in that of the loop
    rest: int = 0  # iterations that the loop still has, before chunks are tried again

    def options(self):
        """Return how the next pass is solved."""
        return _options("linear" if self.method == "auto" and self.rest else self.method)

    def how(self):
        """Return what is said to the model's `forward`, by keyword."""
        how = {} if self.checkpoint_every is None else {"checkpoint_every": self.checkpoint_every}
        method = self.options().method
        return how if method == "auto" else how | {"method": method}

    def remember(self, share=None):
        """Take notes of an iteration that is done, whose chunks took a share of the loop's time; None for the loop."""
        if self.rest:
            self.rest -= 1
        elif self.method == "auto" and share is not None:
            self.spent = share if self.spent is None else self.spent + (share - self.spent) / 4
            if self.spent > 1:
                self.spent, self.rest = None, AGAIN


_options = cache(SolverOptions)


def share_of(model, shape, solved, backend):
    """Predict the time that a forward pass took in chunks, in that of the loop; None for the loop.

    `shape` is the input's, (T, B, I), and `solved` says how each of the model's layers was, as `Activations.solved`.
    """
    if not any(solved or ()):
        return None
    steps, batch, _ = shape
    sizes = batch, model.hidden_size, model.dtype, backend, model.cell.gates
    loop = explain(steps, *sizes, forward=True).seconds["linear"]
    chunks = sum(loop if one is None else solve_seconds(one, steps, *sizes) for one in solved)
    return chunks / (loop * len(solved))


@with_repr("states", "solved")
@dataclass(frozen=True, eq=False)
class Unrolled:
    """What `unroll` finds: `states` [shape=(T + 1, B, ...)], `h0` first, and how they were `solved`; None: the loop."""

    states: np.ndarray
    solved: Solved | Any


@checked
def unroll(
    step: Callable[[np.ndarray, np.ndarray], np.ndarray], h0: Annotated[ArrayLike, "float[B, ...]"],
    inputs: Annotated[ArrayLike, "any[T, B, ...]"] | Steps, *,
    method: Literal["linear", "chunked", "newton"] = "chunked",
    jacobian: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None, length: Size | None = None,
    tol: Annotated[float, ">= 0"] | None = None, most: Annotated[float, ">= 0"] | None = None,
) -> Unrolled:  # fmt: skip
    """Run a recurrence of your own, ``h_{t+1} = step(h_t, inputs[t])``, step by step, or many steps in parallel.

    Parameters
    ----------
    step
        ``step(h, x)`` takes states (n, ...) and inputs (n, ...) of any number of samples, must not change them, and
        returns the next states. It may be called several times for one step, so its result may depend on `h` and `x`
        only: not on other samples, randomness, or earlier calls.
    h0
        The initial states.
    inputs
        The first axis is time. If the recurrence has no inputs, the number of steps: `x` is then empty, (n, 0).
    method
        ``"linear"`` is the loop. ``"chunked"`` runs chunks of steps in parallel, and repairs them until neighbors agree
        within `tol`; it works for any recurrence. ``"newton"`` is Newton's method, and needs `jacobian`.
    jacobian
        ``jacobian(h, x)`` returns the derivatives (n, H, H) of ``step(h, x)`` with respect to h (n, H).
    length, tol, most
        Steps of a chunk, tolerance, and a limit of the work, in loops (default: 16); see `Recurrent.forward`. Beyond
        the limit, chunks run one after the other.

    Returns
    -------
    Unrolled
        Its `states` [shape=(T + 1, B, ...)] begin with `h0`.

    Raises
    ------
    ValueError, FloatingPointError
        If `step` returns another shape or dtype, or changes its arguments; if states are not finite.

    Examples
    --------
    >>> import numpy as np
    >>> leaky = unroll(lambda h, x: 0.5 * h + x, np.zeros((1, 1)), np.ones((6, 1, 1)), length=2)
    >>> leaky.states.ravel()
    array([0.     , 1.     , 1.5    , 1.75   , 1.875  , 1.9375 , 1.96875])
    """
    options = SolverOptions(method, length, tol, REPAIRS_OF_ARRAYS if method == "chunked" and most is None else most)
    if method != "newton" and jacobian is not None:
        raise ValueError(f"jacobian is for method='newton' only, got {jacobian!r} with method={method!r}")
    if method == "newton" and (jacobian is None or h0.ndim != 2):
        what = f"{jacobian!r} and h0 {list(h0.shape)}"
        raise ValueError(f"jacobian must be a function, and h0 [shape=(B, H)], for method='newton', got {what}")
    linearize = partial(_products, jacobian)
    inputs = np.empty((inputs, len(h0), 0), h0.dtype) if isinstance(inputs, int) else inputs
    with np.errstate(all="ignore"):
        if length is None:
            length = chunk_length(*inputs.shape[:2], max(1, h0[0].size), h0.dtype, "numpy", 1, forward=True)
        (states,), solved = solve(options, length, partial(_loop, step), inputs, h0, linearize=linearize)
    if not np.isfinite(states).all():
        checks.check_finite(h0=h0)
        t = int(np.argmin(np.isfinite(states.reshape(len(states), -1)).all(axis=1)))
        why = checks.why_lost(step, states[t - 1], inputs[t - 1])
        raise FloatingPointError(f"the state after {t} steps is not finite{why}")
    return Unrolled(states, solved)


def _loop(step, x, h0):
    hidden = np.empty((len(x) + 1, *h0.shape), h0.dtype)
    hidden[0] = h0
    before, x = checks.read_only(hidden), checks.read_only(x)
    for t in range(len(x)):
        found = step(before[t], x[t])
        if np.shape(found) != h0.shape or np.asarray(found).dtype != h0.dtype:
            got = short_repr(np.asarray(found))
            raise ValueError(f"step must return {short_repr(h0)} as it was given, got {got}")
        hidden[t + 1] = found
    return (hidden,)


def _products(jacobian, chunks):
    """Multiply the Jacobians of every chunk."""
    hidden, x = map(checks.read_only, (chunks.side_by_side()[0], chunks.batched(chunks.x)))
    _, n, size = hidden.shape
    product = np.broadcast_to(np.eye(size, dtype=hidden.dtype), (n, size, size))
    for t in range(chunks.length):
        found = np.asarray(jacobian(hidden[t], x[t]))
        if found.shape != product.shape:
            shapes = f"{list(product.shape)} of states {list(hidden[t].shape)}"
            raise ValueError(f"jacobian must return {shapes}, got {list(found.shape)}")
        product = found.astype(hidden.dtype, copy=False) @ product
    return product.reshape(chunks.count, chunks.B, size, size)
