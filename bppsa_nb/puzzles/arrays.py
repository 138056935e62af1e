"""Puzzles about what is scanned: Jacobians of an RNN and of a GRU, gradients of weights, sparse products."""

from itertools import permutations, product

import numpy as np

from bppsa_nb.puzzles.checker import Puzzles, Verdict, Wrong, call, returned

PUZZLES = Puzzles()


def compare(what, found, right, mistakes=()):
    """Raise `Wrong` unless an array is right; `mistakes` are what is often found instead, and what to say of it."""
    if isinstance(found, list) and found:
        raise Wrong(f"{what} is a list and should be an array of shape {right.shape}: np.array(...) makes one of it")
    if isinstance(found, np.ma.MaskedArray):
        raise Wrong(f"{what} is a masked array and should be a plain one")
    if isinstance(found, np.ndarray) and type(found) is not np.ndarray:
        why = ", whose * is another product," * isinstance(found, np.matrix)
        raise Wrong(f"{what} is a {type(found).__name__}{why} and should be a plain array")
    if isinstance(found, np.ndarray) and found.dtype.kind not in "fiu":
        raise Wrong(f"{what} is an array of {found.dtype} and should be one of numbers, as {right.dtype}")
    if not isinstance(found, np.ndarray):
        raise Wrong(f"{what} is {returned(found)} and should be an array of shape {right.shape}")
    bad = ~_alike(found, right, 1e-9 if right.dtype == np.float64 else 1e-4) if found.shape == right.shape else None
    if bad is not None and not bad.any():
        return
    mistakes = [(wrong, why) for wrong, why in mistakes if wrong.shape == found.shape]
    for wrong, why in mistakes:
        if _alike(found, wrong).all():
            raise Wrong(f"{what}: {why}")
    if bad is None:
        raise Wrong(f"{what} is an array of shape {found.shape} and should be one of shape {right.shape}")
    if _alike(found, right, 3e-3 if found.dtype.itemsize < right.dtype.itemsize else 1e-5).all():
        raise Wrong(f"{what} is right in its first digits only. Is something in it of a smaller type, as float32?")
    if found.dtype.kind in "iu":
        raise Wrong(f"{what} is an array of {found.dtype}, so all behind the point is cut off; make it {right.dtype}")
    place = tuple(int(i) for i in np.argwhere(bad)[0])
    here = f"{what}[{', '.join(map(str, place))}]"
    where = what if bad.all() else f"{here}{f' and {bad.sum() - 1} more' * bool(bad.sum() > 1)}"
    if not found[bad].any():
        raise Wrong(f"{where}: nothing has come there")
    for wrong, why in mistakes:
        if _alike(found, wrong)[bad].all():
            raise Wrong(f"{where}: {why}")
    raise Wrong(f"{here} is {found[place]:.4f} and should be {right[place]:.4f}")


def _alike(found, right, rounding=1e-4):
    """Say where numbers are the same, but for rounding: of the largest one, which sums may have had in them."""
    return np.isclose(found, right, rounding, rounding * np.abs(right).max(initial=0))


class _Counted(float):
    """A number that counts in how many multiplications it and its like took part."""

    products = 0


def _method(name, product):
    plain = getattr(float, name)

    def method(self, other):
        made = plain(self, other)
        if made is NotImplemented:
            return made
        _Counted.products += product
        return _Counted(made)

    return method


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "pow"):
    setattr(_Counted, f"__{_name}__", _method(f"__{_name}__", _name not in ("add", "radd", "sub", "rsub")))
_Counted.__neg__ = lambda self: _Counted(-float(self))


def _products(answer, solution, *arguments):
    """Count the multiplications of an answer that is right, and of the solution, one by one: a row of costs.

    There is none where the answer does not take numbers that count: NumPy has not all of its functions for them.
    """
    given, counts = [a if a.dtype.kind == "i" else np.vectorize(_Counted, "O")(a) for a in arguments], []
    for each in (answer, solution):
        _Counted.products = 0
        try:
            each(*(array.copy() for array in given))
        except Exception:
            return []
        counts.append(_Counted.products)
    return [("multiplications", *counts)] if min(counts) else []


def _for_sizes(*sizes):
    """Have a rule check an answer for several sizes, of which it knows none by heart."""

    def checking(rule):
        def checked(answer):
            for size in sizes:
                try:
                    found = rule(answer, **size)
                except Wrong as wrong:
                    if size == sizes[0]:
                        raise
                    here, there = (", ".join(f"{name} = {each[name]}" for name in each) for each in (size, sizes[0]))
                    raise Wrong(f"{wrong} (with {here}; with {there} it was right)") from wrong
            return found

        return checked

    return checking


def rnn_jacobian(weight_hh, h):
    """Return the transposed Jacobian of a step of an RNN, h' = tanh(W_hh h + ...)."""
    return weight_hh.T * (1 - h**2)


@PUZZLES.rule_of(rnn_jacobian)
@_for_sizes({"H": 3}, {"H": 2}, {"H": 1}, {"H": 5})
def _rule_rnn_jacobian(answer, H):
    rng = np.random.default_rng(0)
    weight, h = rng.standard_normal((H, H)), np.tanh(rng.standard_normal(H))
    slope, right = 1 - h**2, rnn_jacobian(weight, h)
    mistakes = [
        (right.T, "that is the Jacobian; it is to be transposed"),
        (weight.T, "the slopes of tanh are missing"),
        (weight, "the slopes of tanh are missing, and it is to be transposed"),
        (weight.T * slope[:, None], "the slopes belong to what is behind the step: to columns, once it is transposed"),
        (weight * slope, "the slopes belong to what is behind the step: to the rows of W_hh, before it is transposed"),
        (weight.T * (1 - h), "the slope of tanh is 1 - h'², the square"),
        (weight.T * (1 - 2 * h), "that is twice h'; the square is h ** 2"),
        (weight.T * (1 - np.tanh(h) ** 2), "h' is what tanh gave already; its slope is 1 - h'²"),
        (weight.T - h**2, "parentheses are missing: 1 - h'² is one factor"),
        (right * slope, "the slopes are in it twice"),
        (-right, "it has the other sign; the slope is 1 - h'²"),
        (np.diag(slope), "those are the slopes; W_hh is missing"),
        (weight.T @ slope, "@ adds up products; `*` scales each column"),
        (weight @ slope, "@ adds up products; `*` scales each column of W_hh, transposed"),
        (np.diag(np.diag(right)), "only the diagonal is there; other numbers move it, too"),
    ]
    compare("rnn_jacobian(weight_hh, h)", call(answer, rnn_jacobian, weight.copy(), h.copy()), right, mistakes)
    return Verdict(True, "Right.", example=f"H = {H}", costs=_products(answer, rnn_jacobian, weight, h))


def gru_jacobian(weight_hh, h, r, z, n, m):
    """Return the transposed Jacobian of a step of a GRU, h' = (1 - z) n + z h."""
    W_r, W_z, W_n = np.split(weight_hh, 3)
    to_n = (1 - z) * (1 - n**2)
    through_z = W_z.T * ((h - n) * z * (1 - z))
    return np.diag(z) + through_z + W_n.T * (to_n * r) + W_r.T * (to_n * m * r * (1 - r))


@PUZZLES.rule_of(gru_jacobian)
@_for_sizes({"H": 3}, {"H": 2}, {"H": 1}, {"H": 5})
def _rule_gru_jacobian(answer, H):
    rng = np.random.default_rng(0)
    weight, h, m = rng.standard_normal((3 * H, H)), rng.uniform(-1, 1, H), rng.standard_normal(H)
    r, z, n = (*rng.uniform(0.1, 0.9, (2, H)), rng.uniform(-0.9, 0.9, H))
    W_r, W_z, W_n = np.split(weight, 3)
    to_n = (1 - z) * (1 - n**2)
    ways = {
        "past the gates": np.diag(z),
        "through z": W_z.T * ((h - n) * z * (1 - z)),
        "through m": W_n.T * (to_n * r),
        "through r": W_r.T * (to_n * m * r * (1 - r)),
    }
    right = gru_jacobian(weight, h, r, z, n, m)
    past, by_z, by_m, by_r = ways.values()
    not_turned = past + W_z * ((h - n) * z * (1 - z)) + W_n * (to_n * r) + W_r * (to_n * m * r * (1 - r))
    other_order = "the rows of W_r come first, then those of W_z, then those of W_n"
    mistakes = [
        (right.T, "that is the Jacobian; it is to be transposed"),
        (right - 2 * by_z, "z times h and 1 - z times n: through z it is (h - n), and not (n - h)"),
        (right + by_z * (n / (h - n)), "h' has z n in it, too: through z it is (h - n)"),
        (right + by_z * (1 / (1 - z) - 1), "through z the slope of sigmoid is z (1 - z); 1 - z is missing"),
        (right + by_z * (1 / z - 1), "through z the slope of sigmoid is z (1 - z); z is missing"),
        (right + by_m * (1 / r - 1), "n is tanh(... + r m): through m there is a factor r"),
        (right + by_r * (1 / m - 1), "n is tanh(... + r m): through r there is a factor m"),
        (right + by_m * (1 / r - 1) + by_r * (1 / m - 1), "dn has r dm + m dr in it; both factors are missing"),
        (right + by_r * (1 / (1 - r) - 1), "through r the slope of sigmoid is r (1 - r); 1 - r is missing"),
        (right + by_r * (1 / r - 1), "through r the slope of sigmoid is r (1 - r); r is missing"),
        (right + (by_m + by_r) * (1 / (1 - n**2) - 1), "the slope of tanh, 1 - n², is missing"),
        (right + (by_m + by_r) * (1 / (1 - z) - 1), "h' has (1 - z) n in it: through m and r there is a factor 1 - z"),
        (right + (by_m + by_r) * (z / (1 - z) - 1), "h' has (1 - z) n in it, and not z n"),
        (right - past + np.diag(1 - z), "past the gates there is z, and not 1 - z"),
        (right - past + np.eye(H), "past the gates there is a factor z"),
        (right - past + z, "past the gates number i moves number i alone: np.diag(z)"),
        (right - past + z[:, None], "past the gates number i moves number i alone: np.diag(z)"),
        (not_turned, "W_r, W_z and W_n are to be transposed; then their columns are scaled"),
        (not_turned.T, "columns are scaled, once the weights are transposed, and not rows"),
        (-right, "it has the other sign"),
        *((gru_jacobian(np.concatenate(each), h, r, z, n, m), other_order) for each in permutations((W_r, W_z, W_n))),
    ]
    for signs in product((1, 0, -1), repeat=4):
        found = sum(sign * matrix for matrix, sign in zip(ways.values(), signs, strict=True))
        missing, turned = ([way for way, sign in zip(ways, signs, strict=True) if sign == bad] for bad in (0, -1))
        said = [f"a way is missing: {' and '.join(missing)}"] * bool(missing)
        said += [f"the sign is wrong {' and '.join(turned)}"] * bool(turned)
        mistakes += [(found, "; ".join(said))] if said and any(signs) else []
    given = weight, h, r, z, n, m
    found = call(answer, gru_jacobian, *(array.copy() for array in given))
    try:
        compare("gru_jacobian(...)", found, right, mistakes)
    except Wrong as wrong:
        off = _wrong_ways(answer, ways, given) if "should be " in str(wrong) and np.shape(found) == right.shape else ()
        raise Wrong(f"{wrong}. Look again at what comes {' and '.join(off)}") if 0 < len(off) < 4 else wrong from wrong
    costs = _products(answer, gru_jacobian, weight, h, r, z, n, m)
    return Verdict(True, "Right.", example=f"H = {H}", costs=costs)


def _wrong_ways(answer, ways, given):
    """Return which ways of a GRU's step an answer has wrong, from what it says if only one weight is not zero."""
    weight, *others = given
    gate, off = np.arange(len(weight)) // weight.shape[1], []
    try:
        past, *found = (answer(weight * (gate == n)[:, None], *(a.copy() for a in others)) for n in (9, 1, 2, 0))
        for way, made in zip(ways, (past, *(each - past for each in found)), strict=True):
            off += [] if _alike(made, ways[way]).all() else [way]
    except Exception:
        return []
    return off


def weight_gradient(grad_sums, hidden):
    """Return the gradients of W_hh and of b_hh of an RNN, from all steps at once."""
    return np.einsum("tbi,tbj->ij", grad_sums, hidden[:-1]), grad_sums.sum(axis=(0, 1))


@PUZZLES.rule_of(weight_gradient)
@_for_sizes({"T": 4, "B": 2, "H": 3}, {"T": 1, "B": 1, "H": 1}, {"T": 2, "B": 3, "H": 4})
def _rule_weight_gradient(answer, T, B, H):
    rng = np.random.default_rng(0)
    grad, hidden = rng.standard_normal((T, B, H)), rng.standard_normal((T + 1, B, H))
    weight, bias = weight_gradient(grad, hidden)
    found = call(answer, weight_gradient, grad.copy(), hidden.copy())
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise Wrong(f"it returned {returned(found)} and should return two arrays, of W_hh and of b_hh")
    if H > 1 and [np.ndim(each) for each in found if isinstance(each, np.ndarray)] == [1, 2]:
        raise Wrong("the two are swapped: that of W_hh, H by H numbers, comes first")
    mistakes = [
        (weight.T, "row i belongs to number i of the sum, column j to number j of the state: it is transposed"),
        (np.einsum("tbi,tbj->ij", grad, hidden[1:]), "W_hh is multiplied by the state *before* the step, hidden[:-1]"),
        (np.einsum("tbi,tbj->ij", grad[-1:], hidden[-2:-1]), "that is of the last step; W_hh is used in all of them"),
        (np.einsum("bi,bj->ij", grad[0], hidden[0]), "that is of the first step; W_hh is used in all of them"),
        (weight / T, "gradients of all steps are added up; nobody divides by T"),
        (weight / (T * B), "gradients of all steps and samples are added up; nobody divides"),
        (weight / B, "gradients of all samples are added up; the loss has divided by B already"),
        (np.einsum("tbi,tbj->tij", grad, hidden[:-1]), "there is one for each step; add them up"),
        (np.einsum("tbi,tbj->bij", grad, hidden[:-1]), "there is one for each sample; add them up"),
        (np.outer(bias, hidden[:-1].sum((0, 1))), "that is a product of sums, and should be a sum of products"),
        (np.einsum("tbi,tcj->ij", grad, hidden[:-1]), "gradients of a sample meet states of others"),
        (np.einsum("tbi,sbj->ij", grad, hidden[:-1]), "gradients of a step meet states of others"),
        (weight - grad[0].T @ hidden[0], "the first step is missing"),
        (weight - grad[-1].T @ hidden[-2], "the last step is missing"),
    ]
    compare("the gradient of W_hh", found[0], weight, mistakes)
    mistakes = [
        (bias / B, "gradients of all samples are added up; the loss has divided by B already"),
        (grad.mean(axis=(0, 1)), "gradients of all steps and samples are added up; nobody divides"),
        (grad[-1].sum(axis=0), "that is of the last step; b_hh is used in all of them"),
        (grad[0].sum(axis=0), "that is of the first step; b_hh is used in all of them"),
        (grad.sum(axis=0), "there is one for each sample; add them up"),
        (grad.sum(axis=1), "there is one for each step; add them up"),
        (hidden[:-1].sum(axis=(0, 1)), "those are states; b_hh itself is multiplied by nothing, so its gradient is g"),
    ]
    compare("the gradient of b_hh", found[1], bias, mistakes)
    costs = _products(answer, weight_gradient, grad, hidden)
    return Verdict(True, "Right.", example=f"T = {T}, B = {B} and H = {H}", costs=costs)


def sparse_product(starts, left, right, a, b):
    """Return the values of a sparse product C = A B, by a plan."""
    return np.add.reduceat(a[left] * b[right], starts[:-1])


@PUZZLES.rule_of(sparse_product)
def _rule_sparse_product(answer):
    from scipy import sparse

    rng = np.random.default_rng(0)
    for rows, inner, columns in ((4, 5, 3), (1, 1, 1), (6, 4, 7)):
        A, B = (rng.standard_normal(shape) * (rng.random(shape) < 0.6) for shape in ((rows, inner), (inner, columns)))
        A[0, 0] = B[0, 0] = 1.5
        A, B = sparse.csr_array(A), sparse.csr_array(B)
        plan = _plan(A, B)
        wanted, terms = sparse_product(*plan, A.data, B.data), A.data[plan[1]] * B.data[plan[2]]
        mistakes = [
            (terms, "those are all products; each entry is the sum of its own"),
            (terms[plan[0][:-1]], "that is the first product of each entry; there may be more"),
            (terms[plan[0][1:] - 1], "that is the last product of each entry; there may be more"),
            (np.cumsum(terms)[plan[0][1:] - 1], "those are running totals; every entry starts from zero"),
            (wanted / np.diff(plan[0]), "nobody divides; each entry is the sum of its own"),
            (wanted - terms[plan[0][1:] - 1], "the last product is missing; q goes up to starts[k + 1], not included"),
            (wanted + np.append(terms, 0)[plan[0][1:]], "the product at starts[k + 1] is the next entry's"),
            (wanted[:-1], "the last entry is missing"),
            (wanted[1:], "the first entry is missing"),
            (np.append(wanted, 0), "there is one entry too many: starts has one number more than C has entries"),
            (np.add.reduceat(A.data[plan[1]], plan[0][:-1]) * np.add.reduceat(B.data[plan[2]], plan[0][:-1]),
             "those are products of sums, and should be sums of products"),
        ]  # fmt: skip
        found = call(answer, sparse_product, *(array.copy() for array in (*plan, A.data, B.data)))
        compare(f"of {rows} x {inner} times {inner} x {columns}, what it returned", found, wanted, mistakes)
    costs = _products(answer, sparse_product, *plan, A.data, B.data)
    return Verdict(True, "Right.", example=f"{len(terms)} products", costs=costs)


def _plan(A, B):
    """Find who meets whom, entry by entry of the product, row by row."""
    found = {}
    for i in range(A.shape[0]):
        for p in range(A.indptr[i], A.indptr[i + 1]):
            for q in range(B.indptr[A.indices[p]], B.indptr[A.indices[p] + 1]):
                found.setdefault((i, int(B.indices[q])), []).append((p, q))
    meets = [found[place] for place in sorted(found)]
    left, right = (np.array([pair[side] for entry in meets for pair in entry]) for side in (0, 1))
    return np.cumsum([0, *map(len, meets)]), left, right
