"""Figures, notebooks and recordings belong together; and every record names the commit that made it.

What is committed is read, not what is in the folders, which the README's commands write.
"""

import io
import json
import re
import tarfile
from pathlib import Path, PurePath

import pytest

from bppsa_nb.papers import experiments, explain, figures, provenance

REPO = Path(__file__).parents[1]
WAITING = {"kernel_issue"}  # for a recording of a GPU
# The scale and the machine of what committed figures show, as notebooks tell; of all others, the quick scale, on a CPU.
SHOWN = dict.fromkeys(("corrections_over_length", "crossover_map", "figure_06", "forward_speed"), ("paper", "cpu"))
SHOWN |= {"retraining": ("paper", "cpu")} | dict.fromkeys(("figure_08", "figure_09"), ("paper", "nvidia-h200"))


@pytest.fixture(scope="module")
def committed_files(tracked):
    """Path and content of every committed figure, recording and notebook."""
    packed = provenance.git("archive", "HEAD", "figures", "data/results", "notebooks")
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        members = {PurePath(member.name): member for member in archive if member.isfile()}
        return {path: archive.extractfile(member).read() for path, member in members.items()}


def described(committed_files):
    """Yield path and content of what describes a figure or a table."""
    for path, content in committed_files.items():
        if path.suffix == ".json":
            yield path, json.loads(content)


def test_every_figure_has_its_words_and_its_provenance(committed_files):
    pictures = {path.stem for path in committed_files if path.suffix == ".png"}
    words = {path.stem: each for path, each in described(committed_files) if path.parts[0] == "figures"}
    assert pictures == set(words)
    for name, each in words.items():
        assert each["alt"].strip() and each["caption"].strip(), name
        assert {"name", "scale", "seed", "device", "cpu", "versions", "data"} <= set(each["provenance"]), name
        assert len(committed_files[PurePath(f"figures/{name}.png")]) <= figures.MAX_BYTES, name


def test_every_record_names_a_commit_of_this_history_and_no_changes(committed_files):
    if provenance.git("rev-parse", "--is-shallow-repository").strip() == b"true":
        pytest.skip("the history is not here")
    history = set(provenance.git("rev-list", "HEAD").decode().split())
    origins = {str(path): each["provenance"] for path, each in described(committed_files)}
    assert len(origins) > 100
    assert [path for path, origin in origins.items() if origin["dirty"] is not False] == []
    assert [path for path, origin in origins.items() if origin["commit"] not in history] == []


def test_every_figure_is_drawn_from_a_reference_that_is_committed_with_it(committed_files):
    for path, each in described(committed_files):
        if path.parts[0] == "figures":
            origin = dict(each["provenance"])
            assert origin.pop("reference") is True, path
            table = PurePath(f"data/results/{origin['device']}/{origin['name']}.{origin['scale']}.json")
            assert (origin["scale"], origin["device"]) == SHOWN.get(path.stem, ("quick", "cpu")), path
            assert origin["name"] == path.stem and json.loads(committed_files[table])["provenance"] == origin, path


def test_make_figures_draws_every_figure_that_is_committed(committed_files):
    notebooks = [json.loads(content) for path, content in committed_files.items() if path.suffix == ".ipynb"]
    cells = [cell["source"] for notebook in notebooks for cell in notebook["cells"] if cell["cell_type"] == "code"]
    calls = re.findall(r"experiments\.(?:make|measured|run|table)\(\s*\"(\w+)\"", "\n".join(map("".join, cells)))
    drawn = set(calls) - {"kernel_times"} | set(explain.drawn_by_no_notebook())  # a GPU's benchmark, notebook 02c reads
    assert drawn == {path.stem for path in committed_files if path.suffix == ".png"}
    assert drawn == set(experiments.names()) - WAITING


def test_every_recording_is_whole_and_of_something_that_records(committed_files):
    recordings = {path for path in committed_files if path.parts[:2] == ("data", "results")}
    tables = {path for path in recordings if path.suffix == ".csv"}
    assert {path.with_suffix(".json") for path in tables} == {path for path in recordings if path.suffix == ".json"}
    names = {path.name.split(".")[0] for path in tables}
    assert not WAITING & names
    code = [*(REPO / "benchmarks").glob("*.py"), REPO / "bppsa_nb/papers/bppsa/eighty_epochs.py"]  # which reads another
    code = "".join(path.read_text(encoding="utf-8") for path in code)
    assert [name for name in names - set(experiments.names()) if f'"{name}"' not in code] == []
