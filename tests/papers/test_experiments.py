import base64
import json
import platform
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest
from texts import beside

from bppsa_nb.machine import files
from bppsa_nb.papers import dictionary, experiment, experiments, provenance
from bppsa_nb.papers.progress import Progress


def results(tmp_path):
    return tmp_path / "data" / "measured" / provenance.device()


def stop_at(toy, n, scale="paper"):
    toy.break_at = n
    with pytest.raises(KeyboardInterrupt):
        experiments.run("toy", scale, progress=False)
    toy.break_at = None
    toy.measured.clear()


def test_names_are_the_modules_that_have_a_figure(toy, monkeypatch):
    assert "toy" in experiments.names()
    assert not {"helper", "progress", "provenance"} & set(experiments.names())
    read, is_one = [], experiments._is_experiment
    monkeypatch.setattr(experiments, "_is_experiment", lambda path: read.append(path.stem) or is_one(path))
    experiments.load("toy")
    assert read == ["toy"]  # found without a look at the others


SIMULATED = {"data_parallel_throughput", "pipeline_throughput"}  # seconds, from stated costs


@pytest.mark.parametrize("name", experiments.names())
def test_every_experiment_has_its_words_and_says_how_its_numbers_are_made(name):
    module = experiments.load(name)
    figure = module.FIGURE
    said = experiment.title(module), figure.caption, figure.alt
    assert all(text.strip() for text in said) and callable(module.plot)
    assert figure.origin in set(experiment.ORIGINS) - {"printed"}
    for claim in figure.claims:
        assert (claim.origin or figure.origin) in experiment.TOLERANCES
    if figure.origin != "waiting" and name not in SIMULATED:
        columns = dict.fromkeys(experiments.table(name).columns, "str")
        timed = any(each["unit"] == "s" for each in dictionary.fields(name, columns))
        assert not timed or figure.origin in ("timed", "collected")  # which decides what may run beside it


@pytest.mark.parametrize("seed, error", [(None, TypeError), ([1], TypeError), (-1, ValueError)])
def test_a_wrong_seed_is_found_before_anything_is_measured(toy, seed, error):
    with pytest.raises(error, match="seed must be"):
        experiments.run("toy", seed=seed)
    assert toy.measured == []


def test_run_records_what_it_returns(toy, tmp_path):
    table = experiments.run("toy", seed=3, progress=False)
    assert table["square"].tolist() == [0, 1, 4]
    assert sorted(path.name for path in results(tmp_path).iterdir()) == ["toy.quick.csv", "toy.quick.json"]
    pandas.testing.assert_frame_equal(table, experiments.table("toy"))
    assert experiments.table("toy").attrs == table.attrs
    origin = table.attrs["provenance"]
    assert (origin["name"], origin["scale"], origin["device"]) == ("toy", "quick", provenance.device())
    assert (origin["seed"], origin["data"], origin["backend"]) == (3, "synthetic", ["numpy"])
    assert set(origin["versions"]) == {"bppsa-nb", "python", "numpy", "numba", "numba-cuda", "scipy"}
    assert origin["versions"]["numpy"] == np.__version__
    assert origin["cores"] >= 1 and len(origin["cpu"]) > 2
    assert origin.keys() == provenance.KEYS | {"source", "reference"}
    assert platform.node() not in json.dumps(origin)  # the host is nobody's business


def test_same_seed_same_table_and_other_seeds_differ(toy):
    tables = [experiments.run("toy", seed=seed, progress=False) for seed in (0, 0, 1)]
    assert tables[0].equals(tables[1])
    assert not set(tables[0]["noise"]) & set(tables[2]["noise"])
    assert tables[0]["noise"].nunique() == 3


def test_a_stopped_sweep_goes_on_at_the_first_unmeasured_point(toy, tmp_path, capsys):
    whole = experiments.run("toy", "paper", progress=False)
    stop_at(toy, 4)
    assert experiments.unfinished() == [("toy", "paper", 4)]
    assert experiments.table("toy", "paper").equals(whole)  # the last complete table stays

    resumed = experiments.run("toy", "paper", progress=False)
    assert toy.measured == [4, 5]
    assert "toy: goes on after 4 points measured before" in capsys.readouterr().err
    assert resumed.equals(whole) and experiments.unfinished() == []
    toy.measured.clear()
    experiments.run("toy", "paper", progress=False)
    assert toy.measured == list(range(6)) and capsys.readouterr().err == ""  # a complete table is measured afresh


@pytest.mark.parametrize(
    "what, value", [("seed", 7), ("versions", {"numpy": "another"}), ("source", "another"), ("date", "2099-01-01")]
)
def test_a_sweep_stopped_under_other_conditions_starts_afresh_and_says_so(toy, describe_as, capsys, what, value):
    stop_at(toy, 4)
    describe_as(**{what: value})
    experiments.run("toy", "paper", progress=False)
    said, same = capsys.readouterr().err, what == "date"  # which may change
    assert toy.measured == list(range(4 if same else 0, 6))
    assert (f"toy: starts afresh, {what} changed since 4 points were saved" in said) != same


@pytest.mark.parametrize("came", ["IRMAS-TrainingData", "cifar-10-binary.tar.gz"])
def test_what_stood_in_for_data_is_measured_again_when_they_have_come(toy, tmp_path, monkeypatch, came):
    measure = toy.measure
    monkeypatch.setattr(toy, "measure", lambda *how: [table := measure(*how), table.attrs.update(data="stand-in")][0])
    found = experiments.measured("toy", progress=False)
    assert experiments.measured("toy", progress=False).equals(found) and toy.measured == [0, 1, 2]
    experiments.make("toy", progress=False)  # which draws it
    assert toy.measured == [0, 1, 2]
    there = tmp_path / "data" / "downloads" / came
    there.parent.mkdir(parents=True)
    there.touch() if there.suffix else there.mkdir()
    for _ in range(2):  # and then it is no news any more
        experiments.measured("toy", progress=False)
        assert toy.measured == [0, 1, 2] * 2


def test_two_sweeps_of_one_experiment_are_kept_apart(tmp_path):
    def measure(progress):
        first = progress.collect([{"n": 1}], lambda point, rng: [{"sweep": "first"}], 0)
        second = progress.collect([{"n": 1}], lambda point, rng: [{"sweep": "second"}], 0)
        return first["sweep"].tolist() + second["sweep"].tolist()

    path = tmp_path / "x.partial.json"
    assert measure(Progress(path, show=False)) == measure(Progress(path, show=False)) == ["first", "second"]


def test_a_killed_sweep_keeps_what_was_done(tmp_path):
    path = tmp_path / "x.partial.json"
    done = subprocess.run([sys.executable, "-c", beside(__file__)["KILLED"], path], cwd=Path(__file__).parents[2])
    assert done.returncode == -signal.SIGKILL
    left = []
    Progress(path, show=False).collect([{"n": n} for n in range(4)], lambda p, rng: left.append(p) or [{}], 0)
    assert left == [{"n": 2}, {"n": 3}]


def test_what_a_long_point_keeps_lasts_until_the_table_is_complete(tmp_path):
    assert Progress(show=False).keep("x") is None
    path, what = tmp_path / "toy.partial.json", {"commit": "one"}
    Progress(path, what, show=False).keep("x").write_text("half")
    again = Progress(path, what, show=False)
    assert again.keep("x").read_text() == "half"
    other = Progress(path, {"commit": "two"}, show=False)  # what is kept depends on what has changed
    assert not other.keep("x").exists()
    other.keep("x").write_text("half")
    path.unlink()
    assert not Progress(path, what, show=False).keep("x").exists()
    last = Progress(path, what, show=False)
    last.keep("x").write_text("half")
    last.finish()
    assert list(tmp_path.iterdir()) == []


def test_points_must_differ_and_rows_must_be_plain():
    progress = Progress(show=False)
    with pytest.raises(ValueError, match=r"points must be different, got {'n': 1} more than once"):
        progress.collect([{"n": 1}, {"n": np.int64(1)}], lambda point, rng: [{}], 0)
    with pytest.raises(TypeError, match=r"row\['x'\] must be a number, text or None, got list"):
        progress.collect([{"n": 1}], lambda point, rng: [{"x": [1]}], 0)


def test_a_table_comes_back_as_it_was(toy, monkeypatch):
    table = pandas.DataFrame({"count": [2**53 + 1, 2, 3], "seconds": [0.1 + 0.2, np.inf, np.nan]})
    table = table.assign(exact=[True, False, True], method=["None", "001", None])
    table.attrs = {"note": "three of them", "data": "stand-in", "backend": "cpu"}
    monkeypatch.setattr(toy, "measure", lambda scale, rng, progress: table)
    back = experiments.run("toy")
    pandas.testing.assert_frame_equal(back, table, check_dtype=False, check_exact=True)
    assert [back[column].dtype.kind for column in ("count", "seconds", "exact")] == ["i", "f", "b"]
    assert back.attrs["note"] == "three of them"
    assert (back.attrs["provenance"]["data"], back.attrs["provenance"]["backend"]) == ("stand-in", "cpu")


@pytest.mark.parametrize("column", [[[1], [2]], ["a", 1], [True, None], ["a", ""]])
def test_a_column_that_would_not_come_back_is_refused(toy, monkeypatch, tmp_path, column):
    table = pandas.DataFrame({"odd": pandas.Series(column, dtype=object)})
    monkeypatch.setattr(toy, "measure", lambda scale, rng, progress: table)
    with pytest.raises(TypeError, match="column 'odd' must hold"):
        experiments.run("toy")
    table = pandas.DataFrame({"n": [1]})
    table.attrs["data"] = "invented"
    with pytest.raises(ValueError, match=r"attrs\['data'\] must be one of 'real', .* got 'invented'"):
        experiments.run("toy")
    assert not results(tmp_path).exists()


def test_a_damaged_table_is_named(toy, tmp_path):
    experiments.run("toy", progress=False)
    path = results(tmp_path) / "toy.quick.csv"
    path.write_text(path.read_text().replace("4", "5"))
    said = f"{path} is damaged: it is not the table that the .json beside it describes; measure again"
    with pytest.raises(files.CorruptFileError, match=re.escape(said)):
        experiments.table("toy")


def test_a_missing_recording_says_what_to_run(toy):
    with pytest.raises(FileNotFoundError, match="`bppsa-nb measure toy --scale paper`"):
        experiments.table("toy", "paper")
    experiments.run("toy", progress=False)
    with pytest.raises(FileNotFoundError, match=r"for 'nvidia-h200'; there is scale quick for \S+; `bppsa-nb measure"):
        experiments.table("toy", device="nvidia-h200")


def test_this_machine_comes_first_and_another_one_s_recording_serves_too(toy, describe_as):
    describe_as(device="a-gpu", gpu="A GPU")
    experiments.run("toy", progress=False)
    describe_as()
    assert experiments.table("toy").attrs["provenance"]["device"] == "a-gpu"
    experiments.run("toy", progress=False)
    assert experiments.table("toy").attrs["provenance"]["device"] == provenance.device()
    assert experiments.table("toy", device="a-gpu").attrs["provenance"]["gpu"] == "A GPU"


def test_what_was_measured_here_is_preferred_to_a_reference(toy, monkeypatch):
    with experiments.references():
        experiments.run("toy", seed=1, progress=False)
        experiments.run("toy", "paper", seed=1, progress=False)
    experiments.run("toy", seed=2, progress=False)
    found = {scale: experiments.table("toy", scale).attrs["provenance"] for scale in ("quick", "paper")}
    assert (found["quick"]["seed"], found["quick"]["reference"]) == (2, False)
    assert (found["paper"]["seed"], found["paper"]["reference"]) == (1, True)
    with experiments.references():
        assert experiments.table("toy").attrs["provenance"]["seed"] == 1
    device = provenance.device()
    assert experiments.recordings("toy") == [(device, "quick"), (device, "paper")]
    assert experiments.recordings("toy", experiments.MEASURED) == [(device, "quick")]
    # A reference of this machine comes before what was measured with another.
    monkeypatch.setattr(provenance, "device", lambda: "a-gpu")
    with experiments.references():
        experiments.run("toy", seed=3, progress=False)
    assert experiments.table("toy").attrs["provenance"]["seed"] == 3


def test_words_of_what_no_fact_says_name_the_figure(toy):
    toy.FIGURE = experiment.Figure("counted", "Squares grow.", "A line up to {mots}.")
    with pytest.raises(LookupError, match="^toy, caption or alt: mots: there is no mots, but most$"):
        experiments.make("toy", progress=False)


def test_make_draws_the_figure_with_its_words_and_provenance(toy, tmp_path):
    from matplotlib import pyplot

    shown = experiments.make("toy", progress=False)
    assert (tmp_path / "figures" / "toy.png").stat().st_size > 1000
    words = files.read_json(tmp_path / "figures" / "toy.json")
    assert (words["alt"], words["caption"], words["origin"]) == ("A line up to 4.", "Squares grow.", "counted")
    assert words["provenance"] == experiments.table("toy").attrs["provenance"]
    assert not pyplot.get_fignums()
    html = shown._repr_html_()  # the figure in the place of the committed one, and both once
    assert 'alt="A line up to 4."' in html and 'img[src*="/toy.png"] { display: none; }' in html
    encoded = re.search('src="data:image/png;base64,([^"]*)"', html)[1]
    assert base64.b64decode(encoded) == (tmp_path / "figures" / "toy.png").read_bytes()
    assert repr(shown) == "toy.png: A line up to 4."


@pytest.fixture
def source(tmp_path, monkeypatch):
    """Give the folder of a checkout that has all of `SOURCE`, and is no repository yet."""
    monkeypatch.setattr(files, "root", lambda: tmp_path)
    monkeypatch.setattr(provenance.bppsa_nb, "__file__", str(tmp_path / "bppsa_nb" / "__init__.py"))
    for name in provenance.SOURCE:
        path = tmp_path / name if "." in name else tmp_path / name / "folder" / "a.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1")
    provenance.source_hash.cache_clear()
    yield tmp_path
    provenance.source_hash.cache_clear()


def git(folder, *arguments):
    if shutil.which("git") is None:
        pytest.skip("needs git")
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def hashed():
    provenance.source_hash.cache_clear()
    return provenance.describe("toy", "quick", 0)["source"]


@pytest.mark.parametrize("name", provenance.SOURCE)
def test_a_changed_byte_of_the_source_is_another_source(source, name):
    before = hashed()
    path = source / name if "." in name else source / name / "folder" / "a.py"
    for other in ("__pycache__/b.pyc", ".hidden/b.py", ".hidden.py", "a.py~"):
        (path.parent / other).parent.mkdir(exist_ok=True)
        (path.parent / other).write_text("")
    assert hashed() == before
    path.write_text("2")
    assert provenance.describe("toy", "quick", 0)["source"] == before  # this process has loaded what was there
    assert hashed() != before
    path.write_text("1")
    path.rename(path.with_name("b.py"))
    assert hashed() != before


def test_what_the_same_source_measured_is_taken_and_another_one_measures_again(source, toy, monkeypatch):
    (source / "pyproject.toml").unlink()  # in which nothing measured is found by tests
    for content, times in (("1", 1), ("1", 1), ("2", 2), ("1", 3)):
        (source / "benchmarks" / "folder" / "a.py").write_text(content)
        hashed()
        experiments.measured("toy", progress=False)
        assert toy.measured == [0, 1, 2] * times
    monkeypatch.setattr(provenance, "source_state", lambda: (40 * "a", True))  # the commit may be any, or none
    experiments.measured("toy", progress=False)
    assert toy.measured == [0, 1, 2] * 3
    needed = experiments.record(pandas.DataFrame({"n": [1]}), "other", "quick", 0)
    figure = experiment.Figure("counted", "", "", needs=["other"])
    monkeypatch.setattr(toy, "FIGURE", figure)
    for number, times in ((1, 4), (1, 4), (2, 5)):  # a table that it reads is another one
        experiments.record(pandas.DataFrame({"n": [number]}), "other", "quick", 0)
        experiments.measured("toy", progress=False)
        assert toy.measured == [0, 1, 2] * times and needed
    monkeypatch.setattr(toy, "FIGURE", experiment.Figure("collected", "", ""))
    for times in (6, 7):  # other recordings may have come
        experiments.measured("toy", progress=False)
        assert toy.measured == [0, 1, 2] * times


def test_a_reference_needs_a_commit_of_all_that_makes_it(source, monkeypatch):
    git(source.parent, "init")
    git(source.parent, "commit", "--allow-empty", "-m", "Begin")  # of another repository, around it
    assert provenance.source_state() == (None, None)
    git(source, "init")
    git(source, "add", ".")
    git(source, "commit", "-m", "Begin")
    monkeypatch.setenv("GIT_INDEX_FILE", str(source / "index"))  # as in a hook
    (source / "figures").mkdir()
    (source / "figures" / "a.png").write_text("")  # which nothing is made of
    commit, dirty = provenance.source_state()
    assert len(commit) == 40 and dirty is False
    provenance.check_committed()
    (source / "benchmarks" / "b.py").write_text("")
    assert provenance.source_state() == (commit, True)
    with pytest.raises(ValueError, match="commit or stash what `git status bppsa_nb .*` shows"):
        provenance.check_committed()
    monkeypatch.setattr(provenance.bppsa_nb, "__file__", str(source.parent / "site-packages/bppsa_nb/__init__.py"))
    assert provenance.source_state() == (None, None)  # an installed package that is at work there


def test_who_copied_the_source_can_name_its_commit(source, monkeypatch):
    monkeypatch.setenv("BPPSA_NB_COMMIT", 40 * "a")
    assert provenance.source_state() == (40 * "a", False)
    for named in ("", "nonsense", 39 * "a"):
        monkeypatch.setenv("BPPSA_NB_COMMIT", named)
        with pytest.raises(ValueError, match="BPPSA_NB_COMMIT must be the 40 digits of a commit"):
            provenance.source_state()


@pytest.mark.parametrize("state", [(4 * "0123456789", True), (None, None)])
def test_a_reference_is_refused_before_anything_is_measured(toy, monkeypatch, state):
    monkeypatch.setattr(provenance, "source_state", lambda: state)
    with experiments.references(), pytest.raises(ValueError, match="first commit or stash"):
        experiments.run("toy", progress=False)
    assert toy.measured == []
    origin = experiments.run("toy", progress=False).attrs["provenance"]
    assert (origin["commit"], origin["dirty"]) == state and len(origin["source"]) == 64


@pytest.mark.parametrize("points", ["[]", '{"[0, {\\"n\\": 1}]": ""}'])
def test_damaged_points_are_measured_again(points, tmp_path, capsys, monkeypatch):
    path = tmp_path / "data" / "measured" / "cpu" / "toy.quick.partial.json"
    path.parent.mkdir(parents=True)
    path.write_text(f'{{"provenance": {{"name": "toy"}}, "points": {points}}}')
    monkeypatch.setattr(files, "root", lambda: tmp_path)
    assert experiments.unfinished() == []
    sweep = Progress(path, {"name": "toy"}, show=False)
    assert "toy: starts afresh, the points saved before cannot be read" in capsys.readouterr().err
    table = sweep.collect([{"n": 1}, {"n": 2}], lambda point, rng: [{"twice": 2 * point["n"]}], 0)
    assert table["twice"].tolist() == [2, 4]
    assert Progress(path, {"name": "toy"}, show=False).collect([{"n": 1}], None, 0)["twice"].tolist() == [2]
