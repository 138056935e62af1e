"""Weights: pruned by magnitude, as in See et al. (2016), and in files, written whole, read whole or not at all."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

import numpy as np

from bppsa_nb.machine.arguments import Path, checked
from bppsa_nb.machine.checks import check_finite, check_has, check_kind
from bppsa_nb.machine.files import atomic_write, npz_entry, read_npz

Params = Mapping[str, Annotated[np.ndarray, "floating[...]"]]
Scheme = Literal["class_blind", "class_uniform", "class_distribution"]
SCHEMES = get_args(Scheme)


@checked
def prune(params: Params, rate: Annotated[float, ">= 0, < 1"], scheme: Scheme = "class_blind") -> dict[str, np.ndarray]:
    """Set the weights of smallest magnitude to zero, in place.

    Only arrays of two or more axes are pruned; biases stay. Weights that are zero already count as pruned. Of weights
    of equal magnitude, earlier ones are pruned first.

    Parameters
    ----------
    params
        A network's parameters, of floating point numbers; pruned weights are set to zero in them.
    rate
        The share of weights to prune.
    scheme
        ``"class_blind"``: one threshold of magnitude over all weights. ``"class_uniform"``: the same share of each
        array, ``round(rate * size)`` weights. ``"class_distribution"``: a threshold for each array, λ times its
        standard deviation, with one λ for all. The first and the last prune ``round(rate * count)`` of all weights.

    Returns
    -------
    dict of str to np.ndarray of bool
        The masks, for `Network.masks`: for every array of weights, where they are kept.

    Examples
    --------
    >>> params = {"fc.weight": np.array([[0.1, -3.0], [2.0, -0.2]]), "fc.bias": np.array([0.01, 0.02])}
    >>> masks = prune(params, 0.5)
    >>> params["fc.weight"]
    array([[ 0., -3.],
           [ 2.,  0.]])
    """
    weights = _weights(params)
    sizes = {name: np.abs(weight).ravel() for name, weight in weights.items()}
    if scheme == "class_uniform":
        kept = {name: _largest(size, round(rate * len(size))) for name, size in sizes.items()}
    else:
        if scheme == "class_distribution":
            sizes = {name: _in_deviations(weights[name], size) for name, size in sizes.items()}
        together = np.concatenate(list(sizes.values()))
        together = _largest(together, round(rate * len(together)))
        ends = np.cumsum([len(size) for size in sizes.values()])[:-1]
        kept = dict(zip(sizes, np.split(together, ends), strict=True))
    masks = {name: kept[name].reshape(weight.shape) for name, weight in weights.items()}
    for name, weight in weights.items():
        weight[~masks[name]] = 0
    return masks


@checked
def masks_of(params: Params) -> dict[str, np.ndarray]:
    """Return the masks of weights that were pruned before, as `prune` does: for every array, where it is not zero."""
    return {name: weight != 0 for name, weight in _weights(params).items()}


def _weights(params):
    weights = {name: param for name, param in params.items() if param.ndim > 1}
    if not weights:
        raise ValueError(f"params must hold weights, arrays of two or more axes, got {sorted(params, key=str)}")
    for name, weight in weights.items():
        check_finite(**{f"params[{name!r}]": weight})
        if not weight.flags.writeable:
            raise ValueError(f"params[{name!r}] must be writable")
    return weights


def _largest(sizes, count):
    """Mark all but the `count` smallest; of equal ones at the threshold, the first are the smaller."""
    kept = np.ones(len(sizes), bool)
    if count:
        threshold = np.partition(sizes, count - 1)[count - 1]
        kept[sizes < threshold] = False
        at = np.flatnonzero(sizes == threshold)
        kept[at[: count - np.count_nonzero(~kept)]] = False
    return kept


def _in_deviations(weight, sizes):
    """Return magnitudes in units of the weights' standard deviation."""
    sizes = sizes.astype(np.result_type(sizes, np.float64))
    sizes /= sizes.max(initial=0) or 1  # so that no square overflows or vanishes
    deviation = (np.sign(weight).reshape(-1) * sizes).std() if sizes.size else 0
    if deviation == 0:  # all alike: no number of deviations reaches them, unless they are zero
        return np.where(sizes == 0, 0.0, np.inf)
    return sizes / deviation


@checked
def save_weights(model: Any, path: Path) -> None:
    """Write a model's parameters to an ``.npz`` file, atomically.

    Parameters
    ----------
    model
        A `Network`, or anything with `params`.
    path
        The file, named as given. Its entries have the parameters' names, which are PyTorch's.

    Raises
    ------
    ValueError, OSError
        If a parameter is not finite; if the file cannot be written.
    """
    _check_model(model)
    for name in model.params:
        npz_entry("model.params", model.params, name)
    with atomic_write(path) as file:
        np.savez(file, **model.params)


@checked
def load_weights(model: Any, path: Path) -> None:
    """Take over parameters from an ``.npz`` file, all of them or, on an error, none.

    Masks are not kept in the file: pruned weights are those that are zero. A network that has masks takes only weights
    that are zero where the masks prune; one without keeps none, until told to by
    ``network.masks = masks_of(network.params)``.

    Parameters
    ----------
    model
        A `Network`, or anything with `params`, a mapping of names to arrays.
    path
        A file that `save_weights` wrote, or ``numpy.savez`` with PyTorch's names:
        ``np.savez(path, **{name: p.numpy() for name, p in module.state_dict().items()})``. Nothing is unpickled.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is no such file; if an entry is missing, left over, not finite, or of another shape or dtype than the
        model's; if a weight is not zero where the masks prune.
    """
    _check_model(model)
    entries = read_npz(path, "save_weights")
    params = {name: npz_entry(path, entries, name, param) for name, param in model.params.items()}
    if entries.keys() - params.keys():
        raise ValueError(f"{path} has entries that do not fit the model: {sorted(entries.keys() - params.keys())}")
    for name, mask in (getattr(model, "masks", None) or {}).items():
        if np.any(params[name][~mask]):
            raise ValueError(f"{path}: {name!r} must be zero where the model's masks prune it")
    model.params.update(params)  # at once: Ctrl-C leaves nothing half done


def _check_model(model):
    check_has("model", model, ["params"], "bppsa_nb.LeNet5()")
    check_kind("model.params", model.params, Mapping, "a dict of arrays")
