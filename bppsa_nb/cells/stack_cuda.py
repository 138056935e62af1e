"""The layers of a model on a GPU, as `bppsa_nb.cells.stack` drives them; counterpart of `stack.Host`.

All arrays are on the GPU and stay there, but for parameters and initial states that are on the host: these are copied.
"""

from functools import partial

from bppsa_nb.cells import layer_cuda as cells
from bppsa_nb.cells import weight_gradients_cuda as weight_gradients
from bppsa_nb.cells.cell_cuda import check_vectors
from bppsa_nb.cells.chunked_cuda import Chunks
from bppsa_nb.cells.stack import LOOP, resolve_method
from bppsa_nb.cells.unroll import TOLERANCE
from bppsa_nb.chains.methods_cuda import Links, Scan
from bppsa_nb.machine.arrays_cuda import add, all_finite, copy, fetched, fill, put, put_rows
from bppsa_nb.machine.cuda import follow, on_device
from bppsa_nb.machine.cuda_compiler import cuda


class Device:
    """The layers of a model on a GPU; arguments and attributes are those of `bppsa_nb.cells.stack.Host`.

    No axis of the `shape` (T, B, I) is 0, and `options` is not Newton's method. `new` makes device arrays, in the
    model's dtype, from their shapes, in Numba's place; scans and chunks ask Numba for memory of their own. An array
    that is only worked on is made once: where nothing `waits` for a result, a step can be recorded, and replayed.
    `arrays` are parameters and gradients on the device, by name, where they are there already.
    """

    def __init__(self, model, shape, options=LOOP, how=None, saved=None, new=None, arrays=None, waits=True):
        check_vectors(model.cell)
        self.model, self.shape, self.how, self.waits = model, shape, how, waits
        self.options, self.length = resolve_method(model, options, shape, "cuda")
        self.cell, (T, B, _), (L, H) = model.cell, shape, (model.num_layers, model.hidden_size)
        self.new, self._made = new or partial(cuda.device_array, dtype=model.dtype), {}
        self.params, self.grads = arrays or ({name: on_device(array) for name, array in model.params.items()}, {})
        states, kept = saved or (self.new((L, self.cell.states, T + 1, B, H)), None)
        if kept is None:  # no array is without entries there
            kept = self.new((L, self.cell.kept, T, B, H) if self.cell.kept else (L, 1, 1, 1, 1))
        self.states, self.kept = map(on_device, (states, kept))
        self.hidden, self.solved = [self.states[layer, 0, 1:] for layer in range(L)], [None] * L
        self.at_start = [None] * L
        self.stream = self.side = 0  # the latter is where gradients of parameters are computed
        self.sweeps, self.unconverged = False, None

    def made(self, name, make):
        """Return what has been made under a name, or make it."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def array(self, name, *shape):
        """Return an array that is worked on."""
        return self.made(name, lambda: self.new(shape))

    def take(self, array):
        """Take an array of the caller's."""
        return on_device(array)

    def give(self, array, like):
        """Return an array to where another one is."""
        return fetched(array, like)

    def forward(self, layer, below, start):
        """Find the states of a layer; it begins with `start`, S arrays, or None for zeros, or () if they are there."""
        states, kept, cell, (T, B, _) = self.states[layer], self.kept[layer], self.cell, self.shape
        for s in range(cell.states):
            if start is None:
                fill(states[s, 0], states.dtype.type(0))
            elif len(start):
                put(start[s], states[s, 0])
        params, H = [self.params[f"{name}_l{layer}"] for name in cell.names], states.shape[3]
        preacts = cell.gates * H
        products, weight_hh_T = self.array("products", T, B, preacts), self.array("weight_hh_T", H, preacts)
        cells.launch_inputs(below, params, weight_hh_T, products, self.stream)
        loop = products, weight_hh_T, params[3], states, kept
        options, length = self.options, self.length
        if options.method == "linear":
            cells.launch_loop(cell, cells.run_forward_of, B, loop, stream=self.stream)
        elif self.waits:
            chunks = Chunks(cell, loop, length)
            chunks.start()
            chunks.repair(*options.limits(states.dtype))
            self.solved[layer] = chunks.solved
        else:
            chunks = self.made(("chunks", layer), lambda: Chunks(cell, loop, length, self.unconverged))
            chunks.launch_fixed(TOLERANCE[states.dtype.itemsize], self.stream)

    def add(self, found, terms):
        """Add loss terms at a layer's states, or at h only, to those at every h, where the scan reads them."""
        if terms.shape != found[1:].shape:
            at_all = self.array("terms", *found[1:].shape)
            fill(at_all, at_all.dtype.type(0), self.stream)
            put_rows(terms, at_all, self.stream)
            terms = at_all
        add(found[1:], terms, self.stream)
        return found

    def scanner(self):
        """Return the `Scan` of every layer."""
        (T, B, _), (method, _, levels) = self.shape, self.how
        sizes = (T, B, self.cell.states * self.model.hidden_size), self.states.dtype, self.cell.weights
        return self.made("scan", lambda: Scan(*sizes, method, levels))

    def enter(self, layer, end, terms):
        """Put what enters a layer where its scan reads it; return that, and whether there is more than the end."""
        entrance, zero = self.scanner().entrance, self.states.dtype.type(0)
        if end is not entrance and terms is not entrance:
            fill(entrance, zero, self.stream)
            if terms is not None:
                put_rows(terms, entrance[1:], self.stream)
        last = entrance[len(entrance) - 1]
        if end is not None and end is not entrance and terms is None:
            put_rows(end, last, self.stream)
        elif end is not None and end is not entrance:
            own = self.array("end", *entrance.shape[1:])
            fill(own, zero, self.stream)
            put_rows(end, own, self.stream)
            add(last, own, self.stream)
        return entrance, terms is not None

    def chain(self, layer):
        """Return the transposed Jacobians of a layer's states."""
        (T, B, _), H, S, cell = self.shape, self.model.hidden_size, self.cell.states, self.cell
        slopes = self.array("slopes", cell.gates, T, B, S, H)
        carry = self.array("carry", *((S, T, B, S, H) if cell.carries else (1,) * 5))
        cells.launch_derive(cell, self.states[layer], self.kept[layer], slopes, carry, self.stream)
        weight_hh, carry = self.params[f"weight_hh_l{layer}"], carry if cell.carries else None
        return self.made(("chain", layer), lambda: cell.chain(weight_hh, slopes, carry))

    def links(self, chain):
        """Return a chain as launches take it."""
        links = self.made(("links", id(chain)), lambda: Links(chain, new=self.array))
        links.launch_joined(self.stream)
        return links

    def scan(self, chain, entering):
        """Return the gradients at all states of a layer [shape=(T + 1, B, S H)]."""
        (entrance, affine), scan, links = entering, self.scanner(), self.links(chain)
        if not self.waits or scan.method == "linear":
            return scan.launch(links, affine, self.stream)
        before = self.array("before", *entrance.shape)
        copy(entrance, before)
        found = scan.launch(links, affine)
        if scan.is_lost() or not all_finite(found):  # the linear scan answers
            again = self.made("again", lambda: Scan(links.shape, links.dtype, 0, "linear"))
            copy(before, again.entrance)
            found = again.launch(links, affine)
        return found

    def gradients(self, layer, below, grad_states, wanted):
        """Find the gradients of a layer's parameters; return those at its input, if they are wanted."""
        cell, (_, T, B, H), stream = self.cell, self.states[layer].shape, self.stream
        states, apart = self.states[layer], layer if self.side is not stream else 0
        grad_preacts = self.array(("grad_preacts", apart), cell.preacts, T - 1, B, H)
        cells.launch_preact_gradients(cell, states, self.kept[layer], grad_states, grad_preacts, stream)
        if self.waits:
            self.at_start[layer] = self.new((B, cell.states * H))
            copy(grad_states[0], self.at_start[layer])
        names = [f"{name}_l{layer}" for name in cell.names]
        for name in names:
            if name not in self.grads:
                self.grads[name] = self.new(self.params[name].shape)
        # What gradients of parameters read stays as it is until the step ends, and only others work on their arrays.
        follow(self.side, stream)
        inputs = below.shape[2]
        sums = weight_gradients.parts_of((T - 1) * B, cell.preacts * H, inputs + 1 + H)
        parts = self.array(("parts", inputs), *sums)
        grads = [self.grads[name] for name in names]
        sizes = inputs, cell.split
        weight_gradients.launch_gradients(below, states[0], grad_preacts, sizes, parts, grads, self.side)
        if not wanted:
            return None
        if layer == 0:
            terms = out = self.new(below.shape)
        else:  # the layer below is read at every step: its loss terms enter at all h but the initial one
            terms = self.scanner().entrance
            fill(terms if cell.states > 1 else terms[:1], terms.dtype.type(0), stream)
            out = terms[1:]
        weight_ih = self.params[f"weight_ih_l{layer}"]
        cells.launch_input_gradients(grad_preacts, cell.gates, cell.split, weight_ih, out, stream)
        return terms


def logits(head, last):
    """Compute logits; see `bppsa_nb.cells.stack.logits`."""
    weight, bias = map(on_device, head)
    out = cuda.device_array((len(last), len(bias)), last.dtype)
    cells.launch_linear(last, weight, bias, out)
    return out


def from_logits(head, last, grad_logits):
    """Go back through `logits`; see `bppsa_nb.cells.stack.from_logits`."""
    weight, bias = map(on_device, head)
    found = [cuda.device_array(array.shape, last.dtype) for array in (weight, bias, last)]
    launch_from_logits(last, weight, grad_logits, head_parts(*grad_logits.shape, last), found)
    return found


def head_parts(batch, classes, last):
    """Allocate what `launch_from_logits` works on."""
    return cuda.device_array(weight_gradients.parts_of(batch, classes, last.shape[1] + 1), last.dtype)


def launch_from_logits(last, weight, grad_logits, parts, found, stream=0):
    """Launch `from_logits`: `found` are the gradients of weight, bias, and the last state."""
    grads = found[0], *found[:2], found[1]  # a layer's that has states, and no inputs
    weight_gradients.launch_gradients(last, last, grad_logits, (0, 0), parts, grads, stream)
    cells.launch_input_gradients(grad_logits.reshape(1, *grad_logits.shape), 1, 0, weight, found[2], stream)
