"""Parameters of a model by name: views of one flat array, so that all of them are read, updated and sent at once."""

import math
from collections.abc import Iterator, Mapping, MutableMapping
from itertools import accumulate, pairwise

import numpy as np

from bppsa_nb.machine.checks import Fixed, all_finite, check_array, check_finite, check_kind
from bppsa_nb.machine.memory import aligned


class Parameters(Fixed, MutableMapping[str, np.ndarray]):
    """Arrays by name, which are views of one flat array.

    ``params[name]`` is a view: what is written into it is written into the parameter. ``params[name] = array`` copies
    numbers into the view, so no two names share memory. No name can be deleted, and after `seal` none can be added:
    a model is sealed by its first forward pass, or by a trainer. Views that were taken before a name was added are out
    of date. TypeError or ValueError is raised for another shape or dtype, and nothing changes then.

    Attributes
    ----------
    flat : np.ndarray [shape=(P,)]
        The numbers of all parameters, one parameter after the other; written to, but never replaced.
    shapes : dict of str to tuple of int
    """

    flat: np.ndarray
    _fixed = ("flat",)

    def __init__(self, arrays, dtype):
        self._lay_out({name: array.shape for name, array in arrays.items()})
        self._fix(flat=aligned((sum(array.size for array in arrays.values()),), np.dtype(dtype)))
        np.concatenate([self.flat[:0], *(array.reshape(-1) for array in arrays.values())], out=self.flat)
        self._sealed = False

    def _lay_out(self, shapes: dict[str, tuple[int, ...]]):
        ends = accumulate(map(math.prod, shapes.values()), initial=0)
        self.shapes, self._places = shapes, {n: slice(*ends) for n, ends in zip(shapes, pairwise(ends), strict=True)}

    def views(self, flat) -> dict:
        """Cut an array like `flat`, which may be on a GPU, into a dict of arrays of the parameters' shapes."""
        return {name: flat[place].reshape(self.shapes[name]) for name, place in self._places.items()}

    def zeros(self) -> "Parameters":
        """Return sealed parameters of the same names and shapes, all zero."""
        found = Parameters(self.views(np.zeros_like(self.flat)), self.flat.dtype)
        found.seal()
        return found

    def seal(self) -> None:
        """Let no more names be added."""
        self._sealed = True

    def check_finite(self) -> None:
        """Raise ValueError at the first NaN or infinity, naming the parameter and the place."""
        if not all_finite(self.flat):
            check_finite(**{f"params[{name!r}]": param for name, param in self.items()})

    def __getitem__(self, name: str) -> np.ndarray:
        return self.flat[self._places[name]].reshape(self.shapes[name])

    def __setitem__(self, name: str, array: np.ndarray) -> None:
        self.update({name: array})

    def update(self, *arrays, **more: np.ndarray) -> None:
        """Copy arrays into the parameters of these names: all of them or, on an error, none."""
        arrays = dict(*arrays, **more)
        for name, array in arrays.items():
            what = f"params[{name!r}]"
            if not self.flat.flags.writeable:
                raise ValueError(f"{what} must be writable, got a view of a read-only array, params.flat")
            if name in self.shapes:
                check_array(what, array, self.flat.dtype, self.shapes[name])
            elif self._sealed:
                known = f"{what} is none of the parameters, {', '.join(self.shapes)}"
                raise ValueError(f"{known}; a subclass adds its own in __init__, before a forward pass or a trainer")
            else:
                check_array(what, array, self.flat.dtype, np.shape(array))
        new = {name: array for name, array in arrays.items() if name not in self.shapes}
        if len(arrays) == 1 and not new:
            self[name][...] = array
            return
        flat = np.concatenate([self.flat, *(array.reshape(-1) for array in new.values())])
        self._lay_out(self.shapes | {name: array.shape for name, array in new.items()})
        for name, view in self.views(flat).items():
            if name in arrays:
                view[...] = arrays[name]
        if new:
            self._fix(flat=flat)
        else:
            self.flat[...] = flat  # at once, whatever signals arrive

    def __delitem__(self, name):
        raise ValueError(f"params[{name!r}] cannot be deleted: the model computes with it")

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def __repr__(self):
        shapes = ", ".join(f"{name} {shape}" for name, shape in self.shapes.items())
        return f"Parameters({shapes}; {self.flat.dtype})"


class Parametrized:
    """A model with `params`, which can be written, but not replaced: assignment copies arrays into them."""

    @property
    def params(self) -> Parameters:
        """Parameters of the model by name."""
        return self._params

    @params.setter
    def params(self, arrays: Mapping[str, np.ndarray]) -> None:
        check_kind("params", arrays, Mapping, "a dict of arrays")
        if not hasattr(self, "_params"):
            self._params = Parameters(arrays, self.dtype)
        elif missing := [name for name in self._params if name not in arrays]:
            raise ValueError(f"params must have an entry {missing[0]!r}, got {sorted(arrays, key=str)}")
        else:
            self._params.update(arrays)
