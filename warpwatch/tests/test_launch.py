"""Reading PTX and launching it: what is refused, calls of device functions, memory of every kind."""

import ctypes
import signal
from unittest import mock

import numpy as np
import pytest
from helpers import beside

import warpwatch
from warpwatch.memory import owner_of

KERNEL, FUNCTIONS, CALL, MLIR, STRUCTURE, *_ = beside(__file__).values()
HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
N = 64


def kernel(body, before="", entry=KERNEL):
    return HEAD + before + entry.replace("BODY", body)


def run(body, before="", n=N, x=None, out=None, **more):
    x = np.arange(N, dtype="i4") if x is None else x
    out = np.full(N, -1, "i4") if out is None else out
    return out, warpwatch.run(kernel(body, before), 1, N, x, out, np.int32(n), **more)


def test_a_guarded_return_and_guarded_instructions():
    body = "ld.global.u32 %r3, [%rd1]; and.b32 %r4, %r3, 1; setp.eq.s32 %p2, %r4, 1; @!%p2 add.s32 %r3, %r3, 100;"
    out, report = run(body, n=40)
    wanted = np.where(np.arange(N) % 2, np.arange(N), np.arange(N) + 100)
    assert report.findings == [] and (out == np.where(np.arange(N) < 40, wanted, -1)).all()


def test_lanes_that_have_returned_are_idle():
    for n in range(0, N + 1, 8):
        counters = run("mov.u32 %r3, 1;", n=n)[1].counters
        # Five instructions of two warps, six of those that go on, and the return of others.
        issued, active = 2 * 5 + -(-n // 32) * 6 + (n < 32) + (n < 64), N * 5 + n * 6 + N - n
        assert counters["warp instructions"].total() == issued
        assert counters["active lanes"] == pytest.approx(active / (32 * issued))


def test_device_functions_are_read_in_where_they_are_called():
    out, report = run(CALL.replace("FUNCTION", "twice"), FUNCTIONS)
    x = np.arange(N)
    assert report.findings == [] and (out == 2 * np.where(x > 30, x + 7, x * x + x + 7)).all()
    again, _ = run(CALL.replace("FUNCTION", "twice") + CALL.replace("FUNCTION", "twice"), FUNCTIONS)
    assert (again == out).all()


CALLS = [("nobody", "not in the text"), ("square", "2 arguments and 1 results")]


@pytest.mark.parametrize("name,why", CALLS)
def test_calls_that_cannot_be(name, why):
    with pytest.raises(ValueError, match=rf"line \d+ of the PTX text: .*{why}"):
        run(CALL.replace("FUNCTION", name), FUNCTIONS)


def test_tables_and_variables():
    before = ".const .align 4 .b32 table[4] = {5, 0x10, -1, 7};\n"
    before += ".global .align 4 .f32 numbers[2] = {0f3F800000, 0f40000000};\n"
    body = """and.b32 %r4, %r1, 3; mul.wide.u32 %rd5, %r4, 4; mov.u64 %rd6, table; add.s64 %rd6, %rd6, %rd5;
ld.const.u32 %r3, [%rd6]; ld.global.f32 %f1, [numbers+4]; cvt.rzi.s32.f32 %r5, %f1; add.s32 %r3, %r3, %r5;"""
    out, report = run(body, before)
    assert report.findings == [] and (out[:4] == [7, 18, 1, 9]).all()


def test_local_memory_is_each_threads_own_and_begins_unwritten():
    body = """.local .align 8 .b8 depot[32]; mov.u64 %rd5, depot; cvta.local.u64 %rd6, %rd5;
st.local.u32 [%rd5+8], %r1; ld.u32 %r3, [%rd6+8]; ld.local.u32 %r4, [%rd5+4]; ld.local.u32 %r4, [%rd5+36];"""
    out, report = run(body)
    assert (out == np.arange(N)).all()
    assert [(f.kind, f.thread, f.place) for f in report.findings] == [("uninitialized", 0, 1), ("out of bounds", 0, 9)]
    assert report.findings[0].file == "" and "ld.local.u32 %r4, [%rd5+4]" in str(report.findings[0])


def test_line_0_is_none():
    lines = ".loc 1 7 0\nst.shared.u32 [table], %r1;\n.loc 1 0 0\nld.shared.u32 %r3, [table];"
    _, report = run(f".shared .b32 table[1];\n{lines}", '.file 1 "k.cu"\n')
    assert {(f.file, f.line) for f in report.findings} == {("k.cu", 7)}, "the compiler has merged lines there"


@pytest.mark.parametrize("op", ["add", "min", "max", "and", "or", "xor", "exch", "inc", "dec"])
def test_atomic_operations_in_shared_memory(op):
    x = np.full(N, 9, "i4") if op in ("inc", "dec") else (np.arange(N) * 37 % 101 - 50).astype("i4")
    kind = {"add": "s32", "min": "s32", "max": "s32", "inc": "u32", "dec": "u32"}.get(op, "b32")
    body = "ld.global.u32 %r5, [%rd1]; st.shared.u32 [place], 3; bar.sync 0;"
    body += f"atom.shared.{op}.{kind} %r3, [place], %r5; bar.sync 0; ld.shared.u32 %r3, [place];"
    out, report = run(body, ".shared .align 4 .b32 place;\n", x=x)
    state = 3
    for v in x.tolist():
        state = {"add": state + v, "min": min(state, v), "max": max(state, v), "and": state & v, "or": state | v,
                 "xor": state ^ v, "exch": v, "inc": 0 if state >= v else state + 1,
                 "dec": v if state == 0 or state > v else state - 1}[op]  # fmt: skip
    assert (out == state).all() and report.findings == [] and report.counters["atomics"] == N
    assert report.notes  # all wrote 3 to it


def test_a_lock_by_compare_and_swap():
    out, report = run("ld.param.u64 %rd8, [x]; atom.global.cas.b32 %r3, [%rd8], 0, %r1;", x=np.zeros(N, "i4"))
    assert report.findings == [] and (out == [0, 0, *[1] * (N - 2)]).all()


SHUFFLES = [("up", 3, 0), ("down", 5, 31), ("bfly", 9, 31), ("idx", 4, 31), ("up", 2, 0x1800), ("down", 3, 0x181F),
            ("idx", 11, 0x181F), ("bfly", 7, 0x181F)]  # fmt: skip


@pytest.mark.parametrize("mode,by,clamp", SHUFFLES)
def test_shuffles(mode, by, clamp):
    out, report = run(
        f"ld.global.u32 %r4, [%rd1]; shfl.sync.{mode}.b32 %r5|%p2, %r4, {by}, {clamp}, -1;"
        "selp.b32 %r6, 1000, 0, %p2; add.s32 %r3, %r5, %r6;"
    )
    wanted = []
    for t in range(N):  # as the manual's pseudo-code has it
        lane, segment, end = t % 32, clamp >> 8 & 31, clamp & 31
        last, first = lane & segment | end & ~segment, lane & segment
        j = {"up": lane - by, "down": lane + by, "bfly": lane ^ by, "idx": first | by & ~segment}[mode]
        ok = j >= last if mode == "up" else j <= last
        wanted.append((t - lane + j if ok else t) + 1000 * ok)
    assert report.findings == [] and (out == wanted).all()


def test_arrays_that_may_only_be_read_and_arrays_that_share_memory():
    base = np.arange(2 * N, dtype="i4")
    fixed = base[N:]
    fixed.flags.writeable = False
    _, report = run("mov.u32 %r3, 1;", out=fixed)
    assert [(f.kind, f.array, f.count) for f in report.findings] == [("read-only", "argument 1", N)] and base[N] == N
    _, report = run("ld.global.u32 %r3, [%rd1];", x=base[:N], out=base[1 : N + 1])
    assert report.findings[0].kind == "race" and report.findings[0].array == "argument 0 and argument 1"


def test_an_index_never_leads_to_another_array():
    for by in (4 * N, 4000, 1 << 20, -4, -(1 << 20)):
        _, report = run(f"ld.global.u32 %r3, [%rd1+{by}];")
        assert {(f.kind, f.array) for f in report.findings} == {("out of bounds", "argument 0")}


@pytest.mark.parametrize("count", range(5, 9))
def test_numbers_read_together_must_all_be_there(count):
    body = "setp.ne.u32 %p2, %r1, 4; @%p2 ret; ld.global.v4.u32 {%r3, %r4, %r5, %r6}, [%rd1];"
    found = run(body, x=np.zeros(count, "i4"))[1].findings
    assert [(each.kind, each.thread, each.place) for each in found] == [("out of bounds", 4, 4)] * (count < 8)


def test_texts_that_are_cut_off_are_refused():
    whole = kernel(CALL.replace("FUNCTION", "twice"), FUNCTIONS + ".const .align 4 .b32 table[4] = {5, 6, 7, 8};\n")
    end = whole.rindex("}")
    for cut in range(0, end, 7):
        with pytest.raises(ValueError, match="PTX"):
            warpwatch.run(whole[:cut] + "\n", 1, 1, np.zeros(1, "i4"), np.zeros(1, "i4"), np.int32(1))
    changes = {"%r3, [q+0]": "%q3, [q+0]", "bra big": "bra nowhere", ".reg .pred": ".reg .prod", ".version": ".wersion"}
    for good, bad in changes.items():
        with pytest.raises(ValueError, match="PTX"):
            warpwatch.run(whole.replace(good, bad), 1, 1, np.zeros(1, "i4"), np.zeros(1, "i4"), np.int32(1))


def test_arrays_as_numba_cuda_mlir_passes_them():
    """Out of its compiler's order: pointer, pointer, offset, shape, and strides in elements."""
    text = HEAD + MLIR.replace("PARAMETERS", ", ".join(f".param .u64 p{n}" for n in range(12)))
    x, out = np.arange(48, dtype="i4").reshape(4, 12)[::2, ::-2], np.full(12, -1, "i4")
    assert warpwatch.run(text, 1, 12, x, out).findings == [] and (out == x.ravel()).all()
    (found,) = warpwatch.run(text, 1, 12, x, out[:7]).findings
    assert (found.kind, found.array, found.place, found.count) == ("out of bounds", "argument 1", 7, 5)
    packed = np.zeros((2, 6), np.dtype([("a", "i4"), ("b", "i1")]))["a"]
    for wrong, said in ((x[0], r"12 parameters; 2 arguments came, which would be 10 \(numba-cuda-mlir\)$"),
                        (packed, r"argument 0 has strides of \(30, 5\) bytes, and elements of 4")):  # fmt: skip
        with pytest.raises(TypeError, match=said):
            warpwatch.run(text, 1, 12, wrong, out)
    numba = text.replace("__numba_cuda_mlir_error_code", "_ZN08NumbaEnv")
    with pytest.raises(TypeError, match=r"which would be 16 \(numba-cuda\)$"):
        warpwatch.run(numba, 1, 12, x, out)


def test_structures_with_pointers():
    x, y = np.arange(8.0), np.zeros(8)
    for given in ((x, 7, y, 2.5, np.float32(1)), (x, 7, (y, 2.5, np.float32(1)))):
        assert warpwatch.run(HEAD + STRUCTURE, 1, 8, given, 3).findings == []
        assert y.tolist() == [2.5 * n + 1 for n in range(7)] + [0]
    (found,) = warpwatch.run(HEAD + STRUCTURE, 1, 8, (x[:4], 7, y, 2.5, np.float32(1)), 3).findings
    assert (found.kind, found.array, found.place, found.count) == ("out of bounds", "argument 0[0]", 4, 3)
    packed = np.zeros(65, "u1")[1:].view("f8")  # which is copied there and back
    assert warpwatch.run(HEAD + STRUCTURE, 1, 8, (x, 7, packed, 1.0, np.float32(0)), 3).findings == []
    assert packed.tolist() == [0, 1, 2, 3, 4, 5, 6, 0]
    for wrong, said in beside(__file__)["structures"]:
        with pytest.raises((TypeError, ValueError), match=said):
            warpwatch.run(HEAD + STRUCTURE, 1, 8, eval(wrong, {"np": np, "x": x}), 3)


NUMBERS = {int: ctypes.c_int32, float: ctypes.c_double, bool: ctypes.c_bool, np.int8: ctypes.c_int8,
           np.uint16: ctypes.c_uint16, np.int64: ctypes.c_int64, np.float32: ctypes.c_float}  # fmt: skip


def drawn(rng, depth=0):
    """A tuple of numbers and tuples, and the same as a structure of C."""
    made = []
    for _ in range(rng.integers(1, 6)):
        kind, number = list(NUMBERS)[rng.integers(len(NUMBERS))], int(rng.integers(99))
        inner = depth < 2 and rng.random() < 0.3
        made.append((*drawn(rng, depth + 1), None) if inner else (kind(number), number, NUMBERS[kind]))
    fields = [(f"f{n}", kind or type(theirs)) for n, (_, theirs, kind) in enumerate(made)]
    structure = type("Made", (ctypes.Structure,), {"_fields_": fields})
    return tuple(ours for ours, _, _ in made), structure(*(theirs for _, theirs, _ in made))


@pytest.mark.parametrize("seed", range(20))
def test_structures_are_laid_out_as_in_c(seed):
    value, wanted = drawn(np.random.default_rng(seed))
    out = np.full(ctypes.sizeof(wanted), 255, "u1")
    body = "".join(f"ld.param.u8 %r1, [s+{n}]; st.global.u8 [%rd1+{n}], %r1;\n" for n in range(len(out)))
    text = ".visible .entry k(.param .align 8 .b8 s[SIZE], .param .u64 out) { .reg .b32 %r1; .reg .b64 %rd1;\n"
    text = HEAD + text.replace("SIZE", str(len(out))) + "ld.param.u64 %rd1, [out];\n" + body + "ret; }"
    assert warpwatch.run(text, 1, 1, value, out).findings == [] and out.tobytes() == bytes(wanted)


@pytest.fixture
def foreground():
    """Ctrl-C as a program finds it that a shell starts in the foreground: in the background, it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_ends_a_launch(foreground):
    """A kernel without end, and a signal meanwhile, from its own loads."""
    fresh, steps = warpwatch.empty(1, "i4"), []
    text = kernel("again: st.global.u32 [%rd2], 1; ld.global.u32 %r3, [%rd2]; bra again;")

    def interrupt(*_):
        steps.append(1)
        return signal.raise_signal(signal.SIGINT) if len(steps) == 20 else None

    with pytest.raises(KeyboardInterrupt), mock.patch("warpwatch.memory.Space.check_written", interrupt):
        warpwatch.run(text, 1, 1, fresh, fresh, np.int32(1))
    assert fresh[0] == 1 and owner_of(fresh).written.all()  # what was written counts as written


def test_wrong_arguments_are_refused(tmp_path):
    x, text = np.zeros(N, "i4"), kernel("mov.u32 %r3, 1;")
    for arguments, error in beside(__file__)["arguments"]:
        with pytest.raises((TypeError, ValueError), match=error):
            warpwatch.run(text, 1, N, *eval(arguments, {"np": np, "x": x}))
    for wrong, error in beside(__file__)["others"]:
        given = {"kernel": text, "grid": 1, "block": N, "shared": 0, "entry": None} | eval(f"dict({wrong})")
        launch = given.pop("kernel"), given.pop("grid"), given.pop("block"), x, x, 1
        with pytest.raises((TypeError, ValueError), match=error):
            warpwatch.run(*launch, **given)
    path = tmp_path / "k.ptx"
    path.write_text(text)
    assert warpwatch.run(path, 1, N, x, x, np.int32(N)).findings == [] and (x == 1).all()
    x = np.zeros(1024, "i4")
    assert warpwatch.run(path, 1, (1, 1, 64), x, x, 1).findings == warpwatch.run(path, 1, 1024, x, x, -1).findings == []
    path.write_bytes(bytes([0xFF, 0xFE, 0]))
    with pytest.raises(ValueError, match="neither PTX nor the path of a file of text"):
        warpwatch.run(str(path), 1, N, x, x, 1)


def test_host_arrays_that_are_not_aligned_are_copied_as_for_a_gpu():
    x, out = (np.zeros(4 * N + 1, "u1")[1:].view("i4") for _ in range(2))
    x[:] = np.arange(N)
    _, report = run("ld.global.u32 %r3, [%rd1];", x=x, out=out)
    assert report.findings == [] and (out == x).all()


def test_an_empty_part_of_an_array_hides_nothing():
    x = np.arange(N, dtype="i4")
    text = kernel("ld.global.u32 %r3, [%rd1];").replace("u64 out,", "u64 out, .param .u64 more,")
    assert warpwatch.run(text, 1, N, x, np.zeros(N, "i4"), x[:0], np.int32(N)).findings == []


def test_arrays_that_share_memory_without_a_common_array_are_one():
    x = np.arange(N + 8, dtype="i4")
    _, report = run("ld.global.u32 %r3, [%rd1];", x=x[:N], out=np.frombuffer(memoryview(x)[8:], "i4"))
    assert [(each.kind, each.array) for each in report.findings] == [("race", "argument 0 and argument 1")]
    _, report = run("ld.global.u32 %r3, [%rd1];", x=x[:N], out=np.frombuffer(bytearray(x), "i4"))
    assert report.findings == []  # of memory of their own


def test_shared_memory_is_checked_at_both_ends():
    before = ".shared .align 4 .b8 _cudapy_smem_1[16];\n.shared .align 4 .b8 _cudapy_smem_2[16];\n"
    first = "mov.u64 %rd8, _cudapy_smem_1; mov.u32 %r3, 1; st.shared.u32 [%rd8+-8], %r1;"
    _, report = run(first + "ld.shared.u32 %r3, [_cudapy_smem_2+16];", before)
    found = [(f.kind, f.array, f.place, f.count) for f in report.findings]
    assert found == [("out of bounds", "shared array 1", -2, N), ("out of bounds", "shared array 2", 4, N)]
    _, report = run("ld.shared.u32 %r3, [_cudapy_smem_1+160]; ld.shared.u32 %r3, [_cudapy_smem_2+-4];", before)
    assert [(f.array, f.place) for f in report.findings] == [("shared array 1", 40), ("shared array 2", -1)]
    _, report = run("ld.shared.u32 %r3, [_cudapy_smem_1+-4];", before.splitlines()[0], shared=1024)
    assert [(f.array, f.place) for f in report.findings] == [("shared array", -1)]
