"""Four variants of the gated recurrent unit, forward and backward, after the article on differentiable graphs.

They differ in which products are computed together, in where the reset gate acts, and in what the forward pass keeps
for the backward pass. The article's update of the hidden state, with gates r (reset) and z (update), is ::

    r = sigmoid(W_r x + U_r h + b_r)        c = tanh(W_c x + U_c (r * h) + b_c)
    z = sigmoid(W_z x + U_z h + b_z)        h' = (1 - z) * h + z * c

1. ``"original"``: as it stands. Every gate multiplies on its own, at every step: three products with x, three with h,
   of which that with r * h waits for the one that made r.
2. ``"concatenated"``: W x of all gates and all steps is one product, before the time loop; U_r h and U_z h are one
   product. The same function.
3. ``"moved"``: c = tanh(W_c x + b + r * (U_c h + b')). All three products with h are one, and the serial path has one
   product per step instead of two. **Another function**. Kept are r, z and c, where the nonlinearities are; the
   backward pass also needs m = U_c h + b', and computes that product again.
4. ``"saved"``: the same function as the third. Kept are r, z and m, where the multiplications are; the backward pass
   computes c again, from a multiplication, a sum and a tanh. That needs W_c x, too: a third number beside r and z, that
   the third variant has overwritten by c. The article does not count it.

In all four, parameter and input gradients are left until after the time loop, when every factor is known for all steps
at once ("by now, we know better"): a product per gate in the first variant, as few as possible in the others.

Parameters have PyTorch's layout: ``weight_ih`` [shape=(3H, I)], ``weight_hh`` [shape=(3H, H)], ``bias_ih`` and
``bias_hh`` [shape=(3H,)], a block of H rows for r, then z, then c (which PyTorch calls n). PyTorch's z says how much
stays, the article's how much is replaced: as 1 - sigmoid(a) = sigmoid(-a), rows of z change their sign. Where r acts
first, only the sum of both biases matters.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from bppsa_nb.machine import checks
from bppsa_nb.machine.arguments import Dtype, Rng, Size, checked
from bppsa_nb.machine.checks import with_repr

Variant = Literal["original", "concatenated", "moved", "saved"]
Params = Mapping[str, Annotated[np.ndarray, "float[...]"]]
Inputs = Annotated[np.ndarray, "float[T, B, I]"]
States = Annotated[np.ndarray, "float[T, B, H]"]
NAMES = {"original": "Original", "concatenated": "Concatenated", "moved": "Moved Reset Gate"}
NAMES["saved"] = "Different Saved Activations"
_GRADIENTS = "weight_ih", "weight_hh", "bias_ih", "bias_hh", "x", "h0"


@with_repr("variant", "hidden", "gates", "product")
@dataclass(frozen=True, eq=False)
class Activations:
    """What a forward pass leaves for the backward pass.

    `hidden` [shape=(T + 1, B, H)] are the states, the initial one first; `gates` [shape=(T, B, 3H)] r, z and c side by
    side, with W_c x + b in the place of c in variant ``"saved"``, where `product` [shape=(T, B, H)] is m = U_c h + b'.
    """

    variant: str
    hidden: np.ndarray
    gates: np.ndarray
    product: np.ndarray | None

    @property
    def kept(self) -> int:
        """Numbers that the forward pass has written and left, all steps and samples together."""
        return self.hidden[1:].size + self.gates.size + (0 if self.product is None else self.product.size)


@checked
def parameters(input_size: Size, hidden_size: Size, rng: Rng = 0, dtype: Dtype = np.float32) -> dict[str, np.ndarray]:
    """Draw parameters by name, uniform between -1 / sqrt(H) and 1 / sqrt(H), as in PyTorch."""
    rng, bound, shapes = np.random.default_rng(rng), 1 / np.sqrt(hidden_size), _shapes(input_size, hidden_size)
    return {name: rng.uniform(-bound, bound, shape).astype(dtype) for name, shape in shapes.items()}


@checked
def forward(
    variant: Variant, params: Params, x: Inputs, h0: Annotated[np.ndarray, "float[B, H]"], xp: Any = np
) -> Activations:
    """Run a variant over time, on inputs x from the state h0.

    `xp` computes: ``numpy``, or a `Counter`, which counts besides. NaN and infinity are not looked for.
    """
    _check(params, *x.shape[2:], *h0.shape[1:])
    if variant in ("original", "concatenated"):
        return Activations(variant, *_forward_reset_first(params, x, h0, variant == "concatenated", xp))
    return Activations(variant, *_forward_reset_moved(params, x, h0, variant == "saved", xp))


@checked
def backward(
    params: Params, x: Inputs, activations: Activations, grad_hidden: States, xp: Any = np
) -> dict[str, np.ndarray]:
    """Back-propagate through the variant that ran forward: gradients by name, ``x`` and ``h0`` included.

    `activations` are what `forward` returned for these `params` and `x`; they are not changed. `grad_hidden` is the
    gradient of the loss at every state but the initial one, as it comes from the layer above.
    """
    variant, (T, B, H) = activations.variant, grad_hidden.shape
    _check(params, x.shape[2], H)
    checks.check_array("activations.hidden", activations.hidden, x.dtype, (T + 1, B, H))
    if variant in ("original", "concatenated"):
        return _backward_reset_first(params, x, activations, grad_hidden, variant == "concatenated", xp)
    return _backward_reset_moved(params, x, activations, grad_hidden, xp)


class Counter:
    """Stands in for the module ``numpy``: does what it does, and counts.

    Only calls with ``out=`` count, and are let through: they launch a computation and allocate nothing. Which call
    waits for which is found from memory. Every number remembers how many products, one after the other, went into it; a
    call's result has the largest such depth of all it reads, one more if the call is a product.

    There are `launches` (calls), of which `products` are matrix products, with `multiply_adds` in them, and
    `serial`, the products of the longest chain in which each waits for the last.

    >>> xp, v, w = Counter(), np.ones((1, 3)), np.empty((1, 3))
    >>> for _ in range(2):
    ...     result = xp.matmul(v, np.eye(3), out=w)
    ...     result = xp.matmul(w, np.eye(3), out=v)
    >>> xp.launches, xp.products, xp.multiply_adds, xp.serial
    (4, 4, 36, 4)
    """

    def __init__(self):
        self.launches = self.products = self.multiply_adds = self.serial = 0
        self._depths = {}  # id of an array that owns memory -> the array (so that the id stays its), depth per number

    def __getattr__(self, name):
        function = getattr(np, name)

        def call(*inputs, out, **options):
            result = function(*inputs, out=out, **options)
            depth = max(int(self._depth(array).max(initial=0)) for array in inputs)
            self.launches += 1
            if name == "matmul":
                depth += 1
                self.products += 1
                self.multiply_adds += out.size * inputs[0].shape[-1]
            self._depth(out)[...] = depth
            self.serial = max(self.serial, depth)
            return result

        return call

    def _depth(self, array):
        """Look up the depth of every number of an array, which may be a view into another: a view, too."""
        if not isinstance(array, np.ndarray):
            return np.zeros(1, np.int32)
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        size = owner.itemsize
        _, depths = self._depths.setdefault(id(owner), (owner, np.zeros(owner.nbytes // size, np.int32)))
        offset = (array.ctypes.data - owner.ctypes.data) // size
        strides = [4 * stride // size for stride in array.strides]
        return np.ndarray(array.shape, np.int32, depths, 4 * offset, strides)


@checked
def count(variant: Variant, T: Size, B: Size, I: Size, H: Size) -> dict[str, int]:
    """Run a variant on zeros: what `Counter` counts, by name, and the numbers ``kept`` between the passes."""
    rng, xp = np.random.default_rng(0), Counter()
    params = parameters(I, H, rng)
    x, h0 = np.zeros((T, B, I), np.float32), np.zeros((B, H), np.float32)
    activations = forward(variant, params, x, h0, xp)
    backward(params, x, activations, np.zeros((T, B, H), np.float32), xp)
    counts = {name: getattr(xp, name) for name in ("multiply_adds", "products", "serial", "launches")}
    return counts | {"kept": activations.kept}


def _forward_reset_first(params, x, h0, concatenated, xp):
    """Variants 1 and 2: c = tanh(W_c x + U_c (r * h) + b)."""
    W, U, bias = params["weight_ih"], params["weight_hh"], params["bias_ih"] + params["bias_hh"]
    r, z, c, rz, rzc = _blocks(params)
    hidden, gates = _allocate(x, h0)
    reset, work = np.empty_like(hidden[0]), np.empty_like(hidden[0], shape=(len(h0), len(U)))
    if concatenated:
        _input_products(_rows(x), W, bias, _rows(gates), [rzc], xp)
    for t in range(len(x)):
        h, a = hidden[t], gates[t]  # a: the sums first, then in their place the activations
        if not concatenated:
            _input_products(x[t], W, bias, a, [r, z, c], xp)
        for gate in [rz] if concatenated else [r, z]:
            _add_product(h, U[gate].T, a[:, gate], work[:, gate], xp)
            _sigmoid(a[:, gate], xp)
        xp.multiply(a[:, r], h, out=reset)
        _add_product(reset, U[c].T, a[:, c], work[:, c], xp)
        xp.tanh(a[:, c], out=a[:, c])
        _update(h, a[:, z], a[:, c], hidden[t + 1], xp)
    return hidden, gates, None


def _forward_reset_moved(params, x, h0, saved, xp):
    """Variants 3 and 4: c = tanh(W_c x + b + r * m) with m = U_c h + b'. Keep c, or W_c x + b and m."""
    W, U, bias, bias_m = params["weight_ih"], params["weight_hh"], params["bias_ih"].copy(), params["bias_hh"]
    r, z, c, rz, rzc = _blocks(params)
    bias[rz] += bias_m[rz]  # r multiplies m, so the last third of this one stays with m
    hidden, gates = _allocate(x, h0)
    products, spare = np.empty_like(gates, shape=gates.shape[1:]), np.empty_like(hidden[0])
    kept = np.empty_like(hidden[1:]) if saved else None
    _input_products(_rows(x), W, bias, _rows(gates), [rzc], xp)
    for t in range(len(x)):
        h, a = hidden[t], gates[t]
        xp.matmul(h, U.T, out=products)
        xp.add(a[:, rz], products[:, rz], out=a[:, rz])
        _sigmoid(a[:, rz], xp)
        m, work, candidate = (kept[t], spare, spare) if saved else (products[:, c], products[:, c], a[:, c])
        xp.add(products[:, c], bias_m[c], out=m)
        _moved_candidate(a[:, r], m, a[:, c], work, candidate, xp)
        _update(h, a[:, z], candidate, hidden[t + 1], xp)
    return hidden, gates, kept


def _backward_reset_first(params, x, activations, grad_hidden, concatenated, xp):
    """Variants 1 and 2: the error passes U_c first, then the reset gate."""
    W, U = params["weight_ih"], params["weight_hh"]
    r, z, c, rz, rzc = _blocks(params)
    hidden, gates = activations.hidden, activations.gates
    grads, errors = _allocate_gradients(activations, grad_hidden)
    work, back = np.empty_like(hidden[0]), np.empty_like(hidden[0])
    for t in reversed(range(len(x))):
        h, a, d = hidden[t], gates[t], errors[t]  # d: gradients at the sums
        _through_update(grads[t : t + 2], h, a[:, z], a[:, c], d[:, z], d[:, c], work, xp)
        xp.matmul(d[:, c], U[c], out=back)
        xp.multiply(back, a[:, r], out=back)
        _through_reset(back, h, a[:, r], d[:, r], xp)
        xp.add(grads[t], back, out=grads[t])
        for gate in [rz] if concatenated else [r, z]:
            _add_product(d[:, gate], U[gate], grads[t], work, xp)

    reset = np.empty_like(hidden[1:])  # r * h once more, of all steps at once
    xp.multiply(gates[:, :, r], hidden[:-1], out=reset)
    grad_U, grad_bias = np.empty_like(U), np.empty_like(params["bias_hh"])
    for gate in [rz] if concatenated else [r, z]:
        xp.matmul(_rows(errors)[:, gate].T, _rows(hidden[:-1]), out=grad_U[gate])
    xp.matmul(_rows(errors)[:, c].T, _rows(reset), out=grad_U[c])
    xp.sum(_rows(errors), axis=0, out=grad_bias)
    grad_W, grad_x = _input_gradients(W, x, errors, [rzc] if concatenated else [r, z, c], xp)
    return dict(zip(_GRADIENTS, (grad_W, grad_U, grad_bias, grad_bias.copy(), grad_x, grads[0]), strict=True))


def _backward_reset_moved(params, x, activations, grad_hidden, xp):
    """Variants 3 and 4: the error passes the reset gate first, then all of U at once."""
    W, U = params["weight_ih"], params["weight_hh"]
    r, z, c, rz, rzc = _blocks(params)
    hidden, gates = activations.hidden, activations.gates
    grads, errors = _allocate_gradients(activations, grad_hidden)
    errors_c, work, recomputed = np.empty_like(hidden[1:]), np.empty_like(hidden[0]), np.empty_like(hidden[0])
    for t in reversed(range(len(x))):
        h, a, d = hidden[t], gates[t], errors[t]  # d: gradients at the sums of r and z, and at m
        if activations.product is None:
            m, candidate = recomputed, a[:, c]
            xp.matmul(h, U[c].T, out=m)
            xp.add(m, params["bias_hh"][c], out=m)
        else:
            m, candidate = activations.product[t], recomputed
            _moved_candidate(a[:, r], m, a[:, c], candidate, candidate, xp)
        _through_update(grads[t : t + 2], h, a[:, z], candidate, d[:, z], errors_c[t], work, xp)
        xp.multiply(errors_c[t], a[:, r], out=d[:, c])
        _through_reset(d[:, c], m, a[:, r], d[:, r], xp)
        _add_product(d, U, grads[t], work, xp)

    grad_U, grad_bias_hh, grad_bias_ih = np.empty_like(U), *np.empty_like(U, shape=(2, len(U)))
    xp.matmul(_rows(errors).T, _rows(hidden[:-1]), out=grad_U)
    xp.sum(_rows(errors), axis=0, out=grad_bias_hh)
    xp.positive(errors_c, out=errors[:, :, c])  # a copy: from here on d holds gradients at the sums of all gates
    xp.sum(_rows(errors), axis=0, out=grad_bias_ih)
    grad_W, grad_x = _input_gradients(W, x, errors, [rzc], xp)
    return dict(zip(_GRADIENTS, (grad_W, grad_U, grad_bias_ih, grad_bias_hh, grad_x, grads[0]), strict=True))


# -- What they have in common: products, elementwise steps and their gradients, memory. Arrays are (B, H), a step's,
# unless a docstring says otherwise; `xp` computes, and `out` arguments receive. --------------------------------------


def _input_products(x, W, bias, sums, gates, xp):
    """Compute W x + b, a product for every entry of `gates`; all arguments may hold all steps at once."""
    for gate in gates:
        xp.matmul(x, W[gate].T, out=sums[:, gate])
        xp.add(sums[:, gate], bias[gate], out=sums[:, gate])


def _input_gradients(W, x, errors, gates, xp):
    """Gradients of W and x: a product each for every entry of `gates`, of all steps at once."""
    grad_W, grad_x = np.empty_like(W), np.empty(x.shape, x.dtype)
    work = np.empty_like(_rows(grad_x))
    for gate in gates:
        xp.matmul(_rows(errors)[:, gate].T, _rows(x), out=grad_W[gate])
    xp.matmul(_rows(errors)[:, gates[0]], W[gates[0]], out=_rows(grad_x))
    for gate in gates[1:]:
        _add_product(_rows(errors)[:, gate], W[gate], _rows(grad_x), work, xp)
    return grad_W, grad_x


def _add_product(a, b, total, work, xp):
    """Add a product to what is there: one call of BLAS's fused GEMM, two in NumPy, which does not offer it."""
    xp.matmul(a, b, out=work)
    xp.add(total, work, out=total)


def _sigmoid(a, xp):
    """Compute (1 + tanh(a / 2)) / 2 in place, in which nothing overflows."""
    xp.multiply(a, 0.5, out=a)
    xp.tanh(a, out=a)
    xp.multiply(a, 0.5, out=a)
    xp.add(a, 0.5, out=a)


def _moved_candidate(r, m, inputs, work, c, xp):
    """Compute c = tanh(inputs + r * m)."""
    xp.multiply(r, m, out=work)
    xp.add(inputs, work, out=c)
    xp.tanh(c, out=c)


def _update(h, z, c, h_next, xp):
    """Compute h' = (1 - z) * h + z * c = h + z * (c - h)."""
    xp.subtract(c, h, out=h_next)
    xp.multiply(z, h_next, out=h_next)
    xp.add(h, h_next, out=h_next)


def _through_update(grads, h, z, c, error_z, error_c, work, xp):
    """Pass the gradient at h', grads[1], on to the sums of z and c, and add to that at h, grads[0], what reaches it."""
    grad, grad_next = grads
    xp.multiply(grad_next, z, out=error_c)
    xp.subtract(grad_next, error_c, out=work)  # grad_next * (1 - z)
    xp.add(grad, work, out=grad)
    xp.subtract(c, h, out=error_z)
    xp.multiply(error_z, z, out=error_z)
    xp.multiply(error_z, work, out=error_z)  # grad_next * (c - h) * z * (1 - z)
    xp.multiply(c, c, out=work)
    xp.subtract(1, work, out=work)
    xp.multiply(error_c, work, out=error_c)  # grad_next * z * (1 - c²)


def _through_reset(error, factor, r, error_r, xp):
    """Pass the gradient on to the sum of r, which multiplied `factor`; r has already been multiplied to `error`."""
    xp.subtract(1, r, out=error_r)
    xp.multiply(error_r, factor, out=error_r)
    xp.multiply(error_r, error, out=error_r)  # that is, with the derivative r * (1 - r)


def _blocks(params):
    """Find the rows of r, of z, of c, of both gates, and of all three."""
    H = params["weight_hh"].shape[1]
    return slice(0, H), slice(H, 2 * H), slice(2 * H, 3 * H), slice(0, 2 * H), slice(0, 3 * H)


def _rows(array):
    """View (T, B, n) as (T * B, n): all steps at once."""
    return array.reshape(array.shape[0] * array.shape[1], array.shape[2])


def _allocate(x, h0):
    """Room for hidden states, the initial one in place, and for r, z and c side by side."""
    T, (B, H) = len(x), h0.shape
    hidden, gates = np.empty((T + 1, B, H), x.dtype), np.empty((T, B, 3 * H), x.dtype)
    hidden[0] = h0
    return hidden, gates


def _allocate_gradients(activations, grad_hidden):
    """Room for the gradients at hidden states, where those from above are already in place, and at sums."""
    grads = np.empty_like(activations.hidden)
    grads[0], grads[1:] = 0, grad_hidden
    return grads, np.empty_like(activations.gates)


def _shapes(I, H):
    return {"weight_ih": (3 * H, I), "weight_hh": (3 * H, H), "bias_ih": (3 * H,), "bias_hh": (3 * H,)}


def _check(params, I, H):
    for name, shape in _shapes(I, H).items():
        if name not in params:
            raise ValueError(f"params must have an entry {name!r}, got {sorted(params)}")
        if params[name].shape != shape:
            raise checks.wrong_shape(f"params[{name!r}]", params[name], shape)
