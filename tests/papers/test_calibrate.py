import logging
import math

import numpy as np
import pytest

import bppsa_nb as bp
from bppsa_nb.cells import calibrate
from bppsa_nb.chains import counts, plan
from bppsa_nb.chains import prices as prices_kept
from bppsa_nb.machine import backends, files
from bppsa_nb.papers import cli

pytestmark = pytest.mark.usefixtures("cache")
POINTS = calibrate.points()
HUGE = {"prices": dict.fromkeys(counts.KINDS, [10**400, 1, 1])}  # a number that no float is


def priced(backend, prices, points=POINTS):
    """Price what is counted at points."""
    return np.array([counts.price(counts.count(**point, backend=backend), prices) for point in points])


def calibrated(backend):
    return "measured on this machine" in plan.explain(10, 2, 3, backend=backend).source


def records(**changes):
    """Make a record of every backend, for this machine."""
    prices = dict.fromkeys(counts.KINDS, [1e-6, 1e-6, 1e-9])
    record = {"machine": prices_kept.machine(), "date": "2026-01-02", "prices": prices}
    return {backend: record | changes for backend in ("numpy", "cpu")}


def write(folder, backends, form=prices_kept.FORMAT):
    folder.mkdir(exist_ok=True)
    files.write_json(folder / "prices.json", {"format": form, "backends": backends})
    plan.refresh()
    return folder / "prices.json"


# Where prices are kept.


def test_the_folder_is_where_the_system_keeps_caches(monkeypatch, tmp_path):
    assert prices_kept.path() == tmp_path / "cache" / "prices.json"
    monkeypatch.delenv("BPPSA_NB_CACHE")
    monkeypatch.setattr(files.Path, "home", lambda: tmp_path)
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    variables = {"linux": "XDG_CACHE_HOME", "win32": "LOCALAPPDATA"}
    for platform, usual in {"linux": ".cache", "win32": ".cache", "darwin": "Library/Caches"}.items():
        monkeypatch.setattr(files.sys, "platform", platform)
        assert files.cache_folder() == tmp_path / usual / "bppsa-nb"
        if platform in variables:
            monkeypatch.setenv(variables[platform], str(tmp_path / "told"))
            assert files.cache_folder() == tmp_path / "told" / "bppsa-nb"


# What is measured.


def test_points_are_of_all_chains_and_methods():
    assert len({tuple(point.items()) for point in POINTS}) == len(POINTS)
    for chain, methods in counts.METHODS.items():
        assert {point["method"] for point in POINTS if point["chain"] == chain} == set(methods)
    for point in POINTS:
        assert (point["length"] is not None) == (point["method"] == "chunked")
        assert (point["weights"] > 0) == (point["chain"] != "dense")


@pytest.mark.parametrize("weights", [0, 1, 3])
def test_gradients_of_a_measured_chain_neither_grow_nor_vanish(weights):
    chain = calibrate.chain(300, 2, 5, weights, np.random.default_rng(0))
    assert chain.shape[:3] == (300, 2, 5) and chain.dtype == np.float32
    assert weights == (len(chain.weights) if isinstance(chain, bp.StructuredChain) else 0)
    gradients = bp.backprop(chain, np.ones((2, 5), np.float32), method="linear", backend="numpy")
    assert np.allclose(np.linalg.norm(gradients, axis=2), math.sqrt(5), rtol=1e-3)
    assert not np.allclose(gradients[0], gradients[1])


@pytest.mark.parametrize("weights", [1, 3])
def test_a_measured_forward_pass_forgets_at_once(weights):
    loop = calibrate._forward("numpy", "linear", 400, 2, 5, weights, None)()
    chunks = calibrate._forward("numpy", "chunked", 400, 2, 5, weights, 80)()
    assert loop.solved is None and np.allclose(loop.hidden, chunks.hidden, rtol=0, atol=1e-6)
    (solved,) = chunks.solved
    work = counts.repaired(400, 2, 5, weights, "numpy", 80)["forward chunks"]
    assert (solved.passes + 1, solved.steps * weights) == (work.starts, work.steps)
    assert work.multiply_adds == round(solved.work * 400 * 2) * 25 * weights


def test_every_point_runs_and_of_several_calls_the_fastest_counts(monkeypatch):
    monkeypatch.setattr(calibrate, "SIZES", [(70, 2, 3)])
    calls, times = [], iter([0, 5, 10, 12, 20, 29] * 1000)  # a first call compiles
    monkeypatch.setattr(calibrate.time, "perf_counter", lambda: 0)
    monkeypatch.setattr(calibrate, "_time", lambda backend, **point: calls.append(point) or [next(times), 3])
    points = calibrate.points()
    assert max(calibrate.measure("numpy", False)) <= 3 and calls == 3 * points
    monkeypatch.undo()
    monkeypatch.setattr(calibrate, "SIZES", [(70, 2, 3)])
    assert len(calibrate.measure("numpy", False, rounds=1)) == len(points)


# What is made of it.


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
def test_a_fit_finds_the_prices_and_predicts_what_was_not_measured(backend):
    rng = np.random.default_rng(1)
    known = {kind: (10.0 ** rng.uniform([-6, -7, -11], [-5, -6, -10])).tolist() for kind in counts.KINDS}
    found, predicted = calibrate.fit(backend, POINTS, priced(backend, known))
    assert np.allclose(predicted, priced(backend, known), rtol=1e-3)
    others = [point | {"T": 3000, "B": 5, "H": 20, "length": point["length"] and 50} for point in POINTS]
    assert np.allclose(priced(backend, found, others), priced(backend, known, others), rtol=0.02)


def test_prices_are_never_below_0():
    seconds = [1 / point["T"] for point in POINTS]  # longer chains are faster
    prices, _ = calibrate.fit("numpy", POINTS, seconds)
    assert all(price >= 0 for each in prices.values() for price in each)


# A whole run.


@pytest.mark.parametrize("before", ["nothing", "others", "another format"])
def test_a_run_is_stored_planned_by_and_keeps_what_the_file_holds_on_others(cache, monkeypatch, before):
    known = dict.fromkeys(counts.KINDS, [1e-5, 1e-6, 1e-10])
    monkeypatch.setattr(calibrate, "measure", lambda backend, progress: priced(backend, known))
    if before != "nothing":
        write(cache, {"cpu": records()["cpu"]}, 0 if before == "another format" else prices_kept.FORMAT)
    assert plan.explain(100, 2, 3, backend="numpy").source.startswith("the package's defaults")
    found, errors = calibrate.run(["numpy"], False)
    assert calibrated("numpy") and calibrated("cpu") == (before == "others")
    stored = files.read_json(prices_kept.path())
    assert stored["format"] == prices_kept.FORMAT and stored["backends"]["numpy"] == found["numpy"]
    assert len(errors["numpy"]) == len(POINTS) and max(errors["numpy"]) < 0.01
    explanation = plan.explain(9, 2, 3, backend="numpy")
    assert explanation.source == f"prices measured on this machine, {found['numpy']['date']}"
    expected = counts.price(counts.linear(9, 2, 3, 0, "numpy"), known)
    assert explanation.seconds["linear"] == pytest.approx(expected, rel=0.01)


def test_an_interrupted_run_leaves_the_old_file(cache, monkeypatch):
    old = write(cache, records()).read_text()
    calls = iter(range(1000))

    def stop(*args, **how):
        if next(calls) == 20:
            raise KeyboardInterrupt

    monkeypatch.setattr(calibrate, "backprop", stop)
    with pytest.raises(KeyboardInterrupt):
        calibrate.run(["numpy", "cpu"], False)
    assert [file.name for file in cache.iterdir()] == ["prices.json"] and prices_kept.path().read_text() == old
    free = plan.chunk_length(100, 2, 3, backend="numpy", weights=1)
    plan.refresh()
    assert plan.chunk_length(100, 2, 3, backend="numpy", weights=1) == free  # no length is imposed any more


def test_a_gpu_is_not_measured(monkeypatch):
    monkeypatch.setattr(backends, "cuda_available", lambda: True)
    assert calibrate.runnable() == ["numpy", "cpu"]
    with pytest.raises(ValueError, match="measured here, numpy, cpu .*got 'cuda'"):
        calibrate.run(["numpy", "cuda"])


# What a file may hold.


def test_prices_of_another_machine_or_format_are_left_alone(cache, caplog):
    path = write(cache, records(machine="Another, 64 cores"))
    with caplog.at_level(logging.INFO):
        assert prices_kept.load("cpu") is None and not calibrated("cpu")
        assert f"{path}: prices of cpu are of Another, 64 cores, not of {prices_kept.machine()}" in caplog.text
        write(cache, None, 99)
        assert prices_kept.load("numpy") is None
    assert f"{path}: format is 99, not {prices_kept.FORMAT}" in caplog.text


@pytest.fixture(params=["a file", "no home"])
def nowhere(request, cache, monkeypatch):
    """Give a cache folder that cannot be one, and words that the error must have."""
    if request.param == "a file":
        cache.write_text("")
        return str(cache)

    def home():
        raise RuntimeError("Could not determine home directory.")

    for name in ("BPPSA_NB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(files.Path, "home", home)
    monkeypatch.setattr(files.sys, "platform", "linux")
    return "this user has no home folder; BPPSA_NB_CACHE can name one"


def test_where_prices_cannot_be_read_there_are_the_defaults(nowhere, capsys):
    jacobians_T, grad_output = np.ones((9, 2, 3, 3)), np.ones((2, 3))
    gradients = bp.backprop(jacobians_T, grad_output, backend="numpy")
    assert np.allclose(gradients, bp.backprop(jacobians_T, grad_output, method="linear", backend="numpy"))
    source = bp.explain(9, 2, 3, backend="numpy").source
    assert source.startswith("the package's defaults") and nowhere in source
    assert cli.main(["info"]) == 0
    (said,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("planner")]
    assert "the package's defaults" in said and nowhere in said


def test_where_prices_cannot_be_stored_nothing_is_measured(nowhere, monkeypatch, capsys):
    monkeypatch.setattr(calibrate, "measure", None)
    assert cli.main(["calibrate", "--backend", "numpy"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("bppsa-nb: ") and nowhere in said and said.count("\n") == 1


@pytest.mark.parametrize("wrong", [{"machine": 3}, {"date": None}, {"prices": {}}, HUGE])
def test_a_damaged_file_is_an_error_that_says_what_to_do(cache, wrong):
    path = write(cache, records(**wrong))
    with pytest.raises(files.CorruptFileError, match="is damaged: .*; delete it, and `bppsa-nb calibrate`") as error:
        plan.explain(10, 2, 3, backend="numpy")
    assert str(path) in str(error.value)


@pytest.mark.filterwarnings("error")
def test_backprop_goes_by_the_prices(cache):
    content = records()
    content["numpy"]["prices"] = content["numpy"]["prices"] | {"stored": [0, 1.0, 0]}
    write(cache, content)
    jacobians_T, grad_output = np.ones((9, 2, 3, 3)), np.ones((2, 3))
    assert bp.explain(9, 2, 3, backend="numpy").method == "blelloch"
    chosen = bp.backprop(jacobians_T, grad_output, backend="numpy")
    assert np.allclose(chosen, bp.backprop(jacobians_T, grad_output, method="linear", backend="numpy"))
