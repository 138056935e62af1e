"""How a trainer goes forward in time: in chunks, as long as these take less time than the loop."""

from dataclasses import dataclass

from bppsa_nb.cells.recurrent import Recurrent
from bppsa_nb.chains.plan import explain, solve_seconds
from bppsa_nb.machine.checks import check_choice, check_count

METHODS = ("auto", "linear", "chunked", "newton")
AGAIN = 50  # iterations by the loop, before chunks are tried again


@dataclass
class Forward:
    """The method of a trainer's forward passes, and what ``"auto"`` remembers of them.

    Whether chunks soon converge is not known before they did, and changes as a network learns. What they took is
    counted, and priced as `bppsa_nb.explain` prices it, not timed: training twice gives the same bits.
    """

    method: str  # as for the model's `forward`, as is `checkpoint_every`
    checkpoint_every: int | None = None
    spent: float | None = None  # predicted time of recent iterations in chunks, a moving average, in that of the loop
    rest: int = 0  # iterations that the loop still has, before chunks are tried again

    def check(self, model):
        """Raise ValueError or TypeError unless a model can go forward so."""
        check_choice("forward", self.method, METHODS)
        if self.checkpoint_every is not None:
            check_count("checkpoint_every", self.checkpoint_every, 1)
        loops = getattr(type(model), "forward", None) is Recurrent.forward
        for name, value, usual in ("forward", self.method, "auto"), ("checkpoint_every", self.checkpoint_every, None):
            if value != usual and not loops:
                kind = type(model).__name__
                raise ValueError(f"{name} must be {usual!r} for a {kind}, which has no loop over time, got {value!r}")

    def how(self):
        """Return what is said to the model's `forward`, by keyword."""
        how = {} if self.checkpoint_every is None else {"checkpoint_every": self.checkpoint_every}
        if self.method != "auto" or self.rest:
            how["method"] = "linear" if self.method == "auto" else self.method
        return how

    def remember(self, share=None):
        """Take notes of an iteration that is done, whose chunks took a share of the loop's time; None for the loop."""
        if self.rest:
            self.rest -= 1
        elif self.method == "auto" and share is not None:
            self.spent = share if self.spent is None else self.spent + (share - self.spent) / 4
            if self.spent > 1:
                self.spent, self.rest = None, AGAIN


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
