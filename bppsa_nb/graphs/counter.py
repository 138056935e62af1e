"""Count what a computation asks of NumPy while it runs: launches, products, multiply-adds, and the serial path."""

import numpy as np


class Counter:
    """Stands in for the module ``numpy``: does what it does, and counts.

    Only calls with ``out=`` count, and are let through: they launch a computation and allocate nothing. Which call
    waits for which is found from memory. Every number remembers how many products, one after the other, went into it; a
    call's result has the largest such depth of all it reads, one more if the call is a product.

    There are `launches` (calls), of which `products` are matrix products, with `multiply_adds` in them; `elementwise`
    counts the numbers that all other calls write; and `serial`, the products of the longest chain in which each waits
    for the last.

    >>> xp, v, w = Counter(), np.ones((1, 3)), np.empty((1, 3))
    >>> for _ in range(2):
    ...     result = xp.matmul(v, np.eye(3), out=w)
    ...     result = xp.matmul(w, np.eye(3), out=v)
    >>> xp.launches, xp.products, xp.multiply_adds, xp.serial
    (4, 4, 36, 4)
    """

    def __init__(self):
        self.launches = self.products = self.multiply_adds = self.elementwise = self.serial = 0
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
            else:
                self.elementwise += out.size
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
