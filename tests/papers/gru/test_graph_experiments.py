from measuring import measure

from bppsa_nb.papers.gru import save_or_recompute


def test_save_or_recompute_counts_what_it_times():
    sizes = {"SIZES": {"B": 2, "H": 8}, "CHAIN": {"B": 2, "H": 4}, "LENGTHS": (4, 9), "SECONDS": 0.0}
    table = measure(save_or_recompute, **{name: {"quick": value} for name, value in sizes.items()})
    subsets = table[table["part"] == "subset"]
    assert len(subsets) == 32 and (table["seconds"] > 0).all() and (table["rounds"] == 3).all()
    named = subsets[subsets["name"] != "another"].set_index("name")[["kept", "kept_inputs", "products", "launches"]]
    assert named.T.to_dict("list") == {
        "nothing": [0, 3, 3, 8], "variant 3": [3, 0, 1, 1], "variant 4": [3, 1, 0, 4], "everything": [5, 0, 0, 0],
    }
    work = subsets.set_index("name")["work"]
    assert (work["nothing"], work["variant 3"], work["variant 4"], work["everything"]) == (3 * 8 + 8, 8 + 1, 4, 0)
    chain = table[table["part"] == "chain"].set_index(["T", "name"])[["steps", "held"]]
    assert chain.loc[4, "everything"].tolist() == [4, 24] and chain.loc[9, "everything"].tolist() == [9, 54]
    assert chain.loc[9, "h every √T steps"].tolist() == [18, 3 - 1 + 18]
    assert chain.loc[4, "nothing"].tolist() == [14, 7] and chain.loc[9, "nothing"].tolist() == [54, 7]


def test_calls_take_turns():
    ran = []
    found = save_or_recompute.timed([lambda: ran.append("a"), lambda: ran.append("b")], seconds=0)
    assert ran == ["a", "b"] * 4 and len(found) == 2  # once before, untimed
    for timed in found:
        assert timed["rounds"] == 3 and 0 <= timed["seconds_low"] <= timed["seconds"] <= timed["seconds_high"]
