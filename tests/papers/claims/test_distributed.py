import pandas
import pytest

from bppsa_nb.papers.bppsa import ranks_modelled
from bppsa_nb.papers.claims import claims, distributed
from bppsa_nb.papers.claims.claim import MISSED, REPRODUCED


def judge(where, table):
    (claim,) = [each for each in distributed.claims() if each.where == where]
    return claim.check(table)


def ran(combined=3, memory=(40e6, 10e6)):
    """One and four ranks on two lengths; combined is on the fourth rank, of the longer chain."""
    rows = []
    for T in (1000, 30000):
        for p, size in zip((1, 4), memory, strict=True):
            for rank in range(p):
                calls = 0 if p == 1 else combined if (rank, T) == (3, 30000) else 3
                row = {"part": "rank", "ranks": p, "steps": T, "rank": rank, "combined": calls}
                rows.append(row | {"method": "chunked", "done_by": "chunked", "memory": size})
    return pandas.DataFrame([*rows, {"part": "message"}])


def modelled(scan, pipeline=(8.0, 4.0, 9.0), dense=(500.0, 50.0, 5.0)):
    """Seconds, and MiB, on 1, 4 and 1024 ranks; rank after rank takes 8 seconds everywhere."""
    rows, ranks = [], (1, 4, 1024)
    for network in ("RNN", "narrow", "wide"):
        for task in ("backward", "step"):
            roads = {"scan": scan, "rank after rank": (8.0, 8.0, 8.0), "GPipe": (9.0, 5.0, 7.0)}
            for road, seconds in (roads | {ranks_modelled.LONGER: (8.0, 6.4, 2.0)}).items():
                found = zip(ranks, seconds, strict=True)
                same = {"part": "time", "network": network, "task": task, "road": road, "width": 20}
                rows += [same | {"link": ranks_modelled.FAST, "ranks": p, "seconds": s} for p, s in found]
        for road, sizes in (
            ("scan", dense if network == "wide" else (10.0, 5.0, 1.0)),
            ("GPipe", pipeline),
            ("GPipe, the same 16 samples", (1.0, 0.5, 0.1)),
        ):
            same = {"part": "memory", "network": network, "road": road}
            rows += [same | {"ranks": p, "memory": 2**20 * s} for p, s in zip(ranks, sizes, strict=True)]
    wide = [row | {"part": "width", "network": "RNN of 80", "width": 80} for row in rows if row["network"] == "narrow"]
    return pandas.DataFrame(rows + [row for row in wide if "task" in row])


def test_all_are_in_the_report():
    assert {each.where for each in distributed.claims()} <= {each.where for each in claims()}
    assert len({each.where for each in distributed.claims()}) == len(distributed.claims())


@pytest.mark.parametrize("combined, told, verdict", [(3, ", whatever", REPRODUCED), (4, ", depending on T", MISSED)])
def test_calls_are_few_and_the_same_for_all_lengths(combined, told, verdict):
    ours, found = judge("§1, §3.6", ran(combined))
    assert found == verdict and f"{combined} on 4 ranks{told}" in ours


def test_calls_beyond_the_limit_are_a_miss():
    table = ran()
    table.loc[table["ranks"] == 4, "combined"] = 5
    assert judge("§1, §3.6", table)[1] == MISSED


@pytest.mark.parametrize("four, verdict", [(10e6, REPRODUCED), (12e6, REPRODUCED), (13e6, MISSED)])
def test_memory_falls_as_one_over_ranks(four, verdict):
    ours, found = judge("§3.6, on ranks", ran(memory=(40e6, four)))
    assert found == verdict and ours.startswith("MiB above what a rank had before, T = 30,000: 38.1 on 1, ")
    with pytest.raises(LookupError):
        judge("§3.6, on ranks", ran().drop(columns="memory").assign(memory=float("nan")))


@pytest.mark.parametrize("where", ["§2.2, backward pass", "§2.2, whole step"])
def test_what_is_modelled_decides_nothing(where):
    ours, found = judge(where, modelled((8.0, 16.0, 2.0)))
    assert found == distributed.NEEDS_RANKS
    assert "0.5× on 4 ranks, 4× on 1024; above 1 from 1024 on; with a longer run at the loss 1.25× and 4×; " in ours
    assert ours.endswith("fastest on 1024, 4× the best of the other")
    never, _ = judge(where, modelled((8.0, 16.0, 12.0)))
    assert "never above 1; " in never and never.endswith("fastest on 1, 1× the best of the other")


def test_roads_are_told_by_their_best():
    ours, found = judge("§2.2, other roads", modelled((8.0, 16.0, 2.0)))
    assert (
        "RNN, H = 20: scan 2e+03, uneven scan 2e+03, rank after rank 8e+03, GPipe 5e+03" in ours
        and found == distributed.NEEDS_RANKS
    )


@pytest.mark.parametrize("pipeline, verdict", [((8.0, 4.0, 9.0), REPRODUCED), ((8.0, 4.0, 2.0), MISSED)])
def test_a_pipeline_must_need_more_space_again(pipeline, verdict):
    ours, found = judge("§2.2, Appendix B", modelled((8.0, 16.0, 2.0), pipeline))
    assert found == verdict and "the scan's falls to 1" in ours


@pytest.mark.parametrize("dense, verdict", [((500.0, 50.0, 5.0), REPRODUCED), ((10.0, 5.0, 1.0), MISSED)])
def test_space_of_jacobians_depends_on_their_entries(dense, verdict):
    ours, found = judge("§3.6, M_Jacob", modelled((8.0, 16.0, 2.0), dense=dense))
    assert found == verdict and "RNN, H = 20: from 1024 ranks on (1.25× on one)" in ours


def test_widths_are_told():
    ours, found = judge("§3.6, width", modelled((8.0, 16.0, 2.0)))
    assert (
        ours.endswith("on up to 1024 ranks: H = 80: from 1024 ranks, 4× at best") and found == distributed.NEEDS_RANKS
    )
    assert judge("§3.6, width", modelled((8.0, 16.0, 12.0)))[0].endswith("H = 80: never")
