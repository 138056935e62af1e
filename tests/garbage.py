"""What a hostile user passes, and good calls of everything public to pass it to, one argument at a time."""

import copy
import functools
import pathlib
import re
import types

import numpy as np
from scipy import sparse as scipy_sparse

import bppsa_nb as bp
from bppsa_nb import distributed, graphs, multigrid, ptx, puzzles, schedule, sparse
from bppsa_nb.graphs import variants
from bppsa_nb.operands.dense import Dense
from bppsa_nb.scan import scan, trace
from bppsa_nb.schedule import draw
from bppsa_nb.schedule import events as timeline
from bppsa_nb.training import datasets, loss


def numbers(*shape):
    return np.random.default_rng(0).uniform(-0.5, 0.5, shape).astype(np.float32)


# What no argument takes for good. Those below may be good for some.
NEVER = {"object": object(), "class": int, "function": lambda *arguments: None, "module": np, "bytes": b"x"}
NEVER |= {"complex": 1j, "list of None": [None], "ragged": [[1, 2], [3]], "objects": np.array([None, "x"], object)}
NEVER |= {"text": np.array(["a", "b"]), "dates": np.array(["2020-01-01"], "M8[D]")}
NEVER |= {"records": np.zeros(2, [("a", float)]), "NaN": float("nan"), "mixed": (1.5, "x"), "dict": {"a": 1}}
NEVER |= {"duration": np.timedelta64(1, "s")}
PERHAPS = {"None": None, "True": True, "-1": -1, "0": 0, "1": 1, "2**70": 2**70, "1.5": 1.5, "infinity": float("inf")}
PERHAPS |= {"empty text": "", "nonsense": "nonsense", "path": pathlib.Path("nowhere/at/all"), "empty list": []}
PERHAPS |= {"numbers": (1, 2), "set": set(), "NumPy's int": np.int64(3), "NumPy's float": np.float32(2)}
PERHAPS |= {"NumPy's text": np.str_("x"), "no numbers": np.zeros(0), "0-d": np.zeros(()), "1-d": np.ones(3)}
PERHAPS |= {"2-d": np.ones((2, 3)), "4-d": np.ones((2, 2, 2, 2), np.float32)}
PERHAPS |= {"sparse": scipy_sparse.csr_array(np.eye(3))}
SAME = {"read-only", "in Fortran's order", "strided"}  # the same numbers: the same result


def twisted(value):
    """Yield a good argument with something wrong about it, and what that is."""
    if isinstance(value, np.ndarray):
        yield from _twisted_array(value)
    elif isinstance(value, (list, tuple)) and value and not any(hasattr(each, "_fields") for each in (value, value[0])):
        kind = type(value)
        yield "without the last", value[:-1]
        yield "one more", value + value[:1]
        yield "None for the first", kind([None, *value[1:]])
        yield "nested", kind([value])
        yield "all -1", kind([-1] * len(value))
        yield "all NaN", kind([float("nan")] * len(value))
        yield from ((f"first {what}", kind([first, *value[1:]])) for what, first in twisted(value[0]))
    elif isinstance(value, dict) and value:
        key = next(iter(value))
        yield "an entry missing", {other: entry for other, entry in value.items() if other != key}
        yield "an entry more", value | {"more": value[key]}
        yield "a number for a name", value | {3: value[key]}
        yield from ((f"{key} {what}", value | {key: entry}) for what, entry in twisted(value[key]))
        yield from ((f"{key} {what}", value | {key: NEVER[what]}) for what in ("object", "objects", "list of None"))
    elif isinstance(value, str):
        yield "another text", value + " "


def _twisted_array(array):
    frozen = array.copy()
    frozen.flags.writeable = False
    yield "read-only", frozen
    yield "in Fortran's order", np.asfortranarray(array)
    yield "more axes", array[None]
    yield "of bytes in another order", array.astype(array.dtype.newbyteorder(">"))
    yield from ((f"of dtype {dtype}", array.astype(dtype)) for dtype in "f2 f8 c8 i4 ? O S3 g".split())
    if array.ndim:
        wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
        wide[..., ::2] = array
        yield "strided", wide[..., ::2]
        yield "masked", np.ma.masked_array(array, array == array.flat[0])
        yield "shorter", array[:-1]
        yield "longer", np.concatenate([array, array[:1]])
        yield "empty", array[:0]
        yield "narrower", array[..., :-1]
        yield "fewer axes", array[0]
        yield "transposed", array.T
        yield "a list", array.tolist()
    if array.dtype.kind == "f":
        limits = np.finfo(array.dtype)
        for number in (np.nan, np.inf, limits.max, limits.smallest_subnormal):
            yield f"with {number}", _with(array, number)
        yield "all as large as can be", np.full_like(array, limits.max)
    else:
        yield "with -1", _with(array, -1)
        yield "with a large one", _with(array, np.iinfo(array.dtype).max)


def _with(array, number):
    array = array.copy()
    array.flat[array.size // 2] = number
    return array


# -- Good calls: what to call, and with what, both made anew for every call ----------------------------------------

CASES = {}  # name -> (make what is called, make its arguments in a folder)


def case(name, call, /, **arguments):
    """Add a good call, for which all is made anew: arguments are copied, or made by functions of a folder."""

    def made(folder):
        return {
            name: value(folder) if isinstance(value, types.FunctionType) else copy.deepcopy(value)
            for name, value in arguments.items()
        }

    CASES[name] = call, made


def _dense(**more):
    good = {"jacobians_T": numbers(5, 2, 3, 3), "grad_output": numbers(2, 3), "local_grads": numbers(6, 2, 3)}
    return good | {"method": "blelloch", "backend": "numpy", "levels": None, "comm": None} | more


def _chain():
    return bp.StructuredChain(numbers(2, 3, 3), numbers(2, 5, 2, 3), numbers(5, 2, 3))


def _link():
    return bp.BatchedCSR(numbers(2, 4), np.array([0, 1, 0, 1]), np.array([0, 2, 4]), (2, 2))


def _matrix():
    return scipy_sparse.csr_array(numbers(2, 2))


def _list():
    links = [numbers(3, 4), scipy_sparse.csr_array(numbers(4, 2)), numbers(2, 2)]
    terms = [numbers(3), numbers(4), numbers(2), numbers(2)]
    return {"jacobians_T": links, "grad_output": numbers(2), "local_grads": terms}


case("backprop", lambda: bp.backprop, **_dense(method="truncated", levels=1))
case("backprop, shared", lambda: bp.backprop, **_dense(jacobians_T=numbers(5, 3, 3), method="chunked"))
case("backprop, compiled", lambda: bp.backprop, **_dense(backend="cpu"))
case("backprop, structured", lambda: bp.backprop, **_dense(jacobians_T=_chain(), method="chunked"))
case("backprop, list", lambda: bp.backprop, **_dense(**_list()))
case(
    "backprop, batched list", lambda: bp.backprop,
    **_dense(jacobians_T=[_link(), _link()], grad_output=numbers(2, 2), local_grads=[numbers(2, 2)] * 3)
)
case(
    "BatchedCSR", lambda: bp.BatchedCSR, values=numbers(2, 4), indices=np.array([0, 1, 0, 1]),
    indptr=np.array([0, 2, 4]), shape=(2, 2)
)
case("BatchedCSR.of", lambda: bp.BatchedCSR.of, pattern=_link().pattern, values=numbers(2, 4))
case(
    "StructuredChain", lambda: bp.StructuredChain, weights=numbers(2, 3, 3), slopes=numbers(2, 5, 2, 3),
    carry=numbers(5, 2, 3)
)
case("explain", lambda: bp.explain, T=10, B=2, H=3, dtype=np.float32, backend="numpy", weights=1)


case(
    "unroll", lambda: functools.partial(bp.unroll, step=lambda h, x: h / 2), h0=numbers(2, 3), inputs=numbers(5, 2, 3),
    method="chunked", jacobian=None, length=2, tol=0.1, most=3
)


def _recurrent(cell):
    name, model = cell.__name__, lambda: cell(2, 3, 4)
    made = {"input_size": 2, "hidden_size": 3, "num_classes": 4, "num_layers": 1, "rng": 0, "dtype": np.float32}
    case(name, lambda: cell, **made)
    for backend in "numpy", "cpu":
        case(
            f"{name}.forward, {backend}", lambda: model().forward, x=numbers(5, 2, 2),
            h0=(numbers(1, 2, 3),) * 2 if cell is bp.LSTM else numbers(1, 2, 3), backend=backend, comm=None
        )
        for method in "chunked", "newton":
            how = {"method": method, "length": 2, "tol": 0.1, "most": 3}
            case(
                f"{name}.forward, {method}, {backend}", lambda: model().forward, x=numbers(5, 2, 2), backend=backend,
                **how
            )
        case(
            f"{name}.backward, {backend}", lambda: model().backward,
            activations=lambda _: model().forward(numbers(5, 2, 2), backend="numpy"), grad_logits=numbers(2, 4),
            method="truncated", backend=backend, levels=1, comm=None
        )


_recurrent(bp.RNN)
case(
    "LSTM.forward, lengths", lambda: bp.LSTM(2, 3, 4).forward, x=numbers(5, 2, 2), lengths=np.array([5, 3]),
    backend="cpu"
)
_recurrent(bp.GRU)
_recurrent(bp.LSTM)
case("check_cell", lambda: bp.check_cell, cell=bp.GRU.cell, rng=0)


def _trainer():
    return bp.Trainer(bp.RNN(1, 3, 10), bp.Adam(), backend="numpy")


def _updates():
    return {"params": {"a": numbers(2, 3), "b": numbers(3)}, "grads": {"a": numbers(2, 3), "b": numbers(3)}}


def _saved(folder):
    _trainer().save(folder / "saved.npz")
    return folder / "saved.npz"


_SAMPLES = {"indices": np.array([1, 2]), "part": (0, 1)}
case("SGD", lambda: bp.SGD, lr=0.1, momentum=0.5)
case("Adam", lambda: bp.Adam, lr=0.1, betas=(0.9, 0.99), eps=1e-8)
case("SGD.step", lambda: bp.SGD(0.1, 0.5).step, **_updates())
case("Adam.step", lambda: bp.Adam(0.1).step, **_updates())
case(
    "Trainer", lambda: bp.Trainer, model=bp.RNN(1, 3, 10), optimizer=bp.Adam(), method="truncated", backend="numpy",
    levels=1, comm=None, sequence_ranks=None
)
case("Trainer.step", lambda: _trainer().step, x=numbers(5, 2, 1), y=np.array([1, 2]), lengths=np.array([5, 3]))
case("Trainer.predict", lambda: _trainer().predict, x=numbers(5, 2, 1), lengths=np.array([5, 3]))
case(
    "Trainer.fit", lambda: _trainer().fit, dataset=bp.Bitstream(5, 8), epochs=1, batch_size=4, rng=0, progress=False,
    save_to=lambda folder: folder / "fit.npz", save_every=1
)
case("Trainer.evaluate", lambda: _trainer().evaluate, dataset=bp.Bitstream(5, 8), batch_size=4)
case("Trainer.save", lambda: _trainer().save, path=lambda folder: folder / "save.npz")
case("Trainer.load", lambda: _trainer().load, path=_saved)
for function in loss.accuracy, loss.cross_entropy:
    case(function.__name__, lambda f=function: f, logits=numbers(2, 4), labels=np.array([1, 2]))
case("Bitstream", lambda: bp.Bitstream, length=5, num_samples=8, num_classes=10, rng=0, dtype=np.float32)
case("Bitstream.batch", lambda: bp.Bitstream(5, 8).batch, **_SAMPLES)
case("ArrayDataset", lambda: datasets.ArrayDataset, x=numbers(5, 4, 1), y=np.array([0, 1, 2, 3]))
case("ArrayDataset.batch", lambda: datasets.ArrayDataset(numbers(5, 4, 1), np.arange(4)).batch, **_SAMPLES)
case("Images", lambda: bp.Images, source="stand-in", split="train", num_samples=4, rng=0)


def _network():
    operators = [sparse.Conv2d("c", 1, 2, 3, padding=1), sparse.ReLU("r"), sparse.MaxPool2d("p", 2)]
    return sparse.Network((1, 4, 4), [*operators, sparse.Flatten("f"), sparse.Linear("l", 8, 3)])


def _image_pass():
    return _network().forward(numbers(2, 1, 4, 4), backend="numpy")


def _weights(folder):
    sparse.save_weights(_network(), folder / "weights.npz")
    return folder / "weights.npz"


def _plan():
    return sparse.PlannedProduct(_matrix(), _matrix())


case("CSRPattern", lambda: sparse.CSRPattern, indptr=np.array([0, 2, 4]), indices=np.array([0, 1, 0, 1]), shape=(2, 2))
case("CSRPattern.of", lambda: sparse.CSRPattern.of, matrix=_matrix())
case("CSRPattern.times", lambda: _link().pattern.times, other=_link().pattern)
case("CSRPattern.matrix", lambda: _link().pattern.matrix, values=numbers(4))
case("PlannedProduct", lambda: sparse.PlannedProduct, a=_matrix(), b=_matrix())
for backend in "numpy", "cpu":
    case(
        f"PlannedProduct(), {backend}", _plan, a=numbers(2, 4), b=numbers(2, 4), backend=backend,
        out=np.zeros((2, 4), "f")
    )
case("PlannedProduct.performed", lambda: _plan().performed, a=numbers(4))
case(
    "Conv2d", lambda: sparse.Conv2d, name="c", in_channels=2, out_channels=3, kernel_size=3, stride=1, padding=1,
    dilation=1
)
case("Linear", lambda: sparse.Linear, name="c", in_features=2, out_features=3)
for kind in sparse.MaxPool2d, sparse.AvgPool2d:
    case(kind.__name__, lambda k=kind: k, name="c", kernel_size=2, stride=2)
for kind in sparse.ReLU, sparse.Tanh, sparse.Sigmoid, sparse.Flatten:
    case(kind.__name__, lambda k=kind: k, name="c")
case(
    "Network", lambda: sparse.Network, input_shape=(1, 4, 4), operators=_network().operators, scan_until="f",
    init="uniform", rng=0, dtype=np.float32
)
case("Network.forward", lambda: _network().forward, x=numbers(2, 1, 4, 4), backend="numpy")
case(
    "Network.backward", lambda: _network().backward, activations=lambda _: _image_pass(), grad_logits=numbers(2, 3),
    method="truncated", backend="numpy", levels=1
)
case("Network.jacobian", lambda: _network().jacobian, name="r")
case("Network.links", lambda: _network().links, activations=lambda _: _image_pass(), from_input=False)
case("Network.linked", lambda: _network().linked, from_input=False)
case("Network.patterns", lambda: _network().patterns, from_input=False)
case("LeNet5", lambda: sparse.LeNet5, rng=0, dtype=np.float32)
case(
    "conv2d_jacobian_T", lambda: sparse.conv2d_jacobian_T, weight=numbers(3, 2, 3, 3), input_shape=(2, 5, 5), stride=1,
    padding=1, dilation=1
)
case(
    "avg_pool2d_jacobian_T", lambda: sparse.avg_pool2d_jacobian_T, input_shape=(2, 4, 4), kernel_size=2, stride=2,
    dtype=np.float32
)
case("max_pool2d_jacobian_T", lambda: sparse.max_pool2d_jacobian_T, x=numbers(2, 4, 4), kernel_size=2, stride=2)
case("flatten_jacobian_T", lambda: sparse.flatten_jacobian_T, input_shape=(2, 4), dtype=np.float32)
case("linear_jacobian_T", lambda: sparse.linear_jacobian_T, weight=numbers(2, 3))
case("relu_jacobian_T", lambda: sparse.relu_jacobian_T, x=numbers(3))
for function in sparse.tanh_jacobian_T, sparse.sigmoid_jacobian_T:
    case(function.__name__, lambda f=function: f, y=np.abs(numbers(3)))
case("kinds_of_zeros", lambda: sparse.kinds_of_zeros, jacobian_T=_matrix())
case("prune", lambda: sparse.prune, params=_network().params, rate=0.5, scheme="class_blind")
case("masks_of", lambda: sparse.masks_of, params=_network().params)
case("save_weights", lambda: sparse.save_weights, model=_network(), path=lambda folder: folder / "w.npz")
case("load_weights", lambda: sparse.load_weights, model=_network(), path=_weights)


def _costs():
    return schedule.Network([2, 1, 1], [2, 1, 1], [1, 1, 1], [1, 2, 1])


case(
    "schedule.Network", lambda: schedule.Network, forward=[2, 1], output_grad=[2, 1], weight_grad=[1, 1], sync=[1, 2],
    memory=schedule.Memory()
)
case("schedule.Network.uniform", lambda: schedule.Network.uniform, layers=4, sync=1, memory=schedule.Memory())
case("Memory", lambda: schedule.Memory, activation=1, output_grad=[1, 1], weight_grad=0, inner=2)
case("Assumptions", lambda: schedule.Assumptions, **dict.fromkeys(vars(schedule.Assumptions()), True))
case(
    "data_parallel", lambda: schedule.data_parallel, network=_costs(), policy="reverse_first_k", k=1, memory_limit=None,
    assumptions=schedule.Assumptions()
)
case(
    "pipeline", lambda: schedule.pipeline, network=_costs(), devices=2, micro_batches=2, policy="conventional",
    flush=True, boundary_cost=0, assumptions=schedule.Assumptions()
)
case("optimum", lambda: schedule.optimum, timeline=schedule.pipeline(_costs(), 2, 1), nodes=200)
case("transfer_time", lambda: schedule.transfer_time, size=9, bandwidth=10.0, latency=0.1)
case("split", lambda: schedule.split, network=_network())
case("Regions", lambda: schedule.Regions, network=_costs(), ends=[2, 6], assumptions=schedule.Assumptions())
case(
    "Regions.blocks", lambda: schedule.Regions.blocks, network=_costs(), last=[1, 3],
    assumptions=schedule.Assumptions()
)


case(
    "joint_regions", lambda: schedule.joint_regions, main_regions=schedule.Regions.blocks(_costs(), [1, 3]),
    kernels=[3, 2], memory_limit=99.0, speedup=np.array([[1, 1, 2, 1], [1, 1.6, 1, 1]]), k=0, carry_over=False
)
case("profile", lambda: schedule.profile, network=_network(), x=numbers(2, 1, 4, 4), labels=np.array([1, 2]), rounds=1)
case("Timeline.order", lambda: schedule.pipeline(_costs(), 2, 1).order, worker=1)


def _residual():
    return multigrid.ResidualNetwork(numbers(4, 3, 3), numbers(4, 3), 0.5)


def _states():
    return _residual().forward(numbers(2, 3), backend="numpy")


def _model():
    return multigrid.ResidualModel((4,), [sparse.Linear("o", 4, 3)], 4, [sparse.Linear("c", 3, 2)])


_CYCLES = {"cycles": 1, "tol": 1e-5, "coarsening": 2, "levels": 2, "relaxation": "FCF", "cycle": "V"}
_CYCLES |= {"error": None, "nested_iteration": False, "skip_downcycle": False, "backend": "numpy", "comm": None}
case(
    "ResidualNetwork", lambda: multigrid.ResidualNetwork, weights=numbers(4, 3, 3), biases=numbers(4, 3), h=0.5,
    activation="tanh"
)
case("ResidualNetwork.forward", lambda: _residual().forward, u0=numbers(2, 3), backend="numpy")
case(
    "ResidualNetwork.backward", lambda: _residual().backward, states=lambda _: _states(), grad_output=numbers(2, 3),
    backend="numpy"
)
case("ResidualNetwork.jacobians_T", lambda: _residual().jacobians_T, states=lambda _: _states())
case(
    "ResidualNetwork.parameter_gradients", lambda: _residual().parameter_gradients, states=lambda _: _states(),
    gradients=numbers(5, 2, 3), backend="numpy"
)
case("multigrid.solve", lambda: multigrid.solve, net=_residual(), u0=numbers(2, 3), initial=numbers(5, 2, 3), **_CYCLES)
case(
    "multigrid.solve_adjoint", lambda: multigrid.solve_adjoint, net=_residual(), states=lambda _: _states(),
    grad_output=numbers(2, 3), initial=numbers(5, 2, 3), **_CYCLES
)
case("multigrid.partition", lambda: multigrid.partition, depth=16, ranks=2, coarsening=4, levels=2)
case(
    "ResidualModel", lambda: multigrid.ResidualModel, input_shape=(4,), opening=[sparse.Linear("o", 4, 3)], depth=4,
    h=0.5, kernel_size=3, closing=[sparse.Linear("c", 3, 2)], activation="tanh", solver={"cycles": 1}, rng=0,
    dtype=np.float32
)
case("ResidualModel.forward", lambda: _model().forward, x=numbers(2, 4), backend="numpy")
case(
    "ResidualModel.backward", lambda: _model().backward,
    activations=lambda _: _model().forward(numbers(2, 4), backend="numpy"), grad_logits=numbers(2, 2), method="linear",
    backend="numpy", levels=None
)


def _graph():
    graph = graphs.Graph("g")
    graph.output(y=graphs.tanh(graph.input("x", "B", "H") @ graph.parameter("w", "H", "H")))
    return graph


case("Graph", lambda: graphs.Graph, name="g")
case("Graph.run", lambda: _graph().run, values={"x": numbers(2, 3), "w": numbers(3, 3)}, wanted=["y"])
case(
    "Graph.gradients", lambda: _graph().gradients, values={"x": numbers(2, 3), "w": numbers(3, 3)},
    grad_outputs={"y": numbers(2, 3)}, saved=[]
)
for function in graphs.tanh, graphs.relu, graphs.sigmoid:
    case(function.__name__, lambda f=function: f, node=_graph()["x"])
case("variants.parameters", lambda: variants.parameters, input_size=2, hidden_size=3, rng=0, dtype=np.float32)
case("variants.count", lambda: variants.count, variant="moved", T=3, B=2, I=2, H=3)
case("distributed.partition", lambda: distributed.partition, steps=10, ranks=3)
case("scan", lambda: scan, operands=[numbers(2), Dense(numbers(2, 2))], method="linear")
case("trace", lambda: trace.trace, n=5, method="truncated", levels=1, length=None)
case("scan_schedule", lambda: timeline.scan_schedule, trace=trace.trace(5, "blelloch"), workers=2)
case(
    "timeline.check", lambda: timeline.check, events=[timeline.Event(0, 0, 1, "a"), timeline.Event(1, 1, 1, "b")],
    needs=[[], [0]]
)
case("draw.tree", lambda: draw.tree, trace=trace.trace(2, "linear"), ax=None)


_VECTOR_ADD = pathlib.Path(__file__).parent / "ptx" / "kernels" / "vector_add.ptx"
case(
    "ptx.run", lambda: lambda kernel, grid, block, one, two, out, size, **how: ptx.run(
        kernel, grid, block, one, two, out, size, **how
    ), kernel=_VECTOR_ADD, grid=1, block=(32, 1), one=numbers(32), two=numbers(32), out=numbers(32), size=32,
    shared=0, entry="vector_add"
)
case("ptx.device", lambda: lambda watch: ptx.device(watch).__enter__(), watch=False)
case("ptx.empty", lambda: ptx.empty, shape=(2, 3), dtype=np.float32)
case("puzzles.hint", lambda: puzzles.hint, name="diamond", depth=1)
case("puzzles.grade", lambda: lambda only: puzzles.grade(only=only), only=("diamond",))
case("puzzles.solution", lambda: puzzles.solution, name="diamond")
case("draw.timeline", lambda: draw.timeline, events=[timeline.Event(0, 0, 1, "a")], ax=None)


def badly_shown(*things):
    """Return reprs of this package's things that do not say in a line, without numbers, what they are."""
    flat = [thing for each in things for thing in (each[:3] if isinstance(each, list) else [each])]
    flat = [thing for thing in flat if not isinstance(thing, np.ndarray)]
    ours = [thing for thing in flat if type(thing).__module__.startswith("bppsa_nb.")]
    form = r"(?!.*(object at 0x|array\(|<))(Timeline|{})[( ].{{0,380}}\Z"
    return [repr(thing) for thing in ours if not re.match(form.format(type(thing).__name__), repr(thing))]
