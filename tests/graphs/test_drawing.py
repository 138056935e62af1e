import itertools

import matplotlib.pyplot as plt
import pytest
from matplotlib.patches import Circle

from bppsa_nb.graphs import Graph, drawing, library, tanh
from bppsa_nb.papers.gru import graph_rules

GRAPHS = graph_rules.graphs() | {"GRU": library.gru(), "GRU, reset moved": library.gru_moved_reset()}
BOTH = list(itertools.product(GRAPHS, ["forward", "backward"]))


@pytest.fixture
def ax():
    fig, ax = plt.subplots(figsize=(8.8, 3.2), layout="constrained")
    yield ax
    plt.close(fig)


def plus_signs(ax):
    return sum(text.get_text() == "+" for text in ax.texts)


def dots(ax):
    return sum(isinstance(patch, Circle) and patch.radius < 0.1 for patch in ax.patches)


@pytest.mark.parametrize("name", GRAPHS)
def test_sums_and_copies_change_places(name, ax):
    graph = GRAPHS[name]
    sums = sum(node.op == "sum" for node in graph.nodes)
    splits = sum(uses - 1 for uses in graph.copies().values())
    drawing.draw(graph, ax)
    assert (plus_signs(ax), dots(ax)) == (sums, splits)
    ax.clear()
    drawing.draw(graph, ax, "backward")
    derived = sum(len(node.inputs) - 1 for node in graph.backward().nodes if node.op == "sum")
    assert (plus_signs(ax), dots(ax)) == (derived, sums) == (splits, sums)


@pytest.mark.parametrize("name, direction", BOTH)
def test_what_reads_activations_stands_out(name, direction, ax):
    graph = GRAPHS[name]
    needs = graph.backward().needs
    drawing.draw(graph, ax, direction)
    thick = [patch for patch in ax.patches if patch.get_linewidth() > 2]
    assert len(thick) == len(needs)
    centers = {tuple(round(float(x), 6) for x in patch.get_extents().get_points().mean(axis=0)) for patch in thick}
    at = {tuple(round(float(x), 6) for x in ax.transData.transform(graph.places[each][:2])) for each in needs}
    assert centers == at
    listed = [text.get_text() for text in ax.texts if text.get_color() == drawing.NEEDS]
    names = {each: ", ".join(f"${graph.labels.get(n, n)}$" for n in read) for each, read in needs.items()}
    assert sorted(listed) == (sorted(names.values()) if direction == "backward" else [])


@pytest.mark.parametrize("name", GRAPHS)
def test_wires_run_up_and_to_the_right_and_around_the_nodes(name):
    graph = GRAPHS[name]
    drawn = [node for node in graph.nodes if node.op != "repeat"]
    for node in drawn:
        wires = drawing.routes(graph, node)
        assert len(wires) == graph.copies().get(node.name, 1)
        for wire in wires:
            for (x0, y0), (x1, y1) in itertools.pairwise(wire):
                assert (x1 > x0 and y1 == y0) or (x1 == x0 and y1 > y0)
                for other in drawn:
                    x, y, *_ = graph.places[other.name]
                    inside = (x0 < x < x1 and abs(y - y0) < 0.3) or (y0 < y < y1 and abs(x - x0) < 0.3)
                    assert not inside or other is node, f"{node.name} runs through {other.name}"


@pytest.mark.parametrize("name, direction", BOTH)
def test_texts_keep_clear_of_each_other(name, direction, ax):
    drawing.draw(GRAPHS[name], ax, direction)
    ax.get_figure().draw_without_rendering()
    boxes = [(text.get_text(), text.get_window_extent()) for text in ax.texts if text.get_text()]
    for (one, box), (two, other) in itertools.combinations(boxes, 2):
        assert not box.overlaps(other), f"{one} and {two}"
    outside = ax.get_figure().bbox
    assert all(outside.x0 <= box.x0 and box.x1 <= outside.x1 for _, box in boxes)


@pytest.mark.parametrize("direction, prefix", [("forward", ""), ("backward", r"\delta")])
def test_ends_of_wires_carry_their_names(direction, prefix, ax):
    drawing.draw(library.gru(), ax, direction)
    texts = [text.get_text() for text in ax.texts]
    for name in ("h_{t-1}", "h_t", "W_r x_t", "W_z x_t", "W x_t", "U_r", "U_z", "U", "r_t", "z_t", "c_t"):
        assert (rf"$\delta_{{{name}}}$" if prefix else f"${name}$") in texts


def test_junctions_are_where_wires_part():
    graph = library.gru_moved_reset()
    both = {(1, 0), (0, 1)}  # to the right, and up
    assert drawing.junctions(drawing.routes(graph, graph["h"])) == {(0.9, y): both for y in (1.1, 2.5, 3.9)}
    assert drawing.junctions(drawing.routes(graph, graph["z"])) == {(13.1, 1.1): both}
    assert drawing.junctions(drawing.routes(graph, graph["r"])) == {}


def test_graphs_that_cannot_be_drawn_are_errors(ax):
    with pytest.raises(ValueError, match="direction must be one of 'forward', 'backward', got 'up'"):
        drawing.draw(library.gru(), ax, "up")
    graph = Graph("g")
    graph.output(b=tanh(graph.input("a", "B", "H")))
    graph.place(a=(0, 0))
    with pytest.raises(ValueError, match="to draw 'g', all its nodes need places; not placed: b"):
        drawing.draw(graph, ax)
    graph.place(b=(1, 0))
    assert drawing.draw(graph, ax) is ax


def test_legend_explains_the_colors():
    labels = [handle.get_label() for handle in drawing.legend_handles()]
    assert "reads activations on the way back" in labels
