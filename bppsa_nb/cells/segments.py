"""Sequences longer than memory: only the states that segments begin with are kept, and the others found again.

A backward pass goes from the last segment to the first: each runs forward once more, from the states that it began
with, and then back. With segments of √T steps, all that is held is √T states and one segment's activations, for one
more forward pass; `bppsa_nb.graphs.saving` says what else of a recurrent step could be kept.
"""

from dataclasses import dataclass

import numpy as np

from bppsa_nb.cells import stack, unroll
from bppsa_nb.cells.spans import WHOLE, Spans


@dataclass(frozen=True)
class Segments:
    """How layers go through time in segments, forward and, when it is time to go back, forward again.

    A segment has so many `steps`, the last one perhaps fewer; `options`, `backend` and `spans`, without lengths, are
    those of `bppsa_nb.cells.stack.Host`.
    """

    steps: int
    options: unroll.SolverOptions
    backend: str
    spans: Spans = WHOLE

    def count(self, T):
        """Return how many segments T steps are; no steps are one, too."""
        return max(1, -(-T // self.steps))

    def forward(self, model, x, h0):
        """Run layers forward; return what is kept [shape=(L, S, segments + 1, B, H)], and how.

        Kept are the states before each segment, and the last ones. How layers were solved comes by segment.
        """
        kept, solved = np.empty((*h0.shape[:2], self.count(len(x)) + 1, *h0.shape[2:]), h0.dtype), []
        kept[:, :, 0] = h0
        for s in range(self.count(len(x))):
            layers = self._run(model, x, kept, s)
            for layer, own in enumerate(kept):
                for k, states in enumerate(own):
                    states[s + 1] = layers.give(layers.states[layer, k, len(layers.hidden[layer])], x)
            solved += layers.solved
        return kept, solved

    def backward(self, model, x, kept, grad_output, how):
        """Return the gradients of the layers' parameters, from that at the last layer's last state [shape=(B, H)].

        `kept` is what `forward` returned, `how` as for `bppsa_nb.cells.stack.Host`.
        """
        ends, total = [None] * (len(kept) - 1) + [grad_output], {}
        for s in reversed(range(self.count(len(x)))):
            layers = self._run(model, x, kept, s, how)
            stack.backward(layers, layers.take(self._part(x, s)), ends, None)
            # The gradient at the states that a segment begins with is that at those where the one before it ends.
            ends = [layers.at_start[layer] for layer in range(len(kept))]
            found = {name: layers.give(grad, x) for name, grad in layers.grads.items()}
            total = {name: total[name] + grad if total else grad for name, grad in found.items()}
        return total

    def _part(self, x, s):
        return x[s * self.steps : (s + 1) * self.steps]

    def _run(self, model, x, kept, s, how=None):
        x, spans = self._part(x, s), self.spans._replace(resets=self._part(self.spans.resets, s))
        layers = stack.layers_of(model, x, self.backend, self.options, how, spans)
        stack.forward(layers, layers.take(x), layers.by_layer(kept[:, :, s]))
        return layers
