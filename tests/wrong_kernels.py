"""Bodies of answers to the puzzles about kernels: wrong ones, with what is said of each, and right ones."""

import inspect
import linecache
import textwrap

import numpy as np
from numba import cuda, float32, float64

from bppsa_nb import ptx
from bppsa_nb.puzzles import kernels, warps
from bppsa_nb.puzzles.kernels import H, left_of, right_of


@cuda.jit(device=True)
def dot(row, m, j):
    """What answers call, here and below."""
    total = 0.0
    for k in range(row.shape[0]):
        total += row[k] * m[k, j]
    return total


@cuda.jit(device=True)
def swap(v, l, r, i, new):
    v[l, i] = v[r, i]
    v[r, i] = new


@cuda.jit(device=True)
def product(right, left, i, j):
    entry = dot(right[i], left, j)
    cuda.syncthreads()
    right[i, j] = entry


@cuda.jit(device=True)
def add(where, x):
    cuda.atomic.add(where, 0, x)


@cuda.jit(device=True)
def slope(h):
    return 1 - h * h


@cuda.jit(device=True)
def tree(x):
    for k in (16, 8, 4, 2, 1):
        x += cuda.shfl_down_sync(0xFFFFFFFF, x, k)
    return x


TABLE = np.arange(32)
USED = {"np": np, "cuda": cuda, "float32": float32, "float64": float64, "ptx": ptx, "suspect": warps.suspect}
USED |= {"H": H, "left_of": left_of, "right_of": right_of, "dot": dot, "swap": swap, "add": add,
         "product": product, "slope": slope, "tree": tree, "TABLE": TABLE}


def answer(name, body):
    """Make an answer of a body, as a cell of a notebook has it."""
    solution = kernels.PUZZLES[name].solution
    head = inspect.getsource(getattr(solution, "py_func", solution)).partition(":\n")[0]
    return cell(name, f"{head}:\n{ind(body)}\n", dict(USED))


def cell(name, source, names, path="/folder/ipykernel_1/23.py"):
    """Run source as a cell of a notebook, and return what it makes."""
    exec(compile(source, path, "exec"), names)
    linecache.cache[path] = len(source), None, source.splitlines(True), path
    return names[name]


def ind(text, levels=1):
    """Indent."""
    return textwrap.indent(text, "    " * levels)


# Parts of bodies. Of kernels of the way up, and of a batch:
SYNC = "cuda.syncthreads()\n"
LR = "l, r = left_of(pair, d), right_of(pair, d, mats.shape[0] - 1)\n"
IJ = "pair, i, j = cuda.blockIdx.x, cuda.threadIdx.x, cuda.threadIdx.y\n"
U = IJ + LR
SUM = "entry = 0.0\nfor k in range(H):\n    entry += mats[r, i, k] * mats[l, k, j]\n"
ALL = f"for i in range(H):\n    for j in range(H):\n{ind(SUM, 2)}        own[i, j] = entry\n"
PUT = "for i in range(H):\n    for j in range(H):\n        mats[r, i, j] = own[i, j]\n"
LOCAL, SHARED = (f"own = cuda.{space}.array((H, H), float64)\n" for space in ("local", "shared"))
BU = f"pair, b, i, j = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x, cuda.threadIdx.y\n{LR}"


def bat(text):
    """Do it for a sample."""
    return text.replace("mats[r, ", "mats[r, b, ").replace("mats[l, ", "mats[l, b, ")


BS = bat(SUM)
# Of the way down:
D = f"pair, i = cuda.blockIdx.x, cuda.threadIdx.x\n{LR}"
FIRST = "if pair == 0:\n    vecs[r, i] = mats[l, i, 0]\nelse:\n"
DS = "entry = 0.0\nfor k in range(H):\n    entry += mats[l, i, k] * vecs[r, k]\n"
SW = "vecs[l, i], vecs[r, i] = vecs[r, i], entry\n"
DF = "if pair == 0:\n    for i in range(H):\n        vecs[r, i] = mats[l, i, 0]\nelse:\n"
DALL = (
    f"own = cuda.local.array(H, float64)\nfor i in range(H):\n{ind(DS)}    own[i] = entry\n"
    "for i in range(H):\n    vecs[l, i], vecs[r, i] = vecs[r, i], own[i]\n"
)
# Of races:
T, A = "t = cuda.threadIdx.x\n", "total[0] += values[cuda.threadIdx.x]"
B = "cuda.atomic.add(total, 0, values[cuda.threadIdx.x])"
TURN = T + "for n in range(32):\n    if t == n:\n        total[0] += values[t]\n    cuda.syncthreads()"


def race(one, two):
    """Return two kernels."""
    heads = (f"@cuda.jit\ndef {name}(values, total):\n" for name in ("racing", "orderly"))
    return f"{next(heads)}{ind(one)}\n{next(heads)}{ind(two)}\nreturn racing, orderly"


# Of slopes:
G = "grads[t, i] *= 1 - hidden[t, i] ** 2"


def loops(g, first="i, first = cuda.threadIdx.x, 32 * cuda.blockIdx.x\n", rng="range(first, first + 32)", var="t"):
    """Go through rows, or columns."""
    return f"{first}for {var} in {rng}:\n    {g}"


# Of tiles:
P = "x, y = cuda.threadIdx.x, cuda.threadIdx.y\ni, j = 32 * cuda.blockIdx.x, 32 * cuda.blockIdx.y\n"
RD, WR = "tile[y, x] = matrix[i + y, j + x]\n", "out[j + y, i + x] = tile[x, y]"


def tile(n, m=32, ty="float32"):
    """Make room for one."""
    return f"tile = cuda.shared.array(({m}, {n}), {ty})\n"


# Of sums of warps:
WS, ST = "b, t = cuda.blockIdx.x, cuda.threadIdx.x\nx = values[b, t]\n", "if t == 0:\n    total[b] = x"


def sh(k, kind="down", m="0xFFFFFFFF"):
    """Add what another thread has."""
    return f"x += cuda.shfl_{kind}_sync({m}, x, {k})\n"


def shs(*ks, **how):
    """Add what several others have."""
    return "".join(sh(k, **how) for k in ks)


FIVE = shs(16, 8, 4, 2, 1)
# What is said of wrong answers.
SAID = {
    "up_level": [
        (U + SUM + "cuda.syncwarp(1)\nmats[r, i, j] = entry", "waits for others with a mask, 0x1, that leaves out"),
        (U + LOCAL + "if i == 0 and j == 0:\n" + ind(ALL + PUT),
         "thread (0, 0) of block 0 stores 9 numbers, where 1 for each of"),
        (U + LOCAL + "if i + j == 0:\n" + ind(ALL + PUT),
         "thread (0, 0) of block 0 stores 9 numbers, where 1 for each of"),
        (U + SHARED + "t = i + H * j\nif t == 0:\n" + ind(ALL) + SYNC + "mats[r, t % H, t // H] = own[t % H, "
         "t // H]", "thread (0, 0) of block 0 makes 27 of the block's 27"),
        (U + SHARED + "if j == 0:\n    for n in range(H):\n        own[i, n] = 0.0\n        for k in range(H):\n"
         "            own[i, n] += mats[r, i, k] * mats[l, k, n]\n" + SYNC + "mats[r, i, j] = own[i, j]",
         "block 0 makes 9 of the block's 27 multiplications, where 3 for each of its 9 threads are enough; each makes"),
        (U + LOCAL + ALL + SYNC + PUT, "thread (0, 0) of block 0 stores 9 numbers, where 1 for each of"),
        ("i, j = cuda.threadIdx.x, cuda.threadIdx.y\nif cuda.blockIdx.x == 0:\n"
         "    for pair in range(cuda.gridDim.x):\n" + ind("l, r = left_of(pair, d), right_of(pair, d, "
         "mats.shape[0] - 1)\n" + SUM + SYNC + "mats[r, i, j] = entry", 2),
         "block 0 stores several of the products, while others wait; each"),
        ("i, j = cuda.threadIdx.x, cuda.threadIdx.y\nfor pair in range(cuda.gridDim.x):\n" + ind(LR + SUM + SYNC +
         "mats[r, i, j] = entry"), "line 10 of yours: thread (0, 0) of block 0 writes mats[1, 0,"),
        (LOCAL + "for pair in range(cuda.gridDim.x):\n" + ind(LR + ALL + PUT),
         "line 14 of yours: thread (0, 0) of block 0 writes mats[1, 0,"),
        (U + SUM + "mats[r, i, j] = entry", "line 8 of yours: thread (0, 0) of block 0 writes mats[1, 0, 0],"),
        (U + SUM + "mats[r, i, j] = entry\n" + SYNC, "line 8 of yours: thread (0, 0) of block 0 writes mats[1, 0, 0],"),
        (U + "for k in range(H):\n    entry = mats[r, i, k] * mats[l, k, j]\n" + SYNC + "mats[r, i, j] = entry",
         "a list of 8, level 1 (d = 0), place 1: numbers that no letters"),
        (U + SUM + SYNC + "mats[r, j, i] = entry", "place 1: 'c' should be 'ab': it is transposed; entry [i, j] bel"),
        (U + SUM + SYNC + "mats[l, i, j] = entry", "a list of 8, level 1 (d = 0), place 0: 'ab' should be 'a': 'b'"),
        (U + SUM + SYNC + "mats[l, i, j] = mats[r, i, j] = entry",
         "a list of 8, level 1 (d = 0), place 0: 'ab' should be 'a': 'b'"),
        ("i, j = cuda.grid(2)\npair = cuda.blockIdx.x\n" + LR + SUM + SYNC + "mats[r, i, j] = entry",
         "line 8 of yours: thread (0, 0) of block 3 reads mats[10, 0, 0],"),
        ("pair = cuda.grid(1)\ni, j = cuda.threadIdx.x, cuda.threadIdx.y\n" + LR + SUM + SYNC + "mats[r, i, "
         "j] = entry", "line 8 of yours: thread (1, 0) of block 1 reads mats[8, 0, 0],"),
        (U + SUM + SYNC, "a list of 8, level 1 (d = 0), place 1: 'b' should be 'ab': 'a'"),
        ("pass", "a list of 8, level 1 (d = 0), place 1: 'b' should be 'ab': 'a'"),
        (U + SUM + SYNC + "mats[r, i, j] = float32(entry)",
         "words come out right, but of numbers mats is right in its first"),
        (IJ + "l, r = 2 * pair, 2 * pair + 1\n" + SUM + SYNC + "mats[r, i, j] = entry",
         "a list of 8, level 2 (d = 1), place 1: 'aab' should be 'ab'."),
        (U + SUM + "while mats[r, 0, 0] != 0:\n    pass\nmats[r, i, j] = entry",
         "line 8 of yours: thread (0, 0) of block 0 still runs after"),
        (U + "product = mats[r] @ mats[l]\n" + SYNC + "mats[r, i, j] = product[i, j]",
         "it does not compile: there is no matmul(array(float64, 2d, C),"),
        (U + "entry = np.dot(mats[r, i], mats[l, j])\n" + SYNC + "mats[r, i, j] = entry",
         "it does not compile: there is no dot(array(float64, 1d, C),"),
        (U + SUM + SYNC + "mats[r, i, j] = entry\nreturn mats",
         "it does not compile: TypeError: CUDA kernel must have void"),
        (U + SUM + "cuda.syncthread()\nmats[r, i, j] = entry",
         "it does not compile: AttributeError: module 'numba.cuda' has no"),
        (U + SUM + "syncthreads()\nmats[r, i, j] = entry", "it does not compile: NameError: name 'syncthreads' is not"),
        (U + SUM + SYNC + "mats[r, i] = entry", "line 9 of yours: thread (0, 0) of block 0 writes mats[1, 0, 0],"),
    ],
    "down_level": [
        (D + "if i == 0:\n" + ind(DF + ind(DALL)), "thread 0 of block 0 stores 3 numbers, where 1 for each of its 3"),
        (D + "if i:\n    return\n" + DF + ind(DALL), "thread 0 of block 0 stores 3 numbers, where 1 for each of its 3"),
        (D + DF + ind(DALL), "line 16 of yours: thread 0 of block 1 writes vecs[7, 0], which"),
        (D + FIRST + ind(DS + SYNC + "if i == 0:\n    for k in range(H):\n        vecs[l, k] = vecs[r, k]\n" + SYNC +
         "vecs[r, i] = entry"), "thread 0 of block 1 stores 4 numbers, where 2 for each of its 3"),
        (D + "new = cuda.shared.array(H, float64)\n" + FIRST + ind("if i == 0:\n    for n in range(H):\n"
         "        new[n] = 0.0\n        for k in range(H):\n            new[n] += mats[l, n, k] * vecs[r, k]\n" +
         SYNC + "vecs[l, i], vecs[r, i] = vecs[r, i], new[i]"),
         "thread 0 of block 1 makes 9 of the block's 9 multiplications,"),
        ("i = cuda.threadIdx.x\nif cuda.blockIdx.x == 0:\n    for pair in range(cuda.gridDim.x):\n" + ind(LR + FIRST +
         ind(DS + SYNC + SW), 2), "block 0 stores several of the pairs' vectors, while others"),
        ("i = cuda.threadIdx.x\nfor pair in range(cuda.gridDim.x):\n" + ind(LR + FIRST + ind(DS + SYNC + SW)),
         "line 13 of yours: thread 0 of block 0 writes vecs[7, 0], which"),
        (D + FIRST + ind(DS + SW), "line 11 of yours: thread 0 of block 1 writes vecs[7, 0], which"),
        (D + FIRST + ind(DS + "for k in range(i):\n    cuda.syncthreads()\n" + SW),
         "line 12 of yours: thread 1 of block 1 waits at a barrier with 2"),
        (D + FIRST + ind(DS + SYNC + "vecs[l, i] = vecs[r, i]"),
         "a list of 8, level 2 (d = 1), place 7: 'abcd' should be"),
        (D + FIRST + ind(DS + SYNC + "vecs[r, i] = entry\nvecs[l, i] = vecs[r, i]"),
         "a list of 8, level 2 (d = 1), place 5: 'abcdef' should be"),
        (D + FIRST + ind(DS.replace("vecs[r", "vecs[l") + SYNC + SW),
         "a list of 8, level 2 (d = 1), place 7: the identity should be"),
        (D + FIRST.replace("pair == 0", "i == 0") + ind(DS + SYNC + SW),
         "line 11 of yours: thread 1 of block 0 waits at a barrier with 2"),
        (D + FIRST + ind(DS + SYNC + SW + "mats[l, i, 0] = 0.0"), "it changes mats"),
        (D + FIRST + ind(DS + SYNC + SW + "mats[l, i, 0] += 0.0"), "it changes mats"),
        (D + FIRST + ind(DS.replace("0.0\n", "float32(0.0)\n").replace("mats[l, i, k] * vecs[r, k]", "float32(mats[l, "
         "i, k] * vecs[r, k])") + SYNC + SW), "words come out right, but of numbers vecs is right in its first"),
        (D + FIRST + ind("entry = mats[l, i, i] * vecs[r, i]\n" + SYNC + SW),
         "a list of 8, level 2 (d = 1), place 7: numbers that no letters"),
        (D + FIRST + ind(DS.replace("range(H)", "range(H + 1)") + SYNC + SW),
         "line 10 of yours: thread 0 of block 1 reads vecs[8, 0], which"),
    ],
    "up_level_of_batch": [
        (BU + LOCAL + "if i == 0 and j == 0:\n" + bat(ind(ALL + PUT)),
         "thread (0, 0) of block (0, 0) stores 9 numbers, where 1 for"),
        (BU + LOCAL + bat(ALL + SYNC + PUT), "thread (0, 0) of block (0, 0) stores 9 numbers, where 1 for"),
        (IJ + LR + "if cuda.blockIdx.y == 0:\n    for b in range(mats.shape[1]):\n" + ind(BS + SYNC + "mats[r, b, i, "
         "j] = entry", 2), "block (0, 0) stores several of the products, while others wait;"),
        (IJ + LR + "for b in range(mats.shape[1]):\n" + ind(BS + SYNC + "mats[r, b, i, j] = entry"),
         "line 10 of yours: thread (0, 0) of block (0, 0) writes mats[1,"),
        ("b, pair, i, j = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x, cuda.threadIdx.y\n" + LR + BS + SYNC +
         "mats[r, b, i, j] = entry", "line 9 of yours: thread (0, 0) of block (0, 0) writes mats[1,"),
        (BU + BS + "mats[r, b, i, j] = entry", "line 8 of yours: thread (0, 0) of block (0, 0) writes mats[1,"),
        (BU + SUM + SYNC + "mats[r, i, j] = entry", "it does not compile: there is no iadd(float64, array(float64,"),
        (BU + BS.replace("l, b, k, j", "l, b, j, k") + SYNC + "mats[r, b, i, j] = entry",
         "a batch of two lists of 4, sample 0, level 1 (d = 0), place 1:"),
        (BU + BS + SYNC + "mats[r, b, j, i] = entry", "a batch of two lists of 4, sample 0, level 1 (d = 0), place 1:"),
        (BU + "if b >= 2:\n    return\n" + BS + SYNC + "mats[r, b, i, j] = entry",
         "words come out right, but of numbers mats[1, 2, 0, 0] is"),
    ],
    "detective": [
        ("return 6, 1, 6", "threads 4 to 7 write before the barrier, and never behind it"),
        ("return 0, 2, 0", "thread 0 writes it, but nobody else ever reads it"),
        ("return 0, 2, 2", "it is the other way round"),
        ("return 0, 0, 0", "a thread goes through its own lines in order, and meets nobody"),
        ("return 1, 0, 2", "a thread writes at its own place, and thread 1 only sums[1]"),
        ("return 2, 0, 1", "a thread writes at its own place, and thread 2 only sums[2]"),
        ("return 2, 1, 2", "thread 1 never reads sums[2] behind the barrier"),
        ("return 4, 0, 4", "sums[4] is written before the barrier, and read behind it"),
        ("return 5, 1, 5", "sums[5] is written before the barrier, and read behind it"),
        ("return 0, 1, 1", "it is the other way round"), ("return 8, 0, 8", "threads and places are 0 to 7"),
        ("return -1, 0, 0", "threads and places are 0 to 7"),
        ("return '202'", "it returned '202' and should return three whole numbers:"),
        ("return None", "it returned None (is a return missing?) and should return three"),
        ("return 2, 0", "it returned (2, 0) and should return three whole numbers:"),
        ("return 2.0, 0.0, 2.0", "it returned (2.0, 0.0, 2.0) and should return three whole"),
        ("return {2, 0}", "it returned {0, 2} and should return three whole numbers:"),
        ("return [[2, 0, 2]]", "it returned [[2, 0, 2]] and should return three whole numbers:"),
        ("yield 2, 0, 2", "it returned a generator, since it has a yield, and should"),
        ("return ptx.run(suspect, 1, 8, np.ones(8))", "it returned Report(kernel suspect: 2 findings) and should"),
        ('raise ValueError("what?")', "ValueError on line 2 of yours: what?"),
        ("return suspect", "it returned CUDADispatcher(<function suspect at"),
    ],
    "race": [
        (race("total[0] = 0.0", "total[0] = 0.0"), "the first has no race: threads write the same value, so nobody"),
        (race("total[0] = 1.0", B), "the first has no race: threads write the same value, so nobody"),
        (race(A, A), "the second has something wrong, too: line 3 of yours: thread 0"),
        (race(B, B), "the first has no race: let each thread read and write total[0]"),
        (race(B, A), "the first has no race, and the second has one: line 3 of yours:"),
        (race("pass", B), "the first has no race: let each thread read and write total[0]"),
        (race(T + "total[t] = values[t]", B), "the first should have a race, and nothing else: line 4 of"),
        (race(T + "total[0] += values[t + 1]", B), "the first should have a race, and nothing else: line 4 of"),
        (race(T + "values[0] = t", B), "it changes values"),
        (race(T + "values[t] += 1.0\n" + A, B), "it changes values"),
        (race(T + "if t < 16:\n    cuda.syncthreads()\ntotal[0] += values[t]", B),
         "the first should have a race, and nothing else: line 5 of"),
        (race(A, T + "if t == 0:\n    for n in range(32):\n        total[0] += values[n]"),
         "the second is right, but only 1 of 32 threads store into total:"),
        (race(A, T + "total[0] = values[t]"), "the second has something wrong, too: line 4 of yours: thread 0"),
        (race(A, "total[0] = 496.0"), "in the second, total[0] is 496.0000 and should be -4.8634"),
        (race(A, "total[0] = 0.0"), "in the second, total: nothing has come there"),
        (race(A, "pass"), "in the second, total: nothing has come there"),
        (race(A, "cuda.atomic.add(total, 0, 1.0)"), "in the second, total[0] is 32.0000 and should be -4.8634"),
        (race(A, T + "if t < 31:\n    cuda.atomic.add(total, 0, values[t])"),
         "in the second, total: the last value is missing"),
        (race(A, T + "cuda.atomic.add(total, 0, values[t])\ncuda.atomic.add(total, 0, values[t])"),
         "in the second, total: everything is in it twice"),
        (race(A, T + "for n in range(32):\n    if t == n:\n        total[0] += values[t]"),
         "the second has something wrong, too: line 6 of yours: thread 1"),
        (race(A, T + "while True:\n    pass"), "the second has something wrong, too: line 4 of yours: thread 0"),
        (race(A, T + "x = values[t]\nk = 16\nwhile k:\n    x += cuda.shfl_down_sync(0xFFFFFFFF, x, k)\n    k //= 2\n"
         "total[0] = x"), "the second has something wrong, too: line 9 of yours: thread 0"),
        (race(A, "total[0] += valuess[0]"), "it does not compile: NameError: name 'valuess' is not defined"),
        ("return 1, 2", "1 is a function and no kernel; write @cuda.jit above it"),
        ("return None", "it returned None (is a return missing?) and should return two"),
        ("pass", "it returned None (is a return missing?) and should return two"),
        (race(A, B).replace("return racing, orderly", "return racing"),
         "it returned CUDADispatcher(<function race.<locals>.racing at"),
        (race(A, B).replace("return racing, orderly", "return racing, orderly, racing"),
         "it returned (CUDADispatcher(<function race.<locals>.racing at"),
        (race(A, B).replace("return racing, orderly", "return [racing(np.ones(32), np.zeros(1)), orderly]"),
         "ValueError on line 8 of yours: "),
        (race(A, B).replace("@cuda.jit\n", "", 1), "'racing' is a function and no kernel; write @cuda.jit above it"),
        (race(A, B).replace("orderly(values, total)", "orderly(values)"),
         "TypeError: kernel orderly takes 1 arguments (values), 2 came"),
        (race(A, B).replace("racing(values, total)", "racing(total, values)"), "it changes total"),
    ],
    "coalesced": [
        (loops(G, "t = 32 * cuda.blockIdx.x + cuda.threadIdx.x\n", "range(32)", "i"),
         "a warp asks global memory for 32 sectors at a time, where 8 are"),
        (loops(G, rng="range(32)"), "line 5 of yours: thread 0 of block 0 writes grads[0, 0], which"),
        (loops(G, rng="range(first, first + 31)"), "grads[31, 0] and 63 more: it is as it was"),
        (loops(G, rng="range(first + 1, first + 32)"), "grads[0, 0] and 63 more: it is as it was"),
        (loops(G, rng="range(first, first + 33)"), "line 5 of yours: thread 0 of block 1 reads hidden[64, 0], which"),
        (loops(G, rng="range(64)"), "line 5 of yours: thread 0 of block 0 writes grads[0, 0], which"),
        ("i = cuda.threadIdx.x\nif cuda.blockIdx.x == 0:\n    for t in range(64):\n        " + G,
         "thread 0 of block 0 stores 64 of them, where 32 for each thread"),
        (loops("grads[t, i] *= 1 - hidden[t, i]"), "grads: the slope is 1 - hidden ** 2"),
        (loops("grads[t, i] *= (1 - hidden[t, i]) ** 2"), "grads: the square is that of hidden, and not of 1 - hidden"),
        (loops("grads[t, i] *= 1 - hidden[t, i] * 2"), "grads: that is twice hidden; the square is hidden ** 2"),
        (loops("grads[t, i] *= hidden[t, i] ** 2 - 1"), "grads: it has the other sign"),
        (loops("grads[t, i] *= 1 + hidden[t, i] ** 2"), "grads[0, 0] is 0.0519 and should be 0.0446"),
        (loops("grads[t, i] = 1 - hidden[t, i] ** 2"), "grads: the gradients are missing"),
        (loops("grads[t, i] = grads[t, i] * 1 - hidden[t, i] ** 2"),
         "grads: parentheses are missing: 1 - hidden ** 2 is one factor"),
        (loops("grads[t, i] *= 1 - hidden[t, 31 - i] ** 2"), "grads[0, 0] is 0.0459 and should be 0.0446"),
        (loops(G + "\n    " + G), "grads: it is multiplied twice"),
        (loops("hidden[t, i] = 1 - hidden[t, i] ** 2\n    grads[t, i] *= hidden[t, i]"), "it changes hidden"),
        (loops("grads[t, i] = float32(grads[t, i] * (1 - hidden[t, i] ** 2))"),
         "grads is right in its first digits only. Is something in it of"),
        ("i = cuda.threadIdx.x\nfor t in range(32 * cuda.blockIdx.x, 64):\n    " + G,
         "line 5 of yours: thread 0 of block 0 reads grads[32, 0], which"),
        ("pass", "grads: it is as it was"),
    ],
    "padded": [
        (P + tile(31) + RD + SYNC + WR, "line 6 of yours: thread (31, 31) of block (0, 0) writes shared"),
        (P + tile(32) + RD + SYNC + WR, "a request of shared memory takes 16.5 passes on average, where"),
        (P + tile(34) + RD + SYNC + WR, "a request of shared memory takes 1.5 passes on average, where 1"),
        (P + tile(33) + RD + WR, "line 7 of yours: thread (1, 0) of block (0, 0) reads shared"),
        (P + tile(33) + SYNC + RD + WR, "line 8 of yours: thread (1, 0) of block (0, 0) reads shared"),
        (P + tile(33, 31) + RD + SYNC + WR, "line 6 of yours: thread (0, 31) of block (0, 0) writes shared"),
        (P + tile(33) + "tile[x, y] = matrix[i + x, j + y]\n" + SYNC + "out[j + x, i + y] = tile[y, x]",
         "a warp asks global memory for 32 sectors at a time, where 4 are"),
        (P + tile(33) + RD + SYNC + "out[i + y, j + x] = tile[x, y]",
         "out: each tile is transposed, but stands where it stood"),
        (P + tile(33) + RD + SYNC + "out[j + y, i + x] = tile[y, x]",
         "out: the tiles stand right, but none of them is transposed"),
        (P + tile(33) + RD + SYNC + "out[i + y, j + x] = tile[y, x]", "out: that is the matrix itself; transpose it"),
        (P + tile(33) + RD + SYNC + "out[x, y] = tile[x, y]",
         "line 8 of yours: thread (0, 0) of block (0, 0) writes out[0,"),
        (P + tile(33) + RD + SYNC, "out[0, 0] and 4093 more: nothing has come there"),
        ("pass", "out[0, 0] and 4093 more: nothing has come there"),
        (P + tile(33) + RD + SYNC + WR + "\nmatrix[i + y, j + x] = tile[y, x]", "it changes matrix"),
        (P + tile(33) + RD + SYNC + "if y == 0:\n    for n in range(32):\n        out[j + n, i + x] = tile[x, n]",
         "thread (0, 0) of block (0, 0) stores 32 of them, where 1 for"),
        (P + tile(33) + RD + "if x < 31:\n    cuda.syncthreads()\n" + WR,
         "line 8 of yours: thread (0, 0) of block (0, 0) waits at a"),
        (P + tile(33) + RD + SYNC + "out[j + y, i + x] = tile[x, y + 1]",
         "line 8 of yours: thread (0, 31) of block (0, 0) reads shared"),
    ],
    "warp_sum": [
        (WS + ST, "total: that is the number of thread 0 alone"),
        (WS + "total[b] = x", "line 5 of yours: thread 0 of block 0 writes total[0], which"),
        ("pass", "total: nothing has come there"),
        (WS + shs(16, 8, 4, 2) + ST, "total: the last step of the tree, by 1, is missing"),
        (WS + shs(8, 4, 2, 1) + ST, "total: only threads 0 to 15 are in it"),
        (WS + shs(16, 8, 2, 1) + ST, "total[0] is -1.8863 and should be -4.8634"),
        (WS + shs(32, 16, 8, 4, 2) + ST, "total[0] is -11.1944 and should be -4.8634"),
        (WS + shs(16, 8, 4, 2, 1, kind="up") + ST,
         "total: thread 0 has only doubled its own: there is none before"),
        (WS + FIVE + ST.replace("== 0", "== 31"), "total: thread 31 has only doubled its own: there is none behind"),
        (WS + FIVE + "total[b] = x", "line 10 of yours: thread 0 of block 0 writes total[0], which"),
        (WS + FIVE, "total: nothing has come there"),
        (WS + FIVE + ST.replace("total[b]", "total[0]"),
         "line 11 of yours: thread 0 of block 0 writes total[0], which"),
        (WS + FIVE + ST.replace("= x", "= 2 * x"), "total: everything is in it twice"),
        (WS + FIVE + "if cuda.grid(1) == 0:\n    total[b] = x", "total[1] and 2 more: nothing has come there"),
        (WS.replace("values[b, t]", "values[t, b]") + FIVE + ST,
         "line 4 of yours: thread 4 of block 0 reads values[4, 0], which"),
        (WS.replace("values[b, t]", "values[b, 31 - t + 1]") + FIVE + ST,
         "line 4 of yours: thread 0 of block 3 reads values[4, 0], which"),
        (WS + shs(16, 8, 4, 2, 1, m="0x0000FFFF") + ST,
         "line 5 of yours: thread 16 of block 0 shuffles with a mask,"),
        (WS + shs(16, 8, 4, 2, 1, m="0") + ST,
         "line 5 of yours: thread 0 of block 0 shuffles with a mask, 0x0,"),
        (WS + "k = 16\nwhile k > 0:\n    if t < k:\n        " + sh("k").strip() + "\n    k //= 2\n" + ST,
         "line 8 of yours: thread 0 of block 0 asks lane 16 of its warp"),
        (WS + "k = 16\nwhile k > 0:\n    if t < 2 * k:\n        " + sh("k").strip() + "\n    k //= 2\n" + ST,
         "line 8 of yours: thread 8 of block 0 asks lane 16 of its warp"),
        (WS + sh(16) + "if t < 16:\n" + ind(shs(8, 4, 2, 1, kind="xor")) + ST,
         "line 7 of yours: thread 0 of block 0 shuffles with a mask,"),
        (WS + "k = 16\nwhile k > 1:\n    " + sh("k").strip() + "\n    k //= 2\n" + ST,
         "total: the last step of the tree, by 1, is missing"),
        (WS + "own = cuda.shared.array(32, float32)\nown[t] = x\ncuda.syncthreads()\nif t == 0:\n"
         "    x = float32(0.0)\n    for n in range(32):\n        x += own[n]\n    total[b] = x",
         "with shared memory: a warp's threads hand over their numbers by"),
        (WS + "cuda.atomic.add(total, b, x)", "by atomic operations, one after the other: let threads hand"),
        (WS + "if t == 0:\n    x = float32(0.0)\n    for n in range(32):\n        x += values[b, n]\n"
         "    total[b] = x", "without a shuffle: let threads hand over their numbers by"),
        ("if cuda.grid(1) == 0:\n    for b in range(4):\n        for n in range(32):\n"
         "            total[b] += values[b, n]", "block 0 stores several of the sums, while others wait; each"),
        ("t = cuda.threadIdx.x\nfor b in range(4):\n    x = values[b, t]\n" + ind(FIVE + ST),
         "4 blocks store parts of one of the sums; each block makes its"),
        (WS + FIVE + "values[b, t] = x\n" + ST, "it changes values"),
        (WS + FIVE + ST.replace("= x", "= x / 32"), "total: that is the mean"),
        (WS + "y = x\n" + FIVE.replace("x +=", "y +=") +
         ST.replace("= x", "= y"), "total: only threads 0, 1, 2, 4, 8 and 16 are in it: hand over"),
        (WS + "total[b] += x", "line 5 of yours: thread 0 of block 0 writes total[0], which"),
        (WS + "x += cuda.shfl_down(x, 16)\n" + ST, "it does not compile: AttributeError: module 'numba.cuda' has no"),
    ],
}  # fmt: skip
# Other ways to be right.
RIGHT = {
    "up_level": [
        U + SHARED + "own[i, j] = mats[r, i, j]\n" + SYNC + "entry = 0.0\nfor k in range(H):\n    entry += own[i, "
         "k] * mats[l, k, j]\nmats[r, i, j] = entry",
        U + "row = cuda.local.array(H, float64)\nfor k in range(H):\n    row[k] = mats[r, i, k]\n" + SYNC + "mats[r, "
         "i, j] = 0.0\nfor k in range(H):\n    mats[r, i, j] += row[k] * mats[l, k, j]",
        U + "entry = mats[r, i, 0] * mats[l, 0, j] + mats[r, i, 1] * mats[l, 1, j] + mats[r, i, 2] * mats[l, 2, "
         "j]\n" + SYNC + "mats[r, i, j] = entry",
        U + "entry = dot(mats[r, i], mats[l], j)\n" + SYNC + "mats[r, i, j] = entry",
        U + "entry, k = 0.0, 0\nwhile k < H:\n    entry += mats[r, i, k] * mats[l, k, j]\n    k += 1\n" + SYNC +
         "mats[r, i, j] = entry",
        "pair, j, i = cuda.blockIdx.x, cuda.threadIdx.x, cuda.threadIdx.y\n" + LR + SUM + SYNC + "mats[r, i, "
         "j] = entry",
        "pair, i, j = cuda.gridDim.x - 1 - cuda.blockIdx.x, cuda.threadIdx.x, cuda.threadIdx.y\n" + LR + SUM + SYNC +
         "mats[r, i, j] = entry",
        "i, j = cuda.threadIdx.x, cuda.threadIdx.y\nfor pair in range(cuda.blockIdx.x, cuda.gridDim.x, "
         "cuda.gridDim.x):\n" + ind(LR + SUM + SYNC + "mats[r, i, j] = entry"),
        "t = cuda.threadIdx.x + H * cuda.threadIdx.y\npair, i, j = cuda.blockIdx.x, t // H, t % H\n" + LR + SUM +
         SYNC + "mats[r, i, j] = entry",
        U + SUM + "cuda.syncwarp()\nmats[r, i, j] = entry",
        U + SUM + SYNC + "mats[r, i, j] = 0.0\ncuda.atomic.add(mats, (r, i, j), entry)",
        U + "a = mats[r, i, j]\n" + SYNC + "mats[r, i, j] = 0.0\n" + SYNC + "for n in range(H):\n"
         "    cuda.atomic.add(mats, (r, i, n), a * mats[l, j, n])",
        U + LOCAL + ALL.replace("for i", "for a").replace("for j", "for b").replace("[r, i", "[r, a").replace("k, "
         "j]", "k, b]").replace("[i, j]", "[a, b]") + SYNC + "mats[r, i, j] = own[i, j]",
    ],
    "down_level": [
        D + "old = cuda.shared.array(H, float64)\n" + FIRST + ind("old[i] = vecs[r, i]\n" + SYNC + "entry = 0.0\n"
         "for k in range(H):\n    entry += mats[l, i, k] * old[k]\nvecs[l, i], vecs[r, i] = old[i], entry"),
        D + DS + "mine = vecs[r, i]\n" + SYNC + "if pair == 0:\n    vecs[r, i] = mats[l, i, 0]\nelse:\n    vecs[l, "
         "i] = mine\n    vecs[r, i] = entry",
        D + DS + "mine = vecs[r, i]\n" + SYNC + "vecs[l, i] = mine\nvecs[r, i] = mats[l, i, 1] if pair == 0 else entry",
        D + "if pair == 0:\n    vecs[r, i] = mats[l, i, H - 1]\n    return\n" + DS + SYNC + SW,
        "pair, i = cuda.gridDim.x - 1 - cuda.blockIdx.x, cuda.threadIdx.x\n" + LR + FIRST + ind(DS + SYNC + SW),
        "pair, i = cuda.blockIdx.x, H - 1 - cuda.threadIdx.x\n" + LR + FIRST + ind(DS + SYNC + SW),
        D + FIRST + ind(DS + "cuda.syncwarp()\n" + SW),
        D + FIRST + ind("old = vecs[r, i]\nentry = mats[l, i, 0] * vecs[r, 0] + mats[l, i, 1] * vecs[r, 1] + mats[l, "
         "i, 2] * vecs[r, 2]\n" + SYNC + "vecs[l, i] = old\nvecs[r, i] = entry"),
        D + FIRST + ind(DS + SYNC + "swap(vecs, l, r, i, entry)"),
        D + FIRST + ind("entry, k = 0.0, H\nwhile k:\n    k -= 1\n    entry += mats[l, i, k] * vecs[r, k]\n" + SYNC +
         SW),
        D + FIRST + ind("old = cuda.local.array(H, float64)\nfor k in range(H):\n    old[k] = vecs[r, k]\n" + SYNC +
         "vecs[l, i] = old[i]\nvecs[r, i] = 0.0\nfor k in range(H):\n    vecs[r, i] += mats[l, i, k] * old[k]"),
        D + FIRST + ind(DS + SYNC + "vecs[l, i] = vecs[r, i]\n" + SYNC + "vecs[r, i] = entry"),
        D + FIRST + ind(DS + SYNC + "if i == 0:\n    vecs[l, 0], vecs[r, 0] = vecs[r, 0], entry\nelif i == 1:\n"
         "    vecs[l, 1], vecs[r, 1] = vecs[r, 1], entry\nelse:\n    vecs[l, 2], vecs[r, 2] = vecs[r, 2], entry"),
    ],
    "up_level_of_batch": [
        "b, pair, i, j = cuda.blockIdx.y, cuda.gridDim.x - 1 - cuda.blockIdx.x, cuda.threadIdx.y, "
         "cuda.threadIdx.x\n" + LR + BS + SYNC + "mats[r, b, i, j] = entry",
        BU + "own = mats[:, b]\n" + SUM.replace("mats", "own") + SYNC + "own[r, i, j] = entry",
        BU + "product(mats[r, b], mats[l, b], i, j)",
        BU + "own = cuda.shared.array((2, H, H), float64)\nown[0, i, j], own[1, i, j] = mats[l, b, i, j], mats[r, b, "
         "i, j]\n" + SYNC + "entry = 0.0\nfor k in range(H):\n    entry += own[1, i, k] * own[0, k, j]\nmats[r, b, "
         "i, j] = entry",
        "pair, i, j = cuda.blockIdx.x, cuda.threadIdx.x, cuda.threadIdx.y\n" + LR + "for b in range(cuda.blockIdx.y, "
         "mats.shape[1], cuda.gridDim.y):\n" + ind(BS + SYNC + "mats[r, b, i, j] = entry"),
        BU + "entry = mats[r, b, i, 0] * mats[l, b, 0, j] + mats[r, b, i, 1] * mats[l, b, 1, j] + mats[r, b, i, "
         "2] * mats[l, b, 2, j]\n" + SYNC + "mats[r, b, i, j] = entry",
        BU + "entry, k = 0.0, 0\nwhile k < H:\n    entry += mats[r, b, i, k] * mats[l, b, k, j]\n    k += 1\n"
         "cuda.syncwarp()\nmats[r, b, i, j] = entry",
        "pair, b, i, j = cuda.gridDim.x - 1 - cuda.blockIdx.x, cuda.gridDim.y - 1 - cuda.blockIdx.y, "
         "cuda.threadIdx.x, cuda.threadIdx.y\n" + LR + BS + SYNC + "mats[r, b, i, j] = entry",
    ],
    "detective": [
        "return [2, 0, 2]", "return 3, 1, 3", "return 1, 0, 1", "return np.int64(2), np.int32(0), np.uint8(2)",
        "return np.array([2, 0, 2])", 'return tuple(map(int, "313"))',
        "found = ptx.run(suspect, 1, 8, np.ones(8)).findings[0]; return found.other[1], found.thread, found.place",
        "return (t for t in (2, 0, 2))", "t = 1; return t + 2, t, t + 2",
    ],
    "race": [
        race(A, B),
        race(T + "total[0] = values[t]", B),
        race(T + "total[0] = t", B),
        race(T + "own = cuda.shared.array(1, float64)\nown[0] = t\ntotal[0] = own[0]", B),
        race(T + "own = cuda.shared.array(32, float64)\nown[t] = values[t]\ntotal[0] = own[31 - t]", B),
        race(T + "if t < 2:\n    total[0] += values[t]", B),
        race(T + "x = total[0]\ncuda.atomic.add(total, 0, x + values[t])", B),
        race(A, "total[0] = values.sum()"),
        race(A, TURN),
        race(A, TURN.replace("syncthreads", "syncwarp")),
        race(A, T + "for n in range(32):\n    cuda.syncthreads()\n    if t == n:\n        total[0] += values[n]"),
        race(A, T + "n = 0\nwhile n < 32:\n    if t == 31 - n:\n        total[0] += values[t]\n"
         "    cuda.syncthreads()\n    n += 1"),
        race(A, T + "x = 0.0\nfor n in range(32):\n    x += values[n]\ntotal[0] = x"),
    ],
    "coalesced": [
        loops("grads[t, i] = grads[t, i] * (1 - hidden[t, i] * hidden[t, i])"),
        loops("grads[t, i] -= grads[t, i] * hidden[t, i] ** 2"),
        loops("grads[t, i] *= (1 - hidden[t, i]) * (1 + hidden[t, i])"),
        loops(G, rng="range(first + 31, first - 1, -1)"),
        "i, t = cuda.threadIdx.x, 32 * cuda.blockIdx.x\nwhile t < 32 * (cuda.blockIdx.x + 1):\n    " + G + "\n"
         "    t += 1",
        "i = cuda.threadIdx.x\nfor t in range(cuda.blockIdx.x, hidden.shape[0], cuda.gridDim.x):\n    " + G,
        "i = 31 - cuda.threadIdx.x\nfor n in range(32):\n    t = 63 - 32 * cuda.blockIdx.x - n\n    " + G,
        "first = 32 * cuda.blockIdx.x\nfor n in range(cuda.threadIdx.x, 32 * 32, 32):\n    t, i = first + n // 32, "
         "n % 32\n    " + G,
        "i = cuda.threadIdx.x\nrows, slopes = grads[32 * cuda.blockIdx.x:], hidden[32 * cuda.blockIdx.x:]\n"
         "for t in range(32):\n    rows[t, i] *= 1 - slopes[t, i] ** 2",
        loops("s = 1 - hidden[t, i] ** 2\n    grads[t, i] = grads[t, i] * s"),
        loops("if hidden[t, i] < 2:\n        grads[t, i] = grads[t, i]\n    cuda.syncthreads()\n    " + G),
        "own = cuda.shared.array((32, 33), float64)\nx, first = cuda.threadIdx.x, 32 * cuda.blockIdx.x\n"
         "for n in range(32):\n    own[n, x] = 1 - hidden[first + n, x] ** 2\ncuda.syncthreads()\n"
         "for n in range(32):\n    grads[first + n, x] *= own[n, x]",
        "x = cuda.threadIdx.x\nfor n in range(32):\n    t, i = 32 * cuda.blockIdx.x + n, (x + n) % 32\n    " + G,
    ],
    "padded": [
        P + tile(33) + RD + SYNC + WR,
        P + tile(35) + RD + SYNC + WR,
        P + tile(37) + RD + SYNC + WR,
        P + tile(32) + "tile[y, (x + y) % 32] = matrix[i + y, j + x]\n" + SYNC + "out[j + y, i + x] = tile[x, (x + "
         "y) % 32]",
        P + tile(32) + "tile[y, x ^ y] = matrix[i + y, j + x]\n" + SYNC + "out[j + y, i + x] = tile[x, x ^ y]",
        P + tile(33) + "tile[x, y] = matrix[i + y, j + x]\n" + SYNC + "out[j + y, i + x] = tile[y, x]",
        P + "tile = cuda.shared.array(32 * 33, float32)\ntile[33 * y + x] = matrix[i + y, j + x]\n" + SYNC + "out[j + "
         "y, i + x] = tile[33 * x + y]",
        "x, y = cuda.threadIdx.x, cuda.threadIdx.y\nj, i = 32 * cuda.blockIdx.x, 32 * cuda.blockIdx.y\n" + tile(33) +
         RD + SYNC + WR,
        P + tile(33) + tile(33).replace("tile", "other") + RD + SYNC + "other[x, y] = tile[x, y]\n" + SYNC + "out[j + "
         "y, i + x] = other[x, y]",
        P + tile(33) + RD + SYNC + "out[j + y, i + x] = tile[x, y]\n" + SYNC + "out[j + y, i + x] = tile[x, y]",
        P + tile(33) + "tile[y, x] = matrix[i + y, j + x] + 0.0 * matrix[i, j + x]\n" + SYNC + WR,
        P + tile(33) + "y = 31 - y\n" + RD + SYNC + WR,
    ],
    "warp_sum": [
        WS + shs(16, 8, 4, 2, 1, kind="up") + ST.replace("== 0", "== 31"),
        WS + FIVE + ST,
        WS + shs(1, 2, 4, 8, 16) + ST,
        WS + shs(16, 8, 4, 2, 1, kind="xor") + ST,
        WS + shs(16, 8, 4, 2, 1, kind="xor") + "total[b] = x",
        WS + "k = 1\nwhile k < 32:\n    y = cuda.shfl_up_sync(0xFFFFFFFF, x, k)\n    if t >= k:\n        x += y\n"
         "    k *= 2\n" + ST.replace("== 0", "== 31"),
        WS + "y = x\nfor n in range(1, 32):\n    y += cuda.shfl_down_sync(0xFFFFFFFF, x, n)\n" + ST.replace("= x",
         "= y"),
        WS + "y = float32(0.0)\nfor n in range(32):\n    y += cuda.shfl_sync(0xFFFFFFFF, x, n)\n" + ST.replace("= x",
         "= y"),
        WS + "for n in range(31):\n    y = cuda.shfl_down_sync(0xFFFFFFFF, x, 1)\n    x = values[b, t] + "
         "y if t < 31 else values[b, t]\n" + ST,
        WS + FIVE + SYNC + ST,
        WS + "for k in (16, 8, 4, 2, 1):\n    " + sh("k").strip() + "\n" + ST,
        WS + "k = 16\nwhile k >= 1:\n    " + sh("k").strip() + "\n    k >>= 1\n" + ST,
        WS + "for n in range(5):\n    " + sh("16 >> n").strip() + "\n" + ST,
    ],
}  # fmt: skip
# Right, too, and what they take more than they must.
WASTEFUL = [
    ("up_level", U + SUM + "for _ in range(3):\n    cuda.syncthreads()\nmats[r, i, j] = entry", "18 barriers, where 6"),
    ("up_level", U + SUM + SYNC + "mats[r, i, j] = 0.0\ncuda.atomic.add(mats, (r, i, j), entry)", "54 atomics, wh"),
    ("down_level", D + FIRST + ind(DS + SYNC + SYNC + SW), "8 barriers, where 4 are enough"),
    ("up_level_of_batch", BU + SYNC + BS + SYNC + "mats[r, b, i, j] = entry", "8 barriers, where 4 are enough"),
    ("race", race(A, TURN), "96 sectors, where 9 are enough; 32 barriers, where 0 are"),
    ("race", race(A, B + "\ncuda.atomic.add(total, 0, 0.0)"), "64 atomics, where 32 are enough"),
    ("coalesced", loops("cuda.syncthreads()\n    " + G), "64 barriers, where 0 are enough"),
    ("padded", P + tile(33) + RD + SYNC + WR + "\n" + SYNC + WR, "1536 sectors, where 1024 are enough; 8 barriers"),
    ("warp_sum", WS + FIVE + SYNC + ST, "4 barriers, where 0 are enough"),
    ("warp_sum", WS + "y = x\nfor n in range(1, 32):\n    y += cuda.shfl_down_sync(0xFFFFFFFF, x, n)\n" +
     ST.replace("= x", "= y"), "31 shuffles of a warp, where 5 are enough"),
]  # fmt: skip
