"""Every figure leads back: to the lines that made it, its table, the cells that show it, and the claims it decides."""

import ast
import csv
import re
from collections import defaultdict

import numpy as np
import pytest

from bppsa_nb.machine import files
from bppsa_nb.papers import cli, experiment, experiments, explain, notebooks, provenance, tables, verdicts
from bppsa_nb.papers.progress import Progress

NAMES = experiments.names()
ROOT = files.root()
with experiments.references():
    RECORDED = [(name, *each) for name in NAMES for each in experiments.recordings(name)]
READING = [name for name in NAMES if experiments.load(name).FIGURE.origin == "collected"]


def explained(name, scale="quick", device=None):
    """Explain a reference; not what is in figures/, which other commands write."""
    with experiments.references():
        return explain.explain(name, scale, device)


@pytest.mark.parametrize("name", NAMES)
def test_lines_are_those_that_define_both_functions(name):
    found = explained(name)
    for lines, function in ((found.measured, "measure"), (found.drawn, "plot")):
        text = (ROOT / lines.path).read_text(encoding="utf-8").splitlines()
        assert text[lines.first - 1].startswith(f"def {function}(") and str(lines) == f"{lines.path}:{lines.first}"
        after = next((line for line in text[lines.last :] if line.strip()), "")
        assert text[lines.last - 1].startswith("    ") and not after.startswith(" ")


@pytest.mark.parametrize("name, device, scale", RECORDED)
def test_a_table_is_there_with_all_its_columns_and_what_it_was_made_from(name, device, scale):
    found = explained(name, scale, device)
    path = ROOT / found.table
    described = files.read_json(path.with_suffix(".json"))
    assert found.lacking is None and found.origin == described["provenance"] | {"reference": True}
    assert (found.origin["name"], found.origin["device"], found.origin["scale"]) == (name, device, scale)
    with open(path, encoding="utf-8") as file:
        assert [each["name"] for each in found.columns] == csv.DictReader(file).fieldnames
    assert all(each["type"] == described["columns"][each["name"]] for each in found.columns)
    assert [each for each in found.columns if "dictionary" in each["means"] or len(each["means"]) < 3] == []
    assert all((ROOT / source).is_file() and source != found.table for source in found.sources)
    said = explain.text(found, [])
    for each in (found.title, found.measured, found.drawn, found.table, found.origin["commit"][:10], *found.commands):
        assert str(each) in said
    for each in found.columns:
        words = [each["name"], *filter(None, [each["unit"]]), each["means"]]
        assert re.search("^  " + " +".join(map(re.escape, words)) + "$", said, re.MULTILINE)


def drawn(source):
    """Name the figures that a cell draws, by what its code is made of."""
    calls, tables = [], {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            tables[ast.unparse(node.targets[0])] = node.value
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("experiments.make", "experiments.draw"):
            calls.append(node)
    for call in calls:
        if ast.unparse(call.func) == "experiments.draw":
            (table,) = call.args
            call = tables.get(ast.unparse(table), table)
            assert ast.unparse(call.func) in ("experiments.measured", "experiments.run", "experiments.table")
        yield call.args[0].value


def test_cells_are_those_that_draw_and_show_a_figure():
    there = defaultdict(list)
    for name in notebooks.names():
        for number, cell in enumerate(files.read_json(ROOT / f"notebooks/{name}.ipynb")["cells"], 1):
            kind, source = cell["cell_type"], "".join(cell["source"])
            for figure in set(drawn(source)) if kind == "code" and "experiments." in source else ():
                there[figure].append((name, number, cell["id"], True))
            for figure in NAMES if kind == "markdown" else ():
                if f"(../figures/{figure}.png" in source:
                    there[figure].append((name, number, cell["id"], False))
    assert {name: [(*cell,) for cell in cells] for name, cells in explain.cells().items()} == there
    assert all({cell[3] for cell in cells} == {True, False} for cells in there.values()) and set(there) <= set(NAMES)
    assert set(NAMES) - set(there) - set(explain.drawn_by_no_notebook()) == {"kernel_issue"}  # it waits for a GPU


@pytest.mark.parametrize("name", READING)
def test_what_is_put_together_needs_every_table_that_it_reads(name, monkeypatch):
    read, place, printed = set(), experiments.place, tables.published
    monkeypatch.setattr(experiments, "place", lambda *how: [place(*how), read.add(place(*how))][0])
    of_paper = ROOT / "data/paper"
    monkeypatch.setattr(tables, "published", lambda which: [printed(which), read.add(of_paper / f"{which}.csv")][0])
    with experiments.references():
        experiments.load(name).measure("quick", np.random.default_rng(0), Progress(show=False))
    monkeypatch.undo()
    assert {explain.relative(path) for path in read} <= set(explained(name).sources) and read


@pytest.mark.outer
def test_every_claim_is_listed_once_with_its_verdict():
    with experiments.references():
        decided = explain.evaluated()
        some = [each for each in explain.evaluated({"figure_08"})]
    assert [each.entry for each in decided] == list(verdicts.entries())
    assert some == [each for each in decided if each.entry.experiment == "figure_08"] != []
    for name in NAMES:
        said = explain.text(explained(name), decided)
        listed = re.findall(r"^  claim .*", said, re.MULTILINE)
        own = [each for each in decided if each.entry.experiment == name]
        assert len(listed) == len(own)
        for line, each in zip(listed, own, strict=True):
            assert each.verdict in line and line.endswith(f": {each.entry.claim.where}, {each.entry.claim.says}")


def test_a_picture_is_led_back_to_its_own_table_by_commands_that_hold(toy, tmp_path, describe_as):
    run = lambda command: cli.main(command.split()[1:])  # noqa: E731
    assert run("bppsa-nb measure toy --scale paper --seed 3") == 0
    found = explain.explain("toy")
    assert found.drawn_from_it and found.picture == "figures/toy.png" and found.measured.path == "bppsa/toy.py"
    assert found.table == f"data/measured/{provenance.device()}/toy.paper.csv" and not found.cells
    before = (tmp_path / found.table).read_bytes()
    for command in found.commands:
        (tmp_path / "figures/toy.png").unlink()
        assert run(command) == 0 and explain.explain("toy") == found
        assert (tmp_path / found.table).read_bytes() == before and (tmp_path / "figures/toy.png").exists()
    describe_as(date="2099-01-01")
    experiments.run("toy", "paper", 3, progress=False)
    assert not explain.explain("toy").drawn_from_it
    assert run("bppsa-nb measure toy --reference") == 0  # the quick scale's
    found = explain.explain("toy")
    assert found.drawn_from_it and found.table == f"data/results/{provenance.device()}/toy.quick.csv"
    assert all("--seed" not in command for command in found.commands) and "--reference" in found.commands[1]
    described, sealed = tmp_path / "figures/toy.json", (tmp_path / found.table).read_bytes()
    drawn = described.read_bytes()
    for damage in (b"{}", b"[]", b'{"provenance": null}'):
        described.write_bytes(damage)
        with pytest.raises(files.CorruptFileError, match="figures/toy.json is damaged"):
            explain.explain("toy")
    described.write_bytes(drawn)
    (tmp_path / found.table).write_bytes(sealed.replace(b"0", b"1"))
    with pytest.raises(files.CorruptFileError, match="toy.quick.csv is damaged"):
        explain.explain("toy")
    (tmp_path / found.table).unlink()
    with pytest.raises(files.CorruptFileError, match="toy.quick.csv is damaged"):
        explain.explain("toy")
    (tmp_path / found.table).with_suffix(".json").unlink()
    found = explain.explain("toy")
    assert found.table is None and found.lacking.startswith("no reference of toy") and not found.drawn_from_it
    assert found.lacking in explain.text(found, [])


def test_explain_measures_and_draws_nothing_and_refuses_wrong_names(monkeypatch, capsys):
    for call in ("run", "draw", "make", "_write"):
        monkeypatch.setattr(experiments, call, None)
    assert cli.main(["explain", *NAMES[-3:], "--reference", "--scale", "quick"]) == 0
    titles = [f"{name}: {experiment.title(experiments.load(name))}" for name in NAMES[-3:]]
    assert re.findall(r"^\w+: .*", capsys.readouterr().out, re.MULTILINE) == titles
    assert cli.main("explain figure_08 --reference --scale paper --of cpu".split()) == 0
    assert "data/results/cpu/figure_08.paper.csv" in capsys.readouterr().out
    assert cli.main("explain figure_08 figure_99".split()) == 1
    refused = capsys.readouterr()
    assert not refused.out and refused.err.startswith("bppsa-nb: there is no figure 'figure_99'; there are ")
