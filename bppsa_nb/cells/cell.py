"""What a recurrent cell is: the equations of one hidden unit, of which every backend makes its loops over time.

And which steps of these belong together: samples have lengths of their own, and states may begin anew in the middle of
one.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from bppsa_nb.chains.chain import StructuredChain
from bppsa_nb.machine.arguments import Count, Size

NAMES = "weight_ih", "weight_hh", "bias_ih", "bias_hh"  # of the parameters that a layer of any cell has


class Spans(NamedTuple):
    """Which steps of a batch of T belong together.

    `resets` [shape=(T, B)] are 0 where a sample goes on, and -1 where it begins anew: the states before the step count
    as zeros, a Jacobian of zeros, which ends every scan. `lengths` [shape=(B,)] say how many steps each sample has.
    What comes after is padding: each step of it begins anew, states there are zeros, and loss terms have to be.

    A sample may be several sequences, one after the other, with initial and last states of their own: `starts`
    [shape=(L, S, n, H)] of L layers, and `places` [shape=(3, n)], each one's sample, first step, and the step after its
    last. They come sample by sample, and leave no step out; `resets` are k + 1 where sequence k begins. All arrays are
    empty where there is nothing to say.
    """

    resets: np.ndarray
    lengths: np.ndarray
    places: np.ndarray
    starts: np.ndarray

    @classmethod
    def checked(cls, lengths, resets, x):
        """Make them of lengths and resets of inputs [shape=(T, B, ...)]; raise ValueError for lengths beyond 1 to T."""
        steps, found = len(x), WHOLE
        if resets is not None and resets.any():
            found = found._replace(resets=-np.array(resets, np.int32, order="C"))
        if lengths is None:
            return found
        if not steps:
            raise ValueError(f"lengths must be None where x has no steps, got {lengths.tolist()}")
        for b in np.flatnonzero((lengths < 1) | (lengths > steps))[:1]:
            raise ValueError(f"lengths must be 1 to {steps}, the steps of x, got lengths[{b}] = {lengths[b]}")
        padding = np.arange(steps)[:, None] >= lengths
        padding = -np.array(padding if resets is None else padding | resets, np.int32)
        return found._replace(resets=padding, lengths=lengths.astype(np.int64))

    @property
    def whole(self):
        """Whether there is nothing to say."""
        return not self.resets.size

    def part(self, steps, states):
        """Return those of some of the steps, a slice, with states before them [shape=(L, S, B, H)].

        And which of the sequences these have, for those are others then: all samples, if there are no `places`. Samples
        that ended before have no steps.
        """
        begin, stop = steps.start, steps.stop
        found = self._replace(resets=self.resets[steps], lengths=np.clip(self.lengths - begin, 0, stop - begin))
        if not self.places.size:
            return found, slice(None)
        here = np.flatnonzero((self.places[1] < stop) & (self.places[2] > begin))
        places, starts = self.places.take(here, 1), self.starts.take(here, 2)
        goes_on = places[1] < begin
        starts[:, :, goes_on] = states[:, :, places[0, goes_on]]
        places[1:] = np.clip(places[1:] - begin, 0, stop - begin)
        resets = np.zeros_like(found.resets)
        resets[places[1], places[0]] = 1 + np.arange(len(here))
        return Spans(resets, found.lengths, places, starts), here

    def of(self, layer):
        """Return them with the initial states of one layer only, `starts` [shape=(S, n, H)]."""
        return self._replace(starts=self.starts[layer]) if len(self.starts) else self

    def anew(self, t, states):
        """Return what step t begins with, a tuple, of states [shape=(B, H)] that the step before ended with."""
        numbers = self.resets[t]
        states = tuple(np.where(numbers[:, None], each.dtype.type(0), each) for each in states)
        for found, starts in zip(states, self.starts, strict=False):
            found[numbers > 0] = starts[numbers[numbers > 0] - 1]
        return states

    def before(self, states):
        """Return what steps begin with [shape=(S, T or more, B, H)], of states [shape=(S, T + 1, B, H)]."""
        if self.whole:
            return states
        found = np.array(states, order="C")
        found[:, :-1][:, self.resets != 0] = 0
        if self.places.size:
            sample, first, _ = self.places
            found[:, first, sample] = self.starts[: len(states)]
        return found

    def end(self, states):
        """Set the states of padding to zeros."""
        if self.lengths.size:
            states[:, 1:][:, np.arange(len(self.resets))[:, None] >= self.lengths] = 0

    def last(self, array):
        """Return what is of every sequence's last step [shape=(B or n, H)], of an array [shape=(T (+ 1), B, H)]."""
        if self.places.size:
            sample, _, stop = self.places
            return array[stop - len(self.resets) - 1, sample]
        if not self.lengths.size:
            return array[len(array) - 1]
        # Of samples without steps, in a part, there is no last one: what is added is of padding, zeros.
        from_end = np.maximum(self.lengths - len(self.resets) - 1, -len(array))
        return array[from_end, np.arange(len(from_end))]

    @property
    def final(self):
        """The sequences that are the last ones of their samples."""
        return self.places[2] == len(self.resets) if self.places.size else slice(None)


WHOLE = Spans(np.zeros((0, 0), np.int32), np.zeros(0, np.int64), np.zeros((3, 0), np.int64), np.zeros((0, 0, 0, 0)))


class Cell(NamedTuple):
    """A cell: its step, the step's derivatives, and how many numbers of each kind a hidden unit has.

    Preactivations, ``W x + b + W h + b``, are computed outside the cell, by weights [shape=(G H, I)] and [shape=(G H,
    H)]. The cell begins with them, and computes each unit by itself. They come in this order: what inputs add to each
    of the last `split` gates; the sums of all other gates; what states add to the last `split`. A GRU's gates are r, z,
    n, and it needs both parts of n by themselves: its preactivations are N, R, Z, M.

    ``step(preacts, before)`` takes a unit's preactivations and states, two tuples, and returns two more: the next
    states, and `kept` other numbers, which are saved for the backward pass. The first state is h, which weights and
    other layers read. A cell is `bounded` if no state can leave [-1, 1], or what it began within.

    ``back(grads, before, after, kept)`` takes the gradients of the loss at the next states, the states on both sides,
    and the numbers kept; it returns two tuples: the gradients at the preactivations, and those that go directly to the
    states before. The first of the latter is left out where h acts through preactivations only (`carry`).

    Preactivations may go through functions of their own, the `activations`, one for each gate but the last `split`: the
    step is given their results, and a GPU computes them side by side.

    A cell may have `vectors` of its own, parameters of one number for each unit, by name. The step is given them after
    the preactivations, and keeps those that `back` needs; `back` returns their gradients after all others.

    A cell that is `elementwise` has no weights of h, nor biases beside them: preactivations are ``W x + b``, and h acts
    on its own unit only, by `carry`. A minimal GRU is one. GPU kernels support neither these cells nor vectors.

    All are written in Python's operators and `bppsa_nb.machine.pointwise`: in NumPy they are given arrays, in compiled
    code numbers.
    """

    step: Callable
    back: Callable
    gates: Size = 1  # G, blocks of H rows in both weights
    split: Count = 0
    states: Size = 1  # S
    kept: Count = 0  # K
    carry: bool = False
    activations: tuple[Callable, ...] = ()
    bounded: bool = False
    vectors: tuple[str, ...] = ()
    elementwise: bool = False

    def __repr__(self):
        numbers = ("gates", "split", "states", "kept", "carry")
        return f"Cell({', '.join(f'{name}={getattr(self, name)}' for name in numbers)})"

    @property
    def preacts(self) -> int:
        """How many preactivations a unit has, vectors included."""
        return self.gates + self.split + len(self.vectors)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of a layer's parameters."""
        return *(NAMES[::2] if self.elementwise else NAMES), *self.vectors

    def shapes(self, inputs, size):
        """Return the shapes of a layer's parameters by name, for so many inputs and hidden units."""
        rows = self.gates * size
        known = dict(zip(NAMES, [(rows, inputs), (rows, size), (rows,), (rows,)], strict=True))
        return {name: known.get(name, (size,)) for name in self.names}

    def of_layer(self, params, layer):
        """Return a layer's parameters by name in the order of `NAMES` and vectors: empty ones, where it has none."""
        found = [params[f"{name}_l{layer}"] for name in self.names]
        if self.elementwise:
            weight, bias, *vectors = found
            found = [weight, np.zeros((0, len(bias) // self.gates), bias.dtype), bias, bias[:0], *vectors]
        return found

    @property
    def carries(self) -> int:
        """How many of the states go on by themselves, too."""
        return self.states - (not self.carry)

    @property
    def weights(self) -> int:
        """How many weights of the size of all states together take as much work as the chain's."""
        return max(1, round(self.gates / self.states**2))

    def activate(self, preacts):
        """Apply the activations to preactivations, for the step."""
        if not self.activations:
            return preacts
        first, last = self.split, self.gates
        found = (function(x) for function, x in zip(self.activations, preacts[first:last], strict=True))
        return *preacts[:first], *found, *preacts[last:]

    def tell_apart(self, preacts):
        """Return parts of preactivations, or of their gradients: of inputs, and of states, by gates."""
        split, gates = self.split, self.gates
        of_h = [] if self.elementwise else list(preacts[split : split + gates])
        return [*preacts[split:gates], *preacts[:split]], of_h

    def chain(self, weight_hh, slopes, carry, spans=WHOLE):
        """Make a layer's chain of slopes [shape=(G, T, B, S, H)] and a carry [shape=(S, T, B, S, H)] or None."""
        if not spans.whole:
            slopes[:, spans.resets != 0] = 0
            if carry is not None:
                carry[:, spans.resets != 0] = 0
        size, (_, steps, batch, *state) = weight_hh.shape[1], slopes.shape
        flat, weights = (steps, batch, math.prod(state)), weight_hh.reshape(len(weight_hh) // size, size, size)
        slopes = slopes[: len(weights)].reshape(len(weights), *flat)
        if carry is not None:
            carry = carry.reshape(*([self.states] if self.states > 1 else []), *flat)
        return StructuredChain.made(weights, slopes, carry)
