"""Products of a few rows with small matrices, a tile of the result at a time in registers.

A step of a recurrent cell multiplies B rows of H numbers by an H x H matrix, and the next step waits for it. At such
sizes BLAS spends half its time on finding out what it was asked for. Here a tile of up to 8 rows and two vectors of
columns stays in registers while all products that belong to it are added up. Tiles at the end of rows or columns reach
back over those before, so that every size is made of the same few.
"""

from llvmlite import binding, ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

_FEATURES = binding.get_host_cpu_features()
# Bytes of a vector register, and rows of a tile: there are 32 such registers or 16, and a tile may fill half of them.
_BYTES, _ROWS = (64, 8) if _FEATURES.get("avx512f") else (32, 4) if _FEATURES.get("avx") else (16, 4)

GROUP = 8  # rows that a core takes at least where several share them out: whole tiles

_compile = njit(error_model="numpy", fastmath={"contract"}, forceinline=True)


@intrinsic(prefer_literal=True)
def _tile(_, rows, matrices, out, row, left, right, height, width):
    """Set a tile of ``out`` to its part of the sum of ``rows[k] @ matrices[k]`` over all k.

    The tile has `height` rows from `row` on, and `width` bytes of columns, 0 for one number, both from `left` and from
    `right` on. The compiler knows how many these are.
    """

    def code(context, builder, signature, arguments):
        kinds, (row, *columns) = signature.args[:3], arguments[3:6]
        rows, matrices, out = (
            (kind, context.make_array(kind)(context, builder, value))
            for kind, value in zip(kinds, arguments[:3], strict=True)
        )
        number, size = context.get_value_type(kinds[2].dtype), kinds[2].dtype.bitwidth // 8
        lanes = _lanes(width.literal_value, size)
        vector, contract = ir.VectorType(number, lanes), ("contract",)

        def place(array, *indices):
            return cgutils.get_item_pointer(context, builder, *array, list(indices))

        def vector_at(array, *indices):
            return builder.bitcast(place(array, *indices), vector.as_pointer())

        def repeated(x):
            one = builder.insert_element(ir.Constant(vector, ir.Undefined), x, ir.IntType(32)(0))
            return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(ir.IntType(32), lanes), None))

        of_tile = [builder.add(row, row.type(i)) for i in range(height.literal_value)]
        sums = {(b, j): cgutils.alloca_once_value(builder, vector(None)) for b in of_tile for j in columns}
        count, _, inner = cgutils.unpack_tuple(builder, rows[1].shape)
        with cgutils.for_range(builder, count) as over_k, cgutils.for_range(builder, inner) as over_i:
            k, i = over_k.index, over_i.index
            factors = [builder.load(vector_at(matrices, k, i, j), align=size) for j in columns]
            for b in of_tile:
                x = repeated(builder.load(place(rows, k, b, i)))
                for j, factor in zip(columns, factors, strict=True):
                    product = builder.fmul(x, factor, flags=contract)
                    builder.store(builder.fadd(product, builder.load(sums[b, j]), flags=contract), sums[b, j])
        for (b, j), total in sums.items():
            builder.store(builder.load(total), vector_at(out, b, j), align=size)
        return context.get_dummy_value()

    return types.none(rows, matrices, out, types.intp, types.intp, types.intp, height, width), code


def _lanes(width, size):
    return max(width // size, 1)


def _make(height, width):
    """Make the function that covers `out` with tiles of one kind; it has as many rows and columns, or more."""
    lanes_of = _compile(_lanes)

    @_compile
    def cover(rows, matrices, out):
        end, lanes = out.shape[0] - height, lanes_of(width, out.itemsize)
        last = out.shape[1] - lanes
        for column in range(0, out.shape[1], 2 * lanes):
            left, right = min(column, last), min(column + lanes, last)
            for row in range(0, out.shape[0], height):
                _tile(rows, matrices, out, min(row, end), left, right, height, width)

    return cover


_wide_8, _wide_4, _wide_2, _wide_1 = (_make(min(rows, _ROWS), _BYTES) for rows in (8, 4, 2, 1))
_narrow_4, _narrow_1 = (_make(rows, 16) for rows in (4, 1))
_single = _make(1, 0)


@_compile
def multiply(rows, matrices, out):
    """Compute ``out = sum_k rows[k] @ matrices[k]``, in compiled code.

    Parameters
    ----------
    rows : np.ndarray [shape=(K, B, H)]
    matrices : np.ndarray [shape=(K, H, J)]
        Rows without gaps.
    out : np.ndarray [shape=(B, J)]
        Rows without gaps; shares no memory with the others.
    """
    height, width = out.shape[0], out.shape[1] * out.itemsize
    if width >= _BYTES:
        if height >= 8:
            _wide_8(rows, matrices, out)
        elif height >= 4:
            _wide_4(rows, matrices, out)
        elif height >= 2:
            _wide_2(rows, matrices, out)
        else:
            _wide_1(rows, matrices, out)
    elif width >= 16:
        if height >= 4:
            _narrow_4(rows, matrices, out)
        else:
            _narrow_1(rows, matrices, out)
    else:
        _single(rows, matrices, out)
