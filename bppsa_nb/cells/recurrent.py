"""What recurrent classifiers share: stacked layers, checks, and gradients from the last layer to the first."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from bppsa_nb.cells import stack, unroll
from bppsa_nb.cells.cell import WHOLE, Cell, Spans
from bppsa_nb.cells.check_cell import check_numbers
from bppsa_nb.chains import backprop as chain
from bppsa_nb.chains.chain import StructuredChain
from bppsa_nb.machine import backends, checks
from bppsa_nb.machine.arguments import Array, Backend, Comm, Count, Dtype, Method, Rng, Size, checked
from bppsa_nb.machine.checks import short_repr, with_repr
from bppsa_nb.machine.dispatch import implementation
from bppsa_nb.machine.memory import require
from bppsa_nb.machine.parameters import Parametrized
from bppsa_nb.machine.process import over_ranks

HEAD = "fc.weight", "fc.bias"


@with_repr("x", "hidden", "gates", "logits")
@dataclass(frozen=True, eq=False)
class Activations(checks.Made):
    """What a forward pass leaves for the backward pass.

    `states` are those of the L layers, with the initial ones: of an LSTM h and c, otherwise h alone; `hidden`, all h,
    are [shape=(L, T + 1, B, H)]. Where there is `again`, which finds what was not kept, there are not T + 1 of them but
    one that each segment begins with, and the last one. `gates` are what else cells keep: a GRU's r, z, n and M
    (Appendix E), an LSTM's i, f, g, o and tanh(c); an RNN keeps none. Of ranks that share the steps, the last one has
    `logits`. `solved` says of every layer, and segment, how its states were found, None for the loop; it is None where
    all were loops. `spans` are the lengths and resets that `forward` was given; states after a sample's end are zeros.
    """

    x: np.ndarray  # [shape=(T, B, I)]
    states: np.ndarray  # [shape=(L, S, T + 1, B, H)]
    gates: np.ndarray | Any  # [shape=(L, K, T, B, H)]; None where none are kept
    logits: np.ndarray | Any  # [shape=(B, C)]; None on other ranks
    solved: list | None = None
    again: stack.Segments | None = None
    spans: Spans = WHOLE

    @property
    def hidden(self) -> np.ndarray:
        """The hidden states h."""
        return self.states[:, 0]

    @property
    def saved(self) -> tuple[np.ndarray, np.ndarray | None]:
        """What layers have saved: states, and what their cells keep."""
        return self.states, self.gates


@with_repr("input_size", "hidden_size", "num_classes", "num_layers", "dtype")
class Recurrent(checks.Fixed, Parametrized):
    """A classifier of sequences: recurrent layers, and a linear layer on the last state. See `RNN`, `GRU` and `LSTM`.

    A subclass needs only a `cell`, as in `bppsa_nb.cells.rnn`.
    """

    cell: Cell = None
    _fixed = "input_size", "hidden_size", "num_classes", "num_layers", "dtype"

    @checked
    def __init__(
        self, input_size: Size, hidden_size: Size, num_classes: Size, num_layers: Size = 1, rng: Rng = 0,
        dtype: Dtype = np.float32,
    ):  # fmt: skip
        check_numbers(self.cell)
        self.input_size, self.hidden_size, self.num_classes = input_size, hidden_size, num_classes
        self.num_layers, self.dtype = num_layers, np.dtype(dtype)
        rng, H = np.random.default_rng(rng), self.hidden_size
        weights = H * (self.cell.gates * (self.input_size + (2 * self.num_layers - 1) * H) + self.num_classes)
        require(weights * self.dtype.itemsize, f"making {self}")
        bound, shapes = 1 / np.sqrt(H), self.shapes()
        self.params = {name: rng.uniform(-bound, bound, shape).astype(self.dtype) for name, shape in shapes.items()}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every parameter by its name."""
        H, shapes = self.hidden_size, {}
        for layer in range(self.num_layers):
            own = self.cell.shapes(H if layer else self.input_size, H)
            shapes |= {f"{name}_l{layer}": shape for name, shape in own.items()}
        return shapes | {"fc.weight": (self.num_classes, H), "fc.bias": (self.num_classes,)}

    @property
    def head(self) -> tuple[np.ndarray, ...]:
        """The parameters of the linear layer: its weight and bias."""
        return tuple(self.params[name] for name in HEAD)

    @property
    def kind(self) -> tuple:
        """What activations of one model that fit another have in common: the cell, sizes and dtype."""
        sizes = self.input_size, self.hidden_size, self.num_classes, self.num_layers
        return self.cell, *sizes, self.dtype

    @checked
    def forward(
        self, x: Annotated[Array, "float[T, B, input_size]"],
        h0: Annotated[Any, "float[num_layers, B, hidden_size], of an LSTM two of these"] = None,
        backend: Backend = "auto", comm: Comm = None, *,
        method: Literal["auto", "linear", "chunked", "newton"] = "auto", length: Size | None = None,
        tol: Annotated[float, ">= 0"] | None = None, most: Annotated[float, ">= 0"] | None = None,
        checkpoint_every: Size | None = None, lengths: Annotated[ArrayLike, "int[B]"] | None = None,
        resets: Annotated[ArrayLike, "bool[T, B]"] | None = None,
    ) -> Activations:  # fmt: skip
        """Compute hidden states and logits.

        Parameters
        ----------
        x
            Inputs, time first, in the model's dtype. T may be 0. If they are on a GPU (an array of Numba, CuPy, PyTorch
            or any library with ``__cuda_array_interface__``; T at least 1), so are activations and gradients.
        h0
            Initial hidden state of every layer, zeros if not given. For an LSTM, a tuple of h and c.
        backend
            What computes. ``"auto"`` is a GPU if there is one, and otherwise compiled CPU code.
        comm
            Ranks that share the steps, in the order of time, each with its own (of any number, 0 included) in `x`. All
            of them must call, with the same parameters; `h0` is given on rank 0, or nowhere. Hidden states and gates
            are those of this rank's steps, and `logits` are on the last rank. In chunks, each rank has one; ``"auto"``
            takes these where there are more ranks than `num_layers` + 1.
        method
            How the states of a layer are found. ``"linear"`` is the loop over time. ``"chunked"`` runs chunks of it at
            once, from a guess. It repairs each chunk from the state at the end of the one before, until it meets the
            states it had. ``"newton"`` corrects the states at which chunks begin by products of Jacobians, until chunks
            meet. If that fails, it goes on as ``"chunked"``. With ``length=1``, it is DEER. A sequence of one chunk is
            a loop. ``"auto"`` takes what `bppsa_nb.explain` expects to be faster, with ``forward=True``: the loop, or
            chunks whose repairs are no more work than the loop (``most=1``).
        length
            Steps of a chunk.
        tol
            Chunks meet where states differ by at most `tol` times the largest number of a state. The default is 2.4e-7
            in float32 and 1e-12 in float64, as if the loop had been rounded differently. 0 asks for the loop's own
            bits, on backends ``"cpu"`` and ``"cuda"``: on ``"numpy"``, sums over more samples are rounded in another
            order. A chaotic network magnifies any such difference.
        most
            A limit. For ``"chunked"``, after repairs with the work of `most` loops, chunks run one after the other
            (default: 4). For ``"newton"``, the number of corrections (default: 8).
        checkpoint_every
            Keep only the states of every so many steps, and no gates; `backward` computes the others again, by a second
            forward pass. With √T, memory for some 2 √T steps is enough, instead of T.
        lengths
            How many steps each sample has, 1 to T: its logits come from its own last state. After that, `x` is padding:
            any finite numbers, without effect. Samples that are sorted by length take the least time.
        resets
            True where a sample starts over: its state is set to zeros before this step, and no gradient goes back.

        Returns
        -------
        Activations

        Raises
        ------
        FloatingPointError
            If finite inputs and parameters give logits that are not.
        """
        options = unroll.SolverOptions(method, length, tol, most)
        on_gpu, whole = comm is None and checks.on_gpu(x), lengths is None and resets is None
        away = "over ranks" if comm is not None else "where x is on a GPU" if on_gpu else ""
        if away and method == "newton":
            raise ValueError(f"method must be 'auto', 'linear' or 'chunked' {away}, got 'newton'")
        if checkpoint_every is not None and away:
            raise ValueError(f"checkpoint_every must be None {away}, got {checkpoint_every!r}")
        if comm is not None:
            check_whole(whole, away)
            if length is not None or most is not None:
                raise ValueError(f"length and most must be None over ranks, got {length!r} and {most!r}")
            return over_ranks("layers").forward(self, x, h0, backend, comm, options)
        backend = backends.cuda_only(backend) if on_gpu else backends.resolve(backend)
        check_whole(whole or backend != "cuda", "where x is on a GPU" if on_gpu else "with backend='cuda'")
        given = self.each_state(h0)
        if on_gpu:
            x = _from_gpu("x", x)
            given = {name: _from_gpu(name, start) if checks.on_gpu(start) else start for name, start in given.items()}
            if len(x) == 0:
                raise ValueError(f"x must hold at least one step where it is on a GPU, got shape {x.shape}")
        self.check_input(x, given)
        spans = WHOLE if whole else Spans.checked(lengths, resets, x)
        if on_gpu:
            start = [[states[layer] for states in given.values()] or None for layer in range(self.num_layers)]
        else:
            start = self.start(x, given)
        with np.errstate(all="ignore"):  # whatever leaves the range is found in the result
            if checkpoint_every is None:
                again, (states, gates, solved) = None, stack.run(self, x, start, options, backend, spans)
            else:
                again, gates = stack.Segments(checkpoint_every, options, backend, spans), None
                states, _, solved = again.forward(self, x, start)
            logits = stack.there(x).logits(self.head, last_of(states, spans, again))
        if not checks.is_finite(logits):
            why = again or on_gpu or checks.all_finite(states)  # or else logits are to blame
            why = "" if why else checks.why_lost(stack.run, self, x, start, stack.LOOP, "numpy", spans)
            raise FloatingPointError(overflow(self.dtype) + why)
        solved = solved if any(solved) else None
        return Activations(x, states, gates, logits, solved, again, spans).sign(self.kind)

    @checked
    def backward(
        self, activations: Activations, grad_logits: Annotated[Array | None, "float[B, num_classes]"],
        method: Method = "auto", backend: Backend = "auto", levels: Count | None = None, comm: Comm = None,
    ) -> dict[str, np.ndarray]:  # fmt: skip
        """Compute the gradients of all parameters.

        Parameters
        ----------
        activations
            What `forward` returned, with the parameters unchanged since.
        grad_logits
            Gradient of the loss at the logits.
        method
            How the gradients at the hidden states are found, layer after layer. ``"linear"`` is ordinary
            back-propagation through time; it and ``"chunked"`` store no Jacobian, the others write transposed
            Jacobians out and scan them.
        backend
            What computes, as in `forward`.
        levels
            For ``"truncated"``; see `bppsa_nb.backprop`.
        comm
            The ranks of `forward`; `grad_logits` is given on the last one, and None on the others. Methods are
            ``"linear"`` and ``"chunked"``, as in `bppsa_nb.backprop`. The gradients are summed over ranks, the same
            bits on all of them.

        Returns
        -------
        dict of str to np.ndarray
            Gradients under the names and in the shapes of `params`. A gradient too large for the dtype is
            infinite or NaN, as in back-propagation through time; backend ``"cpu"`` counts numbers smaller than the
            smallest normal one (1.2e-38 in float32) as zero, gradients as well as parameters and states.
        """
        if comm is not None:
            return over_ranks("layers").backward(self, activations, grad_logits, method, backend, levels, comm)
        activations.check(self.kind, self)
        x, states, spans, on_gpu = activations.x, activations.states, activations.spans, checks.on_gpu(activations.x)
        if on_gpu:
            grad_logits, backend = _from_gpu("grad_logits", grad_logits), backends.cuda_only(backend)
        checks.check_array("grad_logits", checks.on_host(grad_logits), self.dtype, (x.shape[1], self.num_classes))
        checks.check_finite(grad_logits=grad_logits)
        how = self.choose(method, backend, levels, x.shape)
        check_whole(spans.whole or how[1] != "cuda", "with backend='cuda'")
        with np.errstate(all="ignore"):
            last, nothing = last_of(states, spans, activations.again), [None] * self.num_layers
            *of_head, end = stack.there(x).from_logits(self.head, last, grad_logits)
            grads, read = dict(zip(HEAD, of_head, strict=True)), ([*nothing[1:], end], nothing)
            if activations.again is None:
                grads |= stack.run_back(self, x, activations.saved, read, how, spans=spans)[0]
            else:
                grads |= activations.again.backward(self, x, states, read, how)[0]
        if not on_gpu and not all(map(checks.all_finite, grads.values())):
            check_saved(activations)
        return {name: grads[name] for name in self.shapes()}  # a subclass adds those of its own parameters

    def choose(self, method, backend, levels, shape):
        """Return the method, backend and levels by which gradients go back along inputs of a shape (T, B, ...)."""
        sizes = *shape[:2], self.cell.states * self.hidden_size
        return chain.choose(method, backend, levels, sizes, self.dtype, self.cell.weights)

    def start(self, x, given):
        """Return the layers' initial states [shape=(L, S, B, H)], of what `each_state` returned."""
        start = np.zeros((self.num_layers, self.cell.states, x.shape[1], self.hidden_size), self.dtype)
        for s, states in enumerate(given.values()):
            start[:, s] = states
        return start

    def each_state(self, h0):
        """Return what is given of each initial state, by name."""
        if h0 is None:
            return {}
        if self.cell.states == 1:
            return {"h0": h0}
        if not isinstance(h0, (tuple, list)) or len(h0) != self.cell.states:
            raise TypeError(f"h0 must be a tuple of {self.cell.states} arrays, got {short_repr(h0)}")
        return {f"h0[{s}]": states for s, states in enumerate(h0)}

    @checked
    def chain(
        self, activations: Activations, layer: Annotated[int, ">= 0, < num_layers"] = 0, backend: Backend = "auto"
    ) -> StructuredChain:
        """Return the transposed Jacobians of a layer's states, a `StructuredChain`; of an LSTM's h and c side by side.

        `activations` are what `forward` returned on the host, without `checkpoint_every`. Slopes are [shape=(G, T, B, S
        H)], and the carry as `StructuredChain` has it.
        """
        activations.check(self.kind, self)
        if activations.again is not None or checks.on_gpu(activations.x):
            how = "on a GPU" if activations.again is None else "that forward found with checkpoint_every"
            raise ValueError(f"activations must be all there, on the host, got some {how}")
        backend, spans = backends.resolve(backend), activations.spans
        check_whole(spans.whole or backend != "cuda", "with backend='cuda'")
        return stack.layers_of(self, activations.x, backend, spans=spans, saved=activations.saved).chain(layer)

    def check_input(self, x, given=None):
        """Raise what `forward` would raise for initial states by name, and numbers that are not finite."""
        self.params.seal()
        given = given or {}
        for name, states in given.items():
            shape = self.num_layers, x.shape[1], self.hidden_size
            checks.check_array(name, checks.on_host(states), self.dtype, shape)
        # Looked at here and not only in the output, because tanh hides infinity; that costs one part in H.
        checks.check_finite(x=x, **given)
        self.params.check_finite()

    def check_method(self, method, backend="auto", levels=None, comm=None):
        """Raise what `backward` would raise for these arguments."""
        if comm is not None:
            over_ranks("layers").check_method(method, levels, comm)
            method, levels = "linear", None
        self.choose(method, backend, levels, (1, 1))


def _from_gpu(name, array):
    """Take over an array of any library."""
    return implementation("bppsa_nb.machine.arrays", "cuda").as_device_array(name, array)


def last_of(states, spans, again):
    """Return the last layer's h after every sample's last step, of states that a forward pass kept."""
    hidden = states[len(states) - 1, 0]
    return hidden[-1] if again else spans.last(hidden)


def check_saved(activations):
    """Raise ValueError where activations are not finite."""
    states = "hidden" if activations.states.shape[1] == 1 else "states"
    saved = {f"activations.{name}": getattr(activations, name) for name in ("x", states, "gates")}
    checks.check_finite(**{name: array for name, array in saved.items() if array is not None})


def check_whole(whole, where):
    """Raise ValueError unless samples are whole."""
    if not whole:
        raise ValueError(f"lengths and resets must be None {where}: only loops and scans on the host know them")


def overflow(dtype):
    """Say what is wrong with logits that are not finite."""
    return f"logits overflow {dtype}, though x and all parameters are finite"
