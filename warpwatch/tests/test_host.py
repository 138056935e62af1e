"""What stands in for the driver: arrays, streams, ufuncs and reductions of the compiler's own, as on a GPU."""

import math

import numpy as np
import pytest

import warpwatch
from warpwatch.virtual import current

pytest.importorskip("numba_cuda", reason="needs a CUDA compiler")
from numba import cuda, from_dtype, guvectorize, vectorize

RECORD = np.dtype([("a", "f8"), ("b", "i4"), ("c", "f4", 2)], align=True)


@pytest.fixture(autouse=True)
def watched():
    """Give the reports of all launches."""
    with warpwatch.device(watch=True) as reports:
        yield reports


@cuda.jit
def double(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= 2


@cuda.jit
def total(x, out):
    i, j = cuda.grid(2)
    if i < x.shape[0] and j < x.shape[1]:
        cuda.atomic.add(out, 0, x[i, j])


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5), (4, 1, 6)])
@pytest.mark.parametrize("order", "CF")
def test_views_are_of_the_same_memory(shape, order):
    x = np.asarray(np.random.default_rng(0).standard_normal(shape), order=order)
    d = cuda.to_device(x)
    assert isinstance(d, cuda.cudadrv.devicearray.DeviceNDArray) and d.__cuda_array_interface__["shape"] == shape
    about = "shape", "strides", "dtype", "size", "ndim", "nbytes"
    assert [getattr(d, name) for name in about] == [getattr(x, name) for name in about]
    np.testing.assert_array_equal(d.copy_to_host(), x)
    np.testing.assert_array_equal(d[0].copy_to_host() if x.ndim > 1 else d[0], x[0])
    np.testing.assert_array_equal(d.ravel(order=order).copy_to_host(), x.ravel(order=order))
    d[-1] = 3.0
    x[-1] = 3.0
    np.testing.assert_array_equal(d, x)
    flat = cuda.as_cuda_array(d).ravel(order=order)
    double.forall(flat.size)(flat)
    np.testing.assert_array_equal(d.copy_to_host(), 2 * x)
    if x.ndim == 2:
        np.testing.assert_array_equal(d.T.copy_to_host(), 2 * x.T)
        out = cuda.to_device(np.zeros(1))
        total[(2, 2), (4, 4)](d[1:, 1:], out)  # strided
        np.testing.assert_allclose(out[0], 2 * x[1:, 1:].sum())
    assert [part.copy_to_host().tolist() for part in flat.split(3)] == [
        (2 * x).ravel(order=order)[i : i + 3].tolist() for i in range(0, x.size, 3)]  # fmt: skip


def test_copies_go_every_way():
    x = np.arange(6, dtype="f4")
    d, e = cuda.to_device(x), cuda.device_array_like(x)
    e.copy_to_device(d)
    e[1:3] = d[4:6]
    e[:1] = np.float32([9])
    assert e.copy_to_host().tolist() == [9, 4, 5, 3, 4, 5]
    out = np.empty(6, "f4")
    assert e.copy_to_host(out) is out and out[0] == 9
    cuda.to_device(x + 1, to=e)
    assert e.copy_to_host().tolist() == [1, 2, 3, 4, 5, 6] and d.view("i4").dtype == "i4"
    d.gpu_data.memset(0)
    assert not d.copy_to_host().any()
    with pytest.raises(ValueError, match="broadcast"):
        d[:2] = x[:3]


def test_arrays_of_the_host_keep_their_order_and_bytes_their_place():
    @cuda.jit
    def number(x):
        for i in range(x.shape[0]):
            for j in range(x.shape[1]):
                x[i, j] = 10 * i + j

    for order in "CF":
        x = np.zeros((3, 4), order=order)
        number[1, 1](cuda.Out(x))
        assert (x == np.add.outer(10 * np.arange(3), np.arange(4))).all()
    d, text = cuda.device_array(1 << 16, "u1"), bytes(range(256)) * 256
    cuda.cudadrv.driver.host_to_device(d, text, len(text))
    assert d.copy_to_host().tobytes() == text


@pytest.mark.parametrize("make", ["mapped_array", "managed_array", "pinned_array"])
def test_memory_that_the_host_shares(make):
    x = getattr(cuda, make)((2, 3), np.float32)
    x[:] = 1
    double[1, 32](x.reshape(6))
    assert (x == 2).all() and x.flags.writeable
    with cuda.pinned(x), cuda.mapped(np.ones(4)) as mapped:
        double[1, 32](mapped)
        assert mapped.copy_to_host().tolist() == [2] * 4


def test_the_device_says_what_it_is(capsys):
    assert len(cuda.gpus) == len(cuda.list_devices()) == 1 and cuda.is_available() and cuda.detect()
    with cuda.gpus[0]:
        device = cuda.get_current_device()
    assert device.compute_capability == (9, 0) and device.WARP_SIZE == 32 and device.MAX_THREADS_PER_BLOCK == 1024
    assert device.TCC_DRIVER == 0 and cuda.select_device(0) is device and "warpwatch" in capsys.readouterr().out
    with pytest.raises(AttributeError, match="has no 'unknown'"):
        device.unknown  # noqa: B018
    with pytest.raises(IndexError):
        cuda.select_device(1)
    context = cuda.current_context()
    context.deallocations.clear()
    assert context.get_memory_info().free > 0
    with cuda.defer_cleanup(), context.deallocations.disable():
        cuda.synchronize()
    cuda.close()
    assert cuda.to_device(np.ones(1))[0] == 1


def test_streams_and_events():
    stream, begin, end = cuda.stream(), cuda.event(), cuda.event()
    begin.record(stream)
    d = cuda.to_device(np.ones(8), stream=stream)
    double[1, 8, stream](d)
    end.record(stream)
    with stream.auto_synchronize():
        assert d.copy_to_host(stream=stream).tolist() == [2] * 8
    assert begin.elapsed_time(end) == cuda.event_elapsed_time(begin, end) > 0
    assert int(cuda.external_stream(int(stream))) == int(stream) and cuda.default_stream()


def test_memory_is_given_back():
    held = len(cuda.current_context().allocations)
    d = cuda.device_array(1000)
    part = d[10:]
    assert len(cuda.current_context().allocations) == held + 1
    del d
    part.copy_to_host()
    del part
    assert len(cuda.current_context().allocations) == held


SIGNATURES = ["void(f8[:], f8)", "void(f8[::1], i4)", ["void(f4[:], f4)", "void(f8[:], f8)"]]


@pytest.mark.parametrize("signature", SIGNATURES, ids=str)
@pytest.mark.parametrize("step", [1, 2])
def test_signatures_are_compiled_late_and_cast(signature, step, watched):
    @cuda.jit(signature)
    def fill(x, value):
        x[cuda.grid(1)] = value

    assert not watched
    if step == 2 and "::1" in signature:
        return  # which takes what is contiguous only
    d = cuda.to_device(np.zeros(8))
    fill[1, 8 // step](d[::step], 3)
    assert d.copy_to_host()[::step].tolist() == [3.0] * (8 // step)


def test_the_nearest_signature_is_taken():
    @cuda.jit(["void(f8[:], i8)", "void(f8[:], f8)", "void(f8[:], c16)"])
    def fill(x, value):
        x[0] = abs(value + 0.5)

    x = np.zeros(1)
    for value in (np.int32(2), np.float32(2.25), np.complex64(3.5 + 3j), 2, 2.25):
        fill[1, 1](x, value)
        assert x[0] == abs(value + 0.5)
    several = cuda.jit(["void(f8[:], f4, f8)", "void(f8[:], f8, f4)"])(lambda x, a, b: None)
    with pytest.raises(TypeError, match="Ambiguous overloading for <lambda>"):
        several[1, 1](x, 1.0, 2.0)


def test_what_no_signature_takes_is_refused():
    @cuda.jit(["void(f4[:], f4)", "void(f8[:], f8)"])
    def fill(x, value):
        x[0] = value

    with pytest.raises(TypeError, match="no signature of fill takes"):
        fill[1, 1](np.zeros((2, 2)), 1)
    with pytest.raises(TypeError, match=r"fill takes 2 arguments \(x, value\), 1 came"):
        fill[1, 1](np.zeros(2))


@pytest.mark.parametrize("kind", ["c8", "c16"])
def test_complex_numbers(kind):
    @cuda.jit
    def turn(x, by):
        i = cuda.grid(1)
        x[i] = x[i] * by + by.conjugate()

    x = np.arange(4) * (1 + 2j)
    d, by = cuda.to_device(x.astype(kind)), np.dtype(kind).type(0.5 - 3j)
    turn[1, 4](d, by)
    np.testing.assert_allclose(d.copy_to_host(), x * by + np.conj(by), rtol=1e-6)


def test_records_dates_enumerations_and_tuples():
    from enum import Enum, IntEnum

    class Way(IntEnum):
        UP = 3

    class Side(Enum):
        LEFT, RIGHT = 1, 2

    @cuda.jit
    def take(one, many, when, since, pair, side, out):
        i = cuda.grid(1)
        if i == 0:
            one["b"] += 1
        many[i].a = pair[0][i] + pair[1]
        out[i] = Way.UP + (when > since) + (side == Side.RIGHT)

    many, days = np.rec.array(np.zeros(3, RECORD)), (np.datetime64("2026-06-02"), np.datetime64("2026-06-01"))
    many["b"] = 4
    one, out = many[1], np.zeros(3)
    take[1, 3](one, cuda.to_device(many), *days, (np.arange(3.0), 2.5), Side.RIGHT, out)
    assert out.tolist() == [5] * 3 and many["b"].tolist() == [4, 5, 4]
    d = cuda.to_device(many)
    take[1, 3](d[0], d, *days, (cuda.to_device(np.arange(3.0)), 2.5), Side.LEFT, out)
    back = d.copy_to_host()
    assert back["a"].tolist() == [2.5, 3.5, 4.5] and back["b"].tolist() == [5, 5, 4] and from_dtype(RECORD)


def test_memory_that_a_kernel_knows_by_its_address(watched):
    from numba.cuda.np.numpy_support import carray

    d, out = cuda.to_device(np.arange(4.0)), np.zeros(5)

    @cuda.jit
    def captured(out):
        out[cuda.grid(1)] = 2 * d[cuda.grid(1)]

    @cuda.jit("void(CPointer(float64))")
    def pointed(p):
        a = carray(p, (1,), cuda.float64)
        a[0] += 1

    captured[1, 4](out)
    pointed[1, 1](int(d.gpu_data.device_pointer))
    assert out.tolist() == [0, 2, 4, 6, 0] and d.copy_to_host().tolist() == [1, 1, 2, 3]
    with pytest.raises(AssertionError, match=r"out of bounds: .* reads an array of the device\[4\]"):
        captured[1, 5](out)


@pytest.mark.parametrize("start", [1, 4, 7])
def test_arrays_of_the_host_that_are_not_aligned_are_copied_to_and_fro(start):
    raw = np.zeros(80, "u1")
    x = np.ndarray(9, "f8", buffer=raw[start:])
    x[:] = np.arange(9)
    double[1, 32](x)
    assert not x.flags.aligned and x.tolist() == [2.0 * n for n in range(9)] and not raw[:start].any()
    y, out = np.ndarray(3, "f8", buffer=raw[start + 8 :]), np.zeros(1)  # which the same launch has, too
    cuda.jit(lambda x, y, out: sum_of(x, y, out))[1, 1](x, y, out)
    x.flags.writeable = False
    assert out[0] == x[1] + y[1]


@cuda.jit(device=True)
def sum_of(x, y, out):
    out[0] = x[1] + y[1]


def test_what_a_launch_may_not_have_is_refused():
    bounded = cuda.jit(launch_bounds=64)(lambda x: None)
    bounded[2, 64](np.zeros(1))
    with pytest.raises(ValueError, match="block has 65 threads 65; the kernel's launch_bounds allow 64"):
        bounded[2, 65](np.zeros(1))
    with pytest.raises(ValueError, match="is no address of the device"):
        array = type("Foreign", (), {"__cuda_array_interface__": {"shape": (2,), "typestr": "<f8", "data": (8, False)}})
        double[1, 2](array())


def test_memory_that_is_set_in_part_is_written_in_part():
    square = cuda.device_array((8, 8))
    assert np.isnan(square.copy_to_host()).all()
    square[:, 0] = 1.0
    double[1, 32](square[:1, 0])
    with pytest.raises(AssertionError, match="uninitialized: double"):
        double[1, 32](square[0])
    with pytest.raises(NotImplementedError, match="is set by numbers and slices"):
        square[[1, 2]] = 0.0
    d = cuda.device_array(8, np.uint8)
    d.gpu_data.memset(3, 4)
    double[1, 32](d[:4])
    assert d.copy_to_host()[:4].tolist() == [6] * 4
    with pytest.raises(AssertionError, match=r"uninitialized: double, .* thread 4 of block 0 reads x\[4\]"):
        double[1, 32](d)


def test_kernels_print_percent_signs(capsys):
    cuda.jit(lambda x: print("50% of", x))[1, 1](3)
    assert capsys.readouterr().out == "50% of 3\n"


def test_in_goes_in_and_out_comes_out(watched):
    @cuda.jit
    def move(x, y):
        i = cuda.grid(1)
        y[i], x[i] = x[i], -1

    x, y = np.arange(4.0), np.zeros(4)
    move[1, 4](cuda.In(x), cuda.Out(y))
    assert x.tolist() == y.tolist() == [0, 1, 2, 3]
    with pytest.raises(AssertionError, match="uninitialized: move"):
        move[1, 4](cuda.Out(x), cuda.InOut(y))


def test_ufuncs_and_reductions():
    @vectorize(["f4(f4, f4)", "f8(f8, f8)"], target="cuda")
    def hypotenuse(a, b):
        return (a * a + b * b) ** 0.5

    @guvectorize(["void(f8[:, :], f8[:], f8[:])"], "(m, n), (n) -> (m)", target="cuda")
    def times(A, x, y):
        for i in range(A.shape[0]):
            y[i] = 0
            for j in range(A.shape[1]):
                y[i] += A[i, j] * x[j]

    rng = np.random.default_rng(0)
    a, b, A = rng.random(50), rng.random(50), rng.random((6, 3, 4))
    np.testing.assert_allclose(hypotenuse(a, b), np.hypot(a, b))
    np.testing.assert_allclose(hypotenuse(cuda.to_device(a.astype("f4")), 1).copy_to_host(), np.hypot(a, 1), rtol=1e-6)
    np.testing.assert_allclose(times(A, b[:4]), A @ b[:4])
    np.testing.assert_allclose(hypotenuse.reduce(a), (a**2).sum() ** 0.5)
    add = cuda.reduce(lambda x, y: x + y)
    for size in (1, 31, 128, 1000):
        np.testing.assert_allclose(add(cuda.to_device(A.ravel().repeat(20)[:size])), A.ravel().repeat(20)[:size].sum())


def test_random_states():
    from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float64

    @cuda.jit
    def draw(states, out):
        i = cuda.grid(1)
        out[i] = xoroshiro128p_uniform_float64(states, i)

    states, out = create_xoroshiro128p_states(64, seed=1), np.zeros(64)
    draw[2, 32](states, out)
    first = out.copy()
    draw[2, 32](states, out)
    assert len({*first, *out}) == 128 and (0 <= first).all() and (first < 1).all()


SOURCE = """extern "C" __device__ void __assertfail(const char*, const char*, unsigned, const char*, size_t);
static __device__ int helper(int x) { if (x > 5) __assertfail("", "", 0, "", 1); return x + TERM; }
static __device__ int counts[4] = {TERM}, more[4];
extern "C" __device__ int NAME(int x) {
  return helper(x) + atomicAdd(&counts[x & 3], 1) + PLACE;
}
__global__ void kernel_of_its_own() {}"""


def test_kernels_are_linked_with_sources_and_ptx(tmp_path, watched):
    """Each has a function and variables of its own, of the same names as those of others."""
    texts = [SOURCE.replace("NAME", name).replace("TERM", term).replace("PLACE", place) for name, term, place in (
        ("first", "10", "0"), ("second", "200", "0"), ("third", "3000", "more[x]"))]  # fmt: skip
    (tmp_path / "first.cu").write_text(texts[0])
    (tmp_path / "second.ptx").write_bytes(cuda.cudadrv.nvrtc.compile(texts[1], "second", (9, 0))[0].code)
    first, second = (cuda.declare_device(name, "int32(int32)", abi="c") for name in ("first", "second"))
    third = cuda.declare_device("third", "int32(int32)", abi="c", link=cuda.CUSource(texts[2]))

    @cuda.jit(link=[str(tmp_path / "first.cu"), str(tmp_path / "second.ptx")])
    def linked(out):
        i = cuda.grid(1)
        out[i] = first(i) + second(i) + third(i)

    out = np.zeros(4, "i4")
    linked[1, 4](out)
    assert out.tolist() == [2 * 3210, 3213, 3216, 3219] and watched[-1].counters["atomics"] == 12
    with pytest.raises(AssertionError, match=r"bounds: linked, test_host.py, line \d+: thread 4 of block 0 .*more\[4]"):
        linked[1, 5](np.zeros(5, "i4"))
    with pytest.raises(AssertionError, match=r"trap: linked, first.cu, line 2: thread 6 of block 0 stops the launch"):
        linked[1, 7](np.zeros(7, "i4"))


@pytest.mark.parametrize("name, said", [("a.o", "a.o, Object; CUDA source and PTX"), ("a.cu", "does not compile"),
                                        ("a.ptx", "with a callback, which gets a module")])  # fmt: skip
def test_what_kernels_are_not_linked_with(tmp_path, name, said):
    (tmp_path / name).write_text("nonsense" * (name == "a.cu"))
    file = str(tmp_path / name) if name != "a.ptx" else cuda.PTXSource("", setup_callback=lambda module: None)

    @cuda.jit(link=[file])
    def linked(x):
        x[0] = 1

    with pytest.raises((TypeError, ValueError), match=said):
        linked[1, 1](np.zeros(1))


def test_halves_and_what_else_numba_links():
    @cuda.jit
    def scale(x, out, near):
        i = cuda.grid(1)
        out[i] = x[i] * np.float16(2.5) + x[x.size - 1 - i]
        near[i] = math.atanh(near.reshape((2, -1))[i // 32, i % 32]) + math.acosh(near[i] + np.float32(2))

    x, near = np.random.default_rng(0).standard_normal(64).astype("f2"), np.linspace(-0.9, 0.9, 64, dtype="f4")
    out, wanted = np.zeros(64, "f2"), np.arctanh(near) + np.arccosh(near + np.float32(2))
    scale[1, 64](x, out, near)
    np.testing.assert_array_equal(out, x * np.float16(2.5) + x[::-1])
    np.testing.assert_allclose(near, wanted, rtol=1e-5)


def test_no_gpu_is_there_before_and_after():
    assert current() and warpwatch.use_without_gpu().startswith("the CPU, from their PTX")
