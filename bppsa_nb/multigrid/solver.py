"""Multigrid over layers: Full Approximation Storage and MGRIT (Algorithm 1), for states and for their gradients.

The unknowns are all states of a level at once; the equations say that each follows from the one before. Relaxation
solves them within every block of layers, all blocks at once; a coarser level, with one step per block, corrects the
values that blocks begin with.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from bppsa_nb.machine.arguments import Backend, Comm, Size, checked
from bppsa_nb.machine.checks import check_dtype, check_finite, with_repr
from bppsa_nb.multigrid.cycles import Cycle, Cycles, Error, GridLevel, Options, Relaxation, Tolerance, connect
from bppsa_nb.multigrid.grids import Coarsening, hierarchy
from bppsa_nb.networks.residual import ResidualNetwork

State = Annotated[np.ndarray, "float[B, *net.axes]"]
States = Annotated[np.ndarray, "float[net.depth + 1, B, *net.axes]"]


@with_repr("states", "residuals", "communication")
@dataclass(frozen=True, eq=False)
class Solution:
    """What multigrid found.

    Attributes
    ----------
    states : np.ndarray [shape=(N + 1, batch, ...)]
        States u^0 ... u^N, or the gradients at them.
    residuals : np.ndarray of float64 [shape=(cycles,)]
        ||R_h|| (Eq. 19) after every cycle: the 2-norm over all layers and samples.
    communication : float
        Seconds spent in messages between ranks, waiting for other ranks included.
    """

    states: np.ndarray
    residuals: np.ndarray
    communication: float = 0.0

    @property
    def cycles(self) -> int:
        """How many cycles it took."""
        return len(self.residuals)


@checked
def solve(
    net: ResidualNetwork, u0: State, cycles: Size | None = None, tol: Tolerance = 1e-9,
    coarsening: Coarsening = 4, levels: Size | None = None, relaxation: Relaxation = "FCF",
    cycle: Cycle = "V", *, error: Error | None = None, nested_iteration: bool = False, skip_downcycle: bool = False,
    initial: States | None = None, backend: Backend = "auto", comm: Comm = None,
) -> Solution:  # fmt: skip
    """Solve for all states of a residual network.

    Parameters
    ----------
    net
        The network.
    u0
        The first state, in the network's dtype: vectors (B, q), or images (B, C, H, W).
    cycles
        Stop after so many cycles, whatever the residual: early stopping (Section IV-A). If not given, `error` decides,
        or else `tol`.
    tol
        Stop when ||R_h|| is at most this: absolute, whatever the size of the states. Rounding may keep the residual
        above it; in float32, at some 1e-7 times the norm of all states, so give a larger one there, or `cycles`.
    coarsening
        Layers in a block, c. Where it does not divide the layers, the last block is shorter.
    levels
        1 is ordinary propagation. If not given, as many as leave at most c steps on the coarsest.
    relaxation
        ``"F"`` propagates within blocks. ``"FCF"`` also passes on what they end with, and propagates again, before the
        coarse correction; ``"FC"`` passes it on after the correction: done before, it would leave no residual at
        C-points for the coarse level to correct.
    cycle
        Visits of each coarser level: one, or an F-visit and then a V-visit.
    error
        Stop when the estimated relative error is at most this, in the 2-norm over all C-points and samples. The
        estimate is the last correction, which is the error before it as the coarse level sees it, times the share of
        the residual that the cycle left. Estimates of 0.1 and less are close; above, where cycles do not converge yet,
        they may be far too small.
    nested_iteration
        Start on the coarsest level, and interpolate up with one V-cycle on every level between.
    skip_downcycle
        Do without the first cycle's way down: it solves on the coarsest level and interpolates up, with F-relaxation.
    initial
        Where to start: states of all layers, and the last; `u0` everywhere if not given. The first is taken from `u0`.
    backend
        What computes. ``"auto"`` is a GPU if there is one, and otherwise compiled CPU code. ``"cpu"`` counts numbers
        below the smallest normal one (1.2e-38 in float32) as zero.
    comm
        If given, `net` holds this rank's layers only, a part of `partition`, and so does the solution: its states are
        those from the first of its layers to the one after the last. `initial` is cut as the states are; all other
        arguments are the same on all ranks. Every rank's layers count: the whole network on every rank is a network
        that many times as deep. A wrong argument on one rank is an error on all; for errors elsewhere, run scripts as
        ``mpiexec -n 4 python -m mpi4py script.py``, which ends all ranks when one fails.

    Returns
    -------
    Solution

    Raises
    ------
    FloatingPointError
        If a cycle leaves the range of the dtype: it diverges, or serial propagation would do the same.
    RuntimeError
        If ten cycles in a row do not reduce a residual that is too large for `tol` or `error`.

    Notes
    -----
    Equation 18 in the paper drops the skip connection. Here L_h(U)^{n+1} = u^{n+1} - u^n - h F(u^n; θ^n), from
    Equation 1.
    """
    with connect(comm) as neighbors:
        check_dtype("u0", u0.dtype, net.dtype, "net")
        steps = net.forward_steps(u0, backend)
        options = Options(cycles, tol, coarsening, levels, relaxation, cycle, error, nested_iteration, skip_downcycle)
        return _solve(net, u0, *steps, initial, options, neighbors)


@checked
def solve_adjoint(
    net: ResidualNetwork, states: States, grad_output: State, cycles: Size | None = None, tol: Tolerance = 1e-9,
    coarsening: Coarsening = 4, levels: Size | None = None, relaxation: Relaxation = "FCF",
    cycle: Cycle = "V", *, error: Error | None = None, nested_iteration: bool = False, skip_downcycle: bool = False,
    initial: States | None = None, backend: Backend = "auto", comm: Comm = None,
) -> Solution:  # fmt: skip
    """Solve for the gradients at all states: the adjoint equations, from the last layer to the first.

    The equations are linear, g^n = g^{n+1} + h J_n^T g^{n+1} with the Jacobian of F at u^n; the cycles are those of
    `solve`. A coarse step is the adjoint of the forward coarse step between the same two C-points.

    Parameters
    ----------
    net
        The network.
    states
        What `solve` or `ResidualNetwork.forward` found.
    grad_output
        Gradient of the loss at the last state.
    cycles, tol, coarsening, levels, relaxation, cycle, error, nested_iteration, skip_downcycle, backend, comm
        As in `solve`. `tol` is absolute here, too: for a gradient that is divided by the size of the batch, or small
        for other reasons, give a smaller one.
    initial
        Where to start; grad_output on all layers if not given. Its last entry is taken from `grad_output`.

    Returns
    -------
    Solution
        Its states are the gradients at u^0 ... u^N.
    """
    with connect(comm, backward=True) as neighbors:
        check_dtype("states", states.dtype, net.dtype, "net")
        steps = net.adjoint_steps(states, grad_output, backend)
        options = Options(cycles, tol, coarsening, levels, relaxation, cycle, error, nested_iteration, skip_downcycle)
        found = _solve(net, grad_output, *steps, initial, options, neighbors)
    return replace(found, states=np.ascontiguousarray(found.states[::-1]))


def _solve(net, first, ops, sweep, initial, options, neighbors):
    if initial is not None:
        check_finite(initial=initial)
    coarsening, count = neighbors.agree(net, first, initial, options)
    if initial is None:
        initial = np.broadcast_to(first, (len(net) + 1, *first.shape))
    else:
        initial = initial[::-1] if neighbors.backward else initial
        if neighbors.is_first:
            initial = np.concatenate([first[None], initial[1:]])
    grids = hierarchy(len(net), coarsening, count)
    if neighbors.backward:
        grids = [grid.reversed() for grid in grids]
    with np.errstate(all="ignore"):  # whatever leaves the range is found in the residual
        levels = [GridLevel(grid, net.h, initial, ops, sweep) for grid in grids]
        residuals = Cycles(levels, options, neighbors).run()
    return Solution(ops.host(levels[0].points), np.array(residuals), neighbors.seconds)
