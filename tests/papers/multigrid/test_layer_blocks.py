import numpy as np
from measuring import measure

from bppsa_nb import multigrid
from bppsa_nb.papers.multigrid import figure_05_concurrent_blocks as concurrent_blocks
from bppsa_nb.papers.multigrid import figures_02_03_layer_blocks as layer_blocks
from bppsa_nb.schedule import events as timeline
from bppsa_nb.schedule.events import Event


def test_values_tell_their_way():
    assert layer_blocks.decode(5 * 2.0**32 + 2**5 + 2**6) == (5, [5, 6])


def convolutions(depth):
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((depth, 2, 2, 3, 3), np.float32)
    return multigrid.ResidualNetwork(weights, np.ones((depth, 2), np.float32), 1 / depth, "relu"), rng


def test_every_block_of_a_cycle_is_clocked_once():
    net, rng = convolutions(18)
    u0 = rng.standard_normal((1, 2, 5, 4), np.float32)
    events = concurrent_blocks.clock(net, u0, {"cycles": 1, "coarsening": 4, "levels": 2})
    timeline.check(events, [()] * len(events))  # a thread does one thing at a time
    # F, F after C, and F after the correction: five blocks each; five coarse steps, and the coarsest level in one go.
    found = [(event.kind, event.label) for event in events]
    fine, coarse = [f"block {i}" for i in range(5)], ["block 0", *(f"block {i}" for i in range(5))]
    expected = [("level 0", block) for block in 3 * fine] + [("level 1", block) for block in coarse]
    assert sorted(found) == sorted(expected)
    assert min(event.start for event in events) == 0
    assert len(concurrent_blocks.clock(net, u0, {"levels": 1})) == 1


def test_clocking_changes_nothing(monkeypatch):
    solve, solved = multigrid.solve, []
    monkeypatch.setattr(multigrid, "solve", lambda *args, **options: solved.append(solve(*args, **options)))
    net, rng = convolutions(18)
    u0 = rng.standard_normal((3, 2, 5, 4), np.float32)
    concurrent_blocks.clock(net, u0, {"cycles": 2})
    np.testing.assert_array_equal(solved[0].states, solve(net, u0, cycles=2, backend="cpu").states)


def test_what_runs_at_the_same_time_is_counted():
    events = [Event(0, 0, 2, ""), Event(1, 1, 2, ""), Event(0, 2, 5, ""), Event(2, 2.5, 0.2, "")]
    assert concurrent_blocks.most_at_once(events) == 3
    assert concurrent_blocks.most_at_once(events[:3]) == 2
    assert concurrent_blocks.most_at_once([]) == 0


def test_loop_and_cycle_are_clocked():
    table = measure(concurrent_blocks, SIZES={"quick": (16, 2, 3)})
    runs = table[table["part"] == "run"].groupby("method")
    assert runs.size().to_dict() == {"cycle": 3, "loop": 3}
    assert runs["blocks"].first().to_dict() == {"cycle": 3 * 4 + 4 + 1, "loop": 1}
    assert table.loc[table["part"] == "run", "most_at_once"].max() <= table["threads"].max()
