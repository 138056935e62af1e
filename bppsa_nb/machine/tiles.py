"""Products of a few rows with small matrices, a tile of the result at a time in registers.

A step of a recurrent cell multiplies B rows of H numbers by an H x H matrix, and the next step waits for it. At such
sizes BLAS spends half its time on finding out what it was asked for. Here a tile of up to 8 rows and two or three
vectors of columns (of more, where there are few rows) stays in registers while all products that belong to it are added
up. Tiles at the end of rows or columns reach back over those before, so that every size is made of the same few.

A tile reads a few columns of all rows of a matrix. Where rows are long, these lie far apart, often by a power of two,
and share a few places of a cache. Matrices that are read again and again are laid out by panels, one after the other,
each with as many columns as a tile; the last one reaches back, too.

The code is compiled once per dtype, not into every loop that has a product: loops are given a table with its address
(`machine.second_core`).
"""

import numpy as np
from llvmlite import binding, ir
from numba import from_dtype, types
from numba.core import cgutils
from numba.extending import intrinsic, register_jitable

from bppsa_nb.machine import second_core
from bppsa_nb.machine.compiling import cfunc, lock
from bppsa_nb.machine.intrinsics import call_own, integers

_FEATURES = binding.get_host_cpu_features()
# Bytes of a vector register, and rows of a tile: there are 32 such registers or 16, and a tile of two vectors may fill
# half of them, one of three three quarters.
_BYTES, _ROWS = (64, 8) if _FEATURES.get("avx512f") else (32, 4) if _FEATURES.get("avx") else (16, 4)
# Bytes of each vector where three make a tile: a processor with two units of 32 bytes multiplies three halves sooner
# than two whole vectors, in which a row of 20 numbers wastes more.
_THIRD = 32 if binding.get_host_cpu_name() == "znver4" else _BYTES

_LONG = 2**10  # bytes of a row from which on panels are worth it
NARROW = 16  # columns below which registers of some processors are not full
GROUP = 8  # rows that a core takes at least where several share them out: whole tiles

_INT, _BYTE = ir.IntType(64), ir.IntType(8)
_SIZES = 10  # K, B, H, J, and bytes to the next: of rows k, b, h; of matrices k, h; of the result b


_products = {}  # by dtype


def product(dtype):
    """Return the table of what `multiply` calls for float32 or float64, compiled at the first call, by one thread."""
    if dtype not in _products:
        with lock:
            if dtype not in _products:
                address = _compile(dtype, _BYTES, _ROWS, _THIRD).address
                _products[dtype] = second_core.table_of(address, dtype.itemsize)
    return _products[dtype]


def _compile(dtype, width, height, third):
    """Compile the product for tiles of at most `height` rows and two vectors of `width` bytes, or three of `third`."""
    pointer = types.CPointer(from_dtype(dtype))

    @cfunc(types.void(pointer, pointer, pointer, types.CPointer(types.int64)))
    def product(rows, matrices, out, sizes):
        _product(rows, matrices, out, sizes, width, height, third)

    return product


@register_jitable
def panel_width(columns, itemsize):
    """Return how many columns a panel has, in Python and in compiled code: all of them, where rows are short.

    Of `columns`, there are ``-(-columns // width)`` panels; panel p begins with column ``min(p * width, columns -
    width)``.
    """
    return columns if columns * itemsize < _LONG else 2 * _BYTES // itemsize


def panels(matrices):
    """Lay matrices [shape=(K, H, J)] out by panels [shape=(P, K, H, W)]."""
    *stack, columns = matrices.shape
    if columns * matrices.itemsize < _LONG:
        return np.ascontiguousarray(matrices)[None]
    width = panel_width(columns, matrices.itemsize)
    whole = columns // width
    laid = np.empty((-(-columns // width), *stack, width), matrices.dtype)
    laid[:whole] = matrices[:, :, : whole * width].reshape(*stack, whole, width).transpose(2, 0, 1, 3)
    laid[whole:] = matrices[:, :, -width:]
    return laid


@intrinsic
def multiply(_, product, rows, matrices, out, sizes, places, turn):
    """Compute ``out = sum_k rows[k] @ matrices[k]`` in compiled code; `product` is what ``product(dtype)`` returned.

    Shapes are (K, B, H) of `rows`, in any layout, (K, H, J) of `matrices`, rows without gaps, or `panels` of them
    (P, K, H, W), and (B, J) of `out`, which shares no memory with them. They are parts of arrays, as slices would take
    long to compile: `sizes` are K, B and H, and `places` how far the first numbers are from those of the arrays. Of
    `rows`, the first dimension is K's and the last two are B's and H's, of `out`, the last two are B's and J's.

    Where `turn` is odd, panels come from the last to the first: where matrices are larger than a cache, which step
    after step reads, what one step read last is there for the next.
    """
    return _call(product, rows, matrices, out, sizes, places, turn)


@intrinsic
def multiply_T(_, product, columns, matrices, out, sizes, places, turn):
    """Compute ``out = sum_k columns[k].T @ matrices[k]``, columns [shape=(K, H, B)]; see `multiply`."""
    return _call(product, columns, matrices, out, sizes, places, turn, transposed=True)


def _call(*kinds, transposed=False):
    """Return signature and code of a call of the product, or of one for each panel."""
    table, rows, matrices, out, sizes, places, _ = kinds
    if rows.ndim < 3 or matrices.ndim not in (3, 4) or out.ndim < 2 or not rows.dtype == matrices.dtype == out.dtype:
        what = "rows, matrices and out must be 3-d, 3-d (panels: 4-d), 2-d and of one dtype"
        raise TypeError(f"{what}, got {kinds[1:4]}")

    def code(context, builder, signature, arguments):
        given = zip(kinds[:4], arguments[:4], strict=True)
        at, *arrays = (context.make_array(kind)(context, builder, value) for kind, value in given)
        shapes = [cgutils.unpack_tuple(builder, array.shape) for array in arrays]
        strides = [cgutils.unpack_tuple(builder, array.strides) for array in arrays]
        of_b, of_h = strides[0][-1:-3:-1] if transposed else strides[0][-2:]
        K, B, H = integers(context, builder, sizes, arguments[4])
        starts = integers(context, builder, places, arguments[5])
        data = [builder.gep(array.data, [start]) for array, start in zip(arrays, starts, strict=True)]
        values = [K, B, H, shapes[1][-1], strides[0][0], of_b, of_h, *strides[1][-3:-1], strides[2][-2]]
        values += [] if matrices.ndim == 3 else [shapes[2][-1], shapes[1][0], strides[1][0]]  # of all panels
        stored = cgutils.alloca_once(builder, ir.ArrayType(_INT, len(values)))
        for i, value in enumerate(values):
            builder.store(value, cgutils.gep_inbounds(builder, stored, 0, i))
        values = [at.data, *data, builder.bitcast(stored, _INT.as_pointer())]
        if matrices.ndim == 3:
            second_core.call_at(builder, second_core.PRODUCT, *values)
        else:
            call_own(builder, "multiply_panels", _over_panels, [*values, arguments[6]])
        return context.get_dummy_value()

    return types.none(*kinds), code


def _over_panels(builder, table, rows, matrices, out, sizes, turn):
    """Emit the product with each of the panels, or the call that has two cores share them."""
    builder.function.attributes.add("noinline")
    width, columns, count, stride = (builder.load(builder.gep(sizes, [_INT(i)])) for i in (3, *range(_SIZES, 13)))
    last, odd = builder.sub(columns, width), builder.trunc(turn, ir.IntType(1))
    share = builder.load(builder.gep(table, [_INT(second_core.SHARE)]))
    with builder.if_else(cgutils.is_not_null(builder, share)) as (two_cores, one):
        with two_cores:
            second_core.call_at(builder, second_core.SHARE, table, table, rows, matrices, out, sizes)
        with one, cgutils.for_range(builder, count) as over_panels:
            number = over_panels.index
            number = builder.select(odd, builder.sub(builder.sub(count, _INT(1)), number), number)
            panel = cgutils.pointer_add(builder, matrices, builder.mul(number, stride), matrices.type)
            start = builder.mul(number, width)
            start = builder.select(builder.icmp_signed("<", start, last), start, last)
            second_core.call_at(builder, second_core.PRODUCT, table, rows, panel, builder.gep(out, [start]), sizes)


@intrinsic(prefer_literal=True)
def _product(_, rows, matrices, out, sizes, width, height, third):
    """Choose the largest tiles that fit into `out`, of the width that reaches least beyond it; cover it with them."""
    most, high, narrower = width.literal_value, height.literal_value, third.literal_value

    def code(context, builder, signature, arguments):
        number, size = context.get_value_type(rows.dtype), rows.dtype.bitwidth // 8
        values = [builder.load(cgutils.gep(builder, arguments[3], i)) for i in range(_SIZES)]
        B, columns = values[1], builder.mul(values[3], _INT(size))

        def at_least(value, bound):
            return builder.icmp_signed(">=", value, _INT(bound))

        def choose(shapes, width):
            """Take the first shape, of rows and vectors, that is no larger than the result; the last is one row."""
            (height, across), *others = shapes
            if not others:
                return _cover(builder, number, size, arguments[:3], values, height, width, across)
            fits = at_least(B, height)
            if across > 3:
                fits = builder.and_(fits, at_least(columns, across * width))
            with builder.if_else(fits) as (then, otherwise):
                with then:
                    _cover(builder, number, size, arguments[:3], values, height, width, across)
                with otherwise:
                    choose(others, width)

        def covered(tile):
            """Emit how many bytes tiles of so many cover."""
            return builder.mul(builder.sdiv(builder.add(columns, _INT(tile - 1)), _INT(tile)), _INT(tile))

        less = builder.icmp_signed("<", covered(3 * narrower), covered(2 * most))
        # One row or two fill few registers: more columns of them, or every sum waits for itself.
        shapes = [[(8, n), (4, n), (2, 4), (2, n), (1, 8), (1, n)] for n in (2, 3)]
        two, three = ([shape for shape in each if shape[0] <= high] for each in shapes)
        with builder.if_else(at_least(columns, most)) as (wide, other):
            with wide, builder.if_else(less) as (then, otherwise):
                with then:
                    choose(three, narrower)
                with otherwise:
                    choose(two, most)
            with other, builder.if_else(at_least(columns, 16)) as (narrow, single):
                with narrow:
                    choose([(4, 2), (1, 2)], 16)
                with single:
                    _cover(builder, number, size, arguments[:3], values, 1, size, 2)
        return context.get_dummy_value()

    return types.none(rows, matrices, out, sizes, width, height, third), code


def _cover(builder, number, size, arrays, values, height, width, across):
    """Emit the loops that cover `out` with tiles of `height` rows and `across` vectors of `width` bytes.

    It is no smaller than such a tile. Where half of one is enough for the rows at the end, they get that.
    """
    K, B, H, J, *strides = values
    lanes = width // size
    last = builder.sub(J, _INT(lanes))

    def at_most(value, bound):
        return builder.select(builder.icmp_signed("<", value, bound), value, bound)

    zero, whole = _INT(0), _INT(height)
    # Tiles of 8 rows are as many as leave at most 4.
    count = builder.sdiv(builder.add(B, _INT(3 if height == 8 else height - 1)), whole)
    with cgutils.for_range_slice(builder, zero, J, _INT(across * lanes), inc=True) as (column, _):
        columns = [at_most(builder.add(column, _INT(shift)), last) for shift in range(0, across * lanes, lanes)]
        columns = [builder.mul(column, _INT(size)) for column in columns]
        vector = ir.VectorType(number, lanes)

        def tile(start, rows):
            of_tile = [builder.add(at_most(start, builder.sub(B, _INT(rows))), _INT(i)) for i in range(rows)]
            _tile(builder, vector, size, arrays, (K, H), strides, of_tile, columns)

        with cgutils.for_range(builder, count) as rows:
            tile(builder.mul(rows.index, whole), height)
        if height == 8:
            with builder.if_then(builder.icmp_signed(">", B, builder.mul(count, whole))):
                tile(B, 4)


def _tile(builder, vector, size, arrays, counts, strides, of_tile, columns):
    """Emit what sets a tile of `out` to its part of the sum of ``rows[k] @ matrices[k]`` over all k.

    `of_tile` are its rows, `columns` the bytes before its left and its right half; the compiler knows how many.
    """
    (rows, matrices, out), (count, inner) = (builder.bitcast(array, _BYTE.as_pointer()) for array in arrays), counts
    contract, lanes = ("contract",), vector.count

    def place(array, kind, *offsets):
        total = offsets[0]
        for offset in offsets[1:]:
            total = builder.add(total, offset)
        return builder.bitcast(builder.gep(array, [total]), kind.as_pointer())

    def repeated(x):
        one = builder.insert_element(ir.Constant(vector, ir.Undefined), x, ir.IntType(32)(0))
        return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(ir.IntType(32), lanes), None))

    rows_k, rows_b, rows_h, matrices_k, matrices_h, out_b = strides
    starts = [builder.mul(b, rows_b) for b in of_tile]
    sums = {(b, j): cgutils.alloca_once_value(builder, vector(None)) for b in starts for j in columns}
    with cgutils.for_range(builder, count) as over_k, cgutils.for_range(builder, inner) as over_i:
        k, i = over_k.index, over_i.index
        at_matrix = builder.add(builder.mul(k, matrices_k), builder.mul(i, matrices_h))
        at_row = builder.add(builder.mul(k, rows_k), builder.mul(i, rows_h))
        factors = [builder.load(place(matrices, vector, at_matrix, j), align=size) for j in columns]
        for b in starts:
            x = repeated(builder.load(place(rows, vector.element, at_row, b)))
            for j, factor in zip(columns, factors, strict=True):
                total = builder.fmul(x, factor, flags=contract)
                builder.store(builder.fadd(total, builder.load(sums[b, j]), flags=contract), sums[b, j])
    for b, start in zip(of_tile, starts, strict=True):
        for j in columns:
            builder.store(builder.load(sums[start, j]), place(out, vector, builder.mul(b, out_b), j), align=size)
