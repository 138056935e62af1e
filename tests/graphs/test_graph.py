import itertools
from functools import reduce

import numpy as np
import pytest
from comparing import central_differences
from hypothesis import given
from hypothesis import strategies as st
from texts import beside, refuses

from bppsa_nb.cells import layer
from bppsa_nb.cells.gru import GRU
from bppsa_nb.cells.lstm import LSTM
from bppsa_nb.cells.rnn import RNN
from bppsa_nb.chains.methods import go_back
from bppsa_nb.graphs import Graph, library, relu, sigmoid, tanh, variants

SIZES = {"B": 3, "H": 4, "I": 5, "O": 2}


def lstm():
    """A step of long short-term memory, which has two states."""
    g = Graph("LSTM")
    h, c = g.input("h", "B", "H"), g.input("c", "B", "H")
    i, f, new, o = (
        function((g.input(f"x_{k}", "B", "H") + h @ g.parameter(f"U_{k}", "H", "H").T).named(f"a_{k}")).named(k)
        for k, function in (("i", sigmoid), ("f", sigmoid), ("g", tanh), ("o", sigmoid))
    )
    c_next = ((f * c).named("old") + (i * new).named("new")).named("c_next")
    g.output(h_next=o * tanh(c_next).named("t"), c_next=c_next)
    return g


GRAPHS = {
    "fully connected": library.fully_connected, "vanilla RNN": library.vanilla_rnn, "LSTM": lstm, "GRU": library.gru,
    "GRU, reset moved": library.gru_moved_reset, "GRU, reset moved, bias": lambda: library.gru_moved_reset(bias=True),
    **{name: (lambda name=name: library.operations()[name]) for name in library.operations()},
}
GRUS = [name for name in GRAPHS if name.startswith("GRU")]


def sources(graph):
    return [node for node in graph.nodes if not node.inputs]


def random_values(graph, rng):
    return {node.name: rng.normal(size=[SIZES[size] for size in node.shape]) for node in sources(graph)}


def random_errors(graph, rng):
    return {name: rng.normal(size=[SIZES[size] for size in node.shape]) for name, node in graph.outputs.items()}


def check_by_differences(graph, values, errors):
    def loss():
        out = graph.run(values)
        return sum((out[name] * error).sum() for name, error in errors.items())

    found, expected = graph.gradients(values, errors), central_differences(loss, values)
    assert list(found) == [node.name for node in sources(graph)]
    for name in values:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("name", GRAPHS)
def test_derived_gradients_are_central_differences(name):
    graph, rng = GRAPHS[name](), np.random.default_rng(0)
    check_by_differences(graph, random_values(graph, rng), random_errors(graph, rng))


OPERATIONS = {
    "sum": lambda a, b, U: a + b, "multiply": lambda a, b, U: a * b, "matmul": lambda a, b, U: a @ U,
    "matmul_T": lambda a, b, U: a @ U.T, "gram": lambda a, b, U: tanh(a @ (a.T @ b)),
    "difference": lambda a, b, U: a - b, "negate": lambda a, b, U: -a, "one_minus": lambda a, b, U: 1 - a,
    "sigmoid": lambda a, b, U: sigmoid(a), "tanh": lambda a, b, U: tanh(a),
}


def grow(draw, graph, nodes, U, operations, most):
    """Add nodes to a graph, each of which takes two drawn from those there are; return those that nobody takes."""
    for _ in range(draw(st.integers(0, most))):
        left, right = (nodes[draw(st.integers(0, len(nodes) - 1))] for _ in range(2))
        nodes.append(OPERATIONS[draw(st.sampled_from(operations))](left, right, U))
    taken = {each for node in graph.nodes for each in node.inputs}
    return [node for node in graph.nodes if node not in taken]


def random_graph(draw):
    graph = Graph("random")
    nodes = [graph.input("a", "B", "H"), graph.input("b", "B", "H")]
    U = graph.parameter("U", "H", "H")
    bias = graph.parameter("bias", "H")
    nodes.append(nodes[0] @ U.T + bias)
    loose = grow(draw, graph, nodes, U, list(OPERATIONS), 8)
    graph.output(**{f"out_{i}": node for i, node in enumerate(loose)})
    if draw(st.booleans()):  # an output may be used inside as well
        graph.output(also=nodes[draw(st.integers(0, len(nodes) - 1))])
    return graph


@given(st.data())
def test_derived_gradients_of_random_graphs_are_central_differences(data):
    graph, rng = random_graph(data.draw), np.random.default_rng(0)
    values = {name: 0.5 * value for name, value in random_values(graph, rng).items()}
    check_by_differences(graph, values, random_errors(graph, rng))


@pytest.mark.parametrize("flips", list(itertools.product([False, True], repeat=2)), ids=str)
def test_matmul_keeps_the_order_and_transposes_what_it_read(flips):
    graph = Graph("product")
    a = graph.input("a", *("BH" if not flips[0] else "HB"))
    b = graph.input("b", *("HO" if not flips[1] else "OH"))
    graph.output(c=(a.T if flips[0] else a) @ (b.T if flips[1] else b))
    rng = np.random.default_rng(0)
    check_by_differences(graph, random_values(graph, rng), random_errors(graph, rng))


def test_derived_rules_read_as_the_article_s():
    assert str(library.operations()["sum"].backward()) == "grad_a = grad_c\ngrad_b = grad_c"
    assert str(library.operations()["copy"].backward()) == "grad_a = grad_b + grad_c"
    assert str(library.operations()["multiply"].backward()) == "grad_a = grad_c * b\ngrad_b = grad_c * a"
    assert str(library.operations()["matmul"].backward()) == "grad_a = grad_c @ b.T\ngrad_b = a.T @ grad_c"


@pytest.mark.parametrize("name, saved", beside(__file__)["saved"].items())
def test_saved_activations_are_the_article_s(name, saved):
    back = GRAPHS[name]().backward()
    assert sorted(back.saved) == sorted(saved)
    read = {each for needed in back.needs.values() for each in needed}
    assert read - {node.name for node in back.nodes if node.op == "parameter"} == set(saved)


def test_every_multiplication_and_nonlinearity_needs_activations_and_nothing_else_does():
    for graph in (make() for make in GRAPHS.values()):
        red = {n.name for n in graph.nodes if n.op in ("multiply", "matmul", "sigmoid", "tanh", "relu")}
        assert set(graph.backward().needs) == red


@pytest.mark.parametrize("name", GRAPHS)
def test_a_copy_is_a_sum_on_the_way_back_and_a_sum_a_copy(name):
    graph = GRAPHS[name]()
    back = graph.backward()
    sums = {node.rule_of: len(node.inputs) for node in back.nodes if node.op == "sum"}
    assert sums == graph.copies()
    for node in graph.nodes:
        if node.op == "sum":  # both inputs are sent the very same error term
            rules = [each for each in back.nodes if each.rule_of == node.name]
            assert all(each.op == "sum" for each in rules)  # at most that of its own copy


@given(st.data())
def test_a_linear_graph_derived_twice_is_itself(data):
    graph = Graph("linear")
    nodes = [graph.input("a", "B", "H")]
    U = graph.parameter("U", "H", "H")
    nodes.append(nodes[0] @ U.T)
    loose = grow(data.draw, graph, nodes, U, ["sum", "matmul", "matmul_T"], 6)
    graph.output(c=reduce(lambda a, b: a + b, loose))
    rng = np.random.default_rng(0)
    values = random_values(graph, rng)
    out = graph.run(values)
    twice = graph.backward().backward()
    # The error term of the error term of a runs through the graph as a did.
    known = {node.name: out[node.name] if node.name in out else rng.normal(size=(3, 4)) for node in sources(twice)}
    zero = {name: np.zeros([SIZES[s] for s in twice[name].shape]) for name in known if name.startswith("grad_grad_")}
    known |= zero | {"grad_grad_grad_a": values["a"]}
    np.testing.assert_allclose(twice.run(known)["grad_grad_grad_c"], out["c"], rtol=1e-12)


@pytest.mark.parametrize("name", GRUS)
def test_whatever_is_saved_the_others_come_out_the_same(name):
    graph, read = GRAPHS[name](), GRAPHS[name]().backward().saved
    values = random_values(graph, np.random.default_rng(0))
    expected = graph.run(values)
    for count in (0, 1, 2):
        for saved in itertools.combinations(["r", "z", "c", "keep", "old", "a_c", "U_rh"], count):
            found = graph.run({each: expected[each] for each in saved} | values, read)
            for each in read:
                np.testing.assert_array_equal(found[each], expected[each])


def test_what_is_given_is_not_computed_again():
    graph, rng = library.gru_moved_reset(), np.random.default_rng(0)
    assert [node.name for node in graph.path(["h", "U", "r", "z", "c"], ["Uh", "keep"])] == ["Uh", "keep"]
    assert [n.name for n in graph.path(["x_c", "r", "z", "Uh"], ["c", "keep"])] == ["rUh", "a_c", "c", "keep"]
    values = random_values(graph, rng)
    out = graph.run({"z": values["h"], "h": values["x_r"]}, ["keep", "old"])
    np.testing.assert_array_equal(out["old"], (1 - values["h"]) * values["x_r"])
    assert set(out) == {"z", "h", "keep", "old"}


def test_forward_is_the_equation():
    rng = np.random.default_rng(0)
    v = random_values(library.vanilla_rnn(), rng)
    np.testing.assert_array_equal(library.vanilla_rnn().run(v)["h_next"], np.tanh(v["x"] + v["h"] @ v["U"].T))
    v = random_values(library.gru_moved_reset(), rng)  # with a bias, it is held to `variants` below
    biased = library.gru_moved_reset(bias=True).run(v | {"b_u": np.zeros(4)})["h_next"]
    np.testing.assert_allclose(library.gru_moved_reset().run(v)["h_next"], biased, rtol=1e-12)


@pytest.mark.parametrize("variant", variants.NAMES)
def test_derived_gradients_are_the_hand_written_ones(variant):
    moved, rng = variant in ("moved", "saved"), np.random.default_rng(0)
    graph = library.gru_moved_reset(bias=True) if moved else library.gru()
    params = variants.parameters(SIZES["I"], SIZES["H"], rng, np.float64)
    x, h0, delta = rng.normal(size=(1, 3, 5)), rng.normal(size=(3, 4)), rng.normal(size=(1, 3, 4))
    activations = variants.forward(variant, params, x, h0)
    expected = variants.backward(params, x, activations, delta)

    products = x[0] @ params["weight_ih"].T + params["bias_ih"] + params["bias_hh"]
    if moved:
        products[:, 8:] -= params["bias_hh"][8:]  # r multiplies this bias, so it is inside the graph
    values = dict(zip(["x_r", "x_z", "x_c"], np.split(products, 3, axis=1), strict=True)) | {"h": h0}
    values |= dict(zip(["U_r", "U_z", "U"], np.split(params["weight_hh"], 3), strict=True))
    values |= {"b_u": params["bias_hh"][8:]} if moved else {}
    # What the variant keeps is enough for the derived graph, too.
    found = graph.gradients(values, {"h_next": delta[0]})

    np.testing.assert_allclose(graph.run(values)["h_next"], activations.hidden[1], rtol=1e-12)
    errors = np.concatenate([found["x_r"], found["x_z"], found["x_c"]], axis=1)
    weight_hh = np.concatenate([found["U_r"], found["U_z"], found["U"]])
    bias_ih = errors.sum(axis=0)
    bias_hh = np.concatenate([bias_ih[:8], found["b_u"]]) if moved else bias_ih
    ours = {"weight_ih": errors.T @ x[0], "weight_hh": weight_hh, "bias_ih": bias_ih, "bias_hh": bias_hh}
    ours |= {"x": (errors @ params["weight_ih"])[None], "h0": found["h"]}
    assert ours.keys() == expected.keys()
    for name in ours:
        np.testing.assert_allclose(ours[name], expected[name], rtol=1e-10, atol=1e-13, err_msg=name)


def two_graphs():
    return Graph("one").input("a", "B", "H"), Graph("two").input("a", "B", "H")


def one_graph():
    graph = Graph("g")
    return graph, graph.input("a", "B", "H"), graph.input("b", "H", "B")


@pytest.mark.parametrize("text, message", beside(__file__)["malformed"])
def test_malformed_graphs_are_errors(text, message):
    names = dict(zip("gab", one_graph(), strict=True))
    refuses(text, message, globals() | names)


@pytest.mark.parametrize("join", [lambda a, b: a + b, lambda a, b: a * b, lambda a, b: a @ b.T])
def test_graphs_do_not_mix(join):
    with pytest.raises(ValueError, match=r"takes nodes of one graph, got 'a' of 'two'"):
        join(*two_graphs())
    with pytest.raises(ValueError, match=r"c takes nodes of one graph, got 'a' of 'two'"):
        two_graphs()[0].graph.output(c=two_graphs()[1])


def test_float32_stays_float32():
    graph = library.gru_moved_reset(bias=True)
    values = {name: v.astype(np.float32) for name, v in random_values(graph, np.random.default_rng(0)).items()}
    assert {value.dtype for value in graph.run(values).values()} == {np.dtype(np.float32)}
    grads = graph.gradients(values, {"h_next": np.ones((3, 4), np.float32)})
    assert {value.dtype for value in grads.values()} == {np.dtype(np.float32)}


def test_a_difference_is_one():
    graph = Graph("difference")
    a, b = graph.input("a", "B", "H"), graph.input("b", "B", "H")
    graph.output(c=a - b, d=-a)
    values = {"a": np.array([[3.0, 5.0]]), "b": np.array([[1.0, 7.0]])}
    found = graph.run(values)
    np.testing.assert_array_equal(found["c"], [[2, -2]])
    np.testing.assert_array_equal(found["d"], [[-3, -5]])


def test_a_relu_passes_nothing_where_it_put_out_zero():
    graph = Graph("relu")
    graph.output(b=relu(graph.input("a", "H")))
    grads = graph.gradients({"a": np.array([-1.0, 0.0, 2.0])}, {"b": np.array([5.0, 5.0, 5.0])})
    np.testing.assert_array_equal(grads["a"], [0, 0, 5])


# Of a cell of `bppsa_nb.cells`: its graph, and the gates there in the order of weights; the GRU's z is 1 - z there.
CELLS = {
    "RNN": (RNN, library.vanilla_rnn, [""]),
    "GRU": (GRU, lambda: library.gru_moved_reset(bias=True), ["_r", "_z", "_c"]),
    "LSTM": (LSTM, lstm, ["_i", "_f", "_g", "_o"]),
}


@pytest.mark.parametrize("name", CELLS)
def test_derived_gradients_are_those_of_the_cells(name):
    """A step of each, and back from gradients at all its states: derived from the graph, and written by hand."""
    kind, make, gates = CELLS[name]
    cell, graph, rng = kind.cell, make(), np.random.default_rng(0)
    B, H = SIZES["B"], SIZES["H"]
    from_x, start, grads = rng.normal(size=(len(gates), B, H)), *rng.normal(size=(2, cell.states, B, H))
    weight = rng.normal(size=(len(gates), H, H))
    flip = np.array([1 if gate != "_z" else -1 for gate in gates])  # sigmoid(-a) is 1 - sigmoid(a)
    values = dict(zip(("h", "c"), start, strict=False))
    for k, gate in enumerate(gates):
        values |= {f"x{gate}": flip[k] * from_x[k], "U" if gate in ("", "_c") else f"U{gate}": flip[k] * weight[k]}
    values |= {"b_u": np.zeros(H)} if name == "GRU" else {}
    errors = dict(zip(("h_next", "c_next"), grads, strict=False))
    out, found = graph.run(values), graph.gradients(values, errors)

    none = np.zeros(len(gates) * H)
    x, identity = from_x.swapaxes(0, 1).reshape(1, B, -1), np.eye(len(gates) * H)
    states, kept = saved = layer.new_saved(cell, start, 1)
    layer.forward(cell, x, saved, identity, weight.reshape(-1, H), none, none)
    for s, state in enumerate(errors):
        np.testing.assert_allclose(states[s, 1], out[state], rtol=1e-12, atol=1e-14)
    chain, after = layer.chain(cell, weight.reshape(-1, H), states, kept), np.concatenate(list(grads), axis=1)
    before = go_back(chain, after, None, "numpy", "linear")
    of_states = np.hstack([found[state] for state in ("h", "c")[: cell.states]])
    np.testing.assert_allclose(before[0], of_states, atol=1e-13)
    grad_preacts = layer.preact_gradients(cell, states, kept, before)
    at_inputs = layer.input_gradients(cell, identity, grad_preacts)[0]
    expected = np.hstack([flip[k] * found[f"x{gate}"] for k, gate in enumerate(gates)])
    np.testing.assert_allclose(at_inputs, expected, atol=1e-13)
