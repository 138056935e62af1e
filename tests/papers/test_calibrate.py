import copy
import itertools
import logging
import math

import numpy as np
import pytest

import bppsa_nb as bp
from bppsa_nb.cells import calibrate
from bppsa_nb.chains import counts as counting
from bppsa_nb.chains import plan
from bppsa_nb.chains import prices as prices_kept
from bppsa_nb.chains.counts import KINDS
from bppsa_nb.machine import backends, files
from bppsa_nb.papers import cli, provenance

pytestmark = pytest.mark.usefixtures("cache")
PAIRS = prices_kept.kinds_and_methods()
SOME = [
    dict(kind=kind, method=method, T=T, B=2, H=3, weights=int(kind != "dense"), length=length)
    for (kind, method), T in itertools.product(PAIRS, (4, 9))
    for length in ([2, 3] if method == "chunked" else [None])
]


def priced(make):
    """Make a price of everything that is counted."""
    return {kind: {m: {name: make() for name in calibrate.NAMES} for m in methods} for kind, methods in KINDS.items()}


def calibrated(backend):
    return "measured on this machine" in plan.explain(10, 2, 3, backend=backend).source


class Clock:
    """Seconds that pass only when something says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def world(monkeypatch):
    """Give a world in which everything costs what `prices` say, and the clock that tells."""
    clock, calls = Clock(), []
    rng = np.random.default_rng(0)
    prices = priced(lambda: 1e-6 * (1 + rng.random()))

    def backprop(operand, grad_output, method, backend):
        weights = len(operand.weights) if isinstance(operand, bp.StructuredChain) else 0
        T, B, H = operand.shape[:3]
        assert grad_output.shape == (B, H)
        sizes = T, B, H, weights, backend
        length = [plan.chunk_length(T, B, H, backend=backend, weights=weights)] if method == "chunked" else []
        clock.now += counting.price(
            counting.COUNTS[method](*sizes, *length), prices["structured" if weights else "dense"][method]
        )
        clock.now += 5.0 * (len(calls) == 0)  # the first call compiles
        calls.append((method, backend, *length))

    def forward(backend, point):
        def run():
            counted = calibrate.count(point, backend)
            clock.now += counting.price(counted, prices["forward"][point["method"]])

        return run

    monkeypatch.setattr(calibrate, "backprop", backprop)
    monkeypatch.setattr(calibrate, "_forward", forward)
    monkeypatch.setattr(calibrate, "points", lambda: copy.deepcopy(SOME))
    return prices, clock, calls


def records(**changes):
    """Make a record of every backend, for this machine."""
    record = {"date": "2026-01-02", "versions": {}, "prices": priced(lambda: 1e-6), "points": []}
    return {backend: record | {"machine": prices_kept.machine(backend)} | changes for backend in ("numpy", "cpu")}


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


def test_points_are_small_and_kinds_and_methods_take_turns():
    points = calibrate.points()
    assert len({tuple(point.items()) for point in points}) == len(points) > 100
    for start in range(0, calibrate.FEWEST, len(PAIRS)):
        turn = points[start : start + len(PAIRS)]
        assert sorted((point["kind"], point["method"]) for point in turn) == sorted(PAIRS)
    for point in points:
        assert (point["length"] is not None) == (point["method"] == "chunked")
        assert (point["weights"] > 0) == (point["kind"] != "dense")
        most = calibrate.LARGEST * (8 if point["kind"] == "forward" else 1)  # which stores no Jacobians
        assert point["T"] * point["B"] * point["H"] ** 2 <= most
    for name in ("T", "B", "H"):
        assert len({point[name] for point in points if point["method"] == "linear"}) >= 3
    assert points == calibrate.points()


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
    point = dict(kind="forward", T=400, B=2, H=5, weights=weights)
    loop = calibrate._forward("numpy", point | {"method": "linear", "length": None})()
    chunks = calibrate._forward("numpy", point | {"method": "chunked", "length": 80})()
    assert loop.solved is None and np.allclose(loop.hidden, chunks.hidden, rtol=0, atol=1e-6)
    (solved,) = chunks.solved
    counted = calibrate.count(point | {"method": "chunked", "length": 80}, "numpy")
    assert (solved.passes + 1, solved.steps, round(solved.work * 400 * 2)) == tuple(
        counted[name] for name in ("launches", "steps", "rows")
    )


def test_times_are_not_those_of_the_first_call(world):
    prices, clock, calls = world
    measured = calibrate.measure("numpy", False, seconds=5.5, clock=clock)
    assert [{name: point[name] for name in SOME[0]} for point in measured] == SOME
    for point in measured:
        expected = counting.price(calibrate.count(point, "numpy"), prices[point["kind"]][point["method"]])
        assert point["seconds"] == pytest.approx(expected, rel=1e-6)
    assert len(calls) >= 3 * sum(point["kind"] != "forward" for point in SOME) and clock.now > 5.5
    assert {call[2] for call in calls if call[0] == "chunked"} == {2, 3}


def test_measuring_ends_when_its_time_is_over(world, monkeypatch):
    _, clock, calls = world
    monkeypatch.setattr(calibrate, "FEWEST", 4)
    assert len(calibrate.measure("numpy", False, seconds=0, clock=clock)) == 4
    assert clock.now < 6 and {backend for _, backend, *_ in calls} == {"numpy"}


# What is made of it.


@pytest.mark.parametrize("backend", ["numpy", "cpu", "cuda"])
def test_a_fit_predicts_chains_that_were_not_measured(backend):
    rng = np.random.default_rng(1)
    known = priced(lambda: 10.0 ** rng.uniform(-10, -5) if rng.random() < 0.6 else 0)

    def seconds(prices, point):
        return counting.price(calibrate.count(point, backend), prices[point["kind"]][point["method"]])

    points = [point | {"seconds": seconds(known, point)} for point in calibrate.points()]
    prices, predicted = calibrate.fit(points, backend)
    assert predicted == pytest.approx([point["seconds"] for point in points], rel=0.01)
    for point, T, B, H in itertools.product(SOME, (1000, 10000), (1, 32), (20, 100)):
        length = 50 if point["length"] else None
        other = point | dict(T=T, B=B, H=H, weights=2 * point["weights"], length=length)
        assert seconds(prices, other) == pytest.approx(seconds(known, other), rel=0.02)


def test_prices_are_never_below_0_and_errors_are_relative():
    def of(*points):
        return [dict(SOME[0], T=T, seconds=seconds) for T, seconds in points]

    rest = [dict(point, seconds=1.0) for point in SOME if (point["kind"], point["method"]) != ("dense", "linear")]
    with pytest.raises(ValueError, match="got none of dense linear"):
        calibrate.fit(rest, "numpy")
    prices, _ = calibrate.fit(of((1, 1), (10, 0.1), (100, 0.01)) + rest, "numpy")  # longer chains are faster
    assert all(price > 0 for methods in prices.values() for found in methods.values() for price in found.values())
    assert 0.5e-6 < calibrate.fit(of((1, 1e-6), (10**6, 10.0)) + rest, "numpy")[1][0] < 2e-6
    points = [{"seconds": 2.0, "predicted": p} for p in (2.0, 1.0, 2.2)]
    assert calibrate.errors({"points": points}) == pytest.approx((0.1, 0.5))


# A whole run.


def test_a_run_is_stored_and_planned_by(world, cache):
    _, clock, _ = world
    assert plan.explain(100, 2, 3, backend="numpy").source.startswith("the package's defaults") and not cache.exists()
    found = calibrate.run(["numpy"], False, seconds=0.1, clock=clock)
    assert list(found) == ["numpy"] and prices_kept.path() == cache / "prices.json"
    stored = files.read_json(prices_kept.path())
    assert stored == {"format": prices_kept.FORMAT, "backends": found}
    record = stored["backends"]["numpy"]
    assert record["machine"] == f"{provenance.cpu_name()}, {provenance.cores()} cores"
    assert record["versions"] == provenance.versions()
    assert all({*SOME[0], "seconds", "predicted"} == point.keys() for point in record["points"])
    assert calibrate.errors(record)[1] < 0.02
    assert calibrated("numpy") and not calibrated("cpu")
    explanation = plan.explain(9, 2, 3, backend="numpy")
    assert explanation.source == f"prices measured on this machine, {record['date']}"
    assert counting.price(counting.linear(9, 2, 3, 0, "numpy"), record["prices"]["dense"]["linear"]) == pytest.approx(
        explanation.seconds["linear"]
    )


@pytest.mark.parametrize("before", ["nothing", "others", "another format"])
def test_a_run_keeps_what_the_file_holds_on_others(world, cache, before):
    if before != "nothing":
        write(cache, {"cpu": records()["cpu"]}, 0 if before == "another format" else prices_kept.FORMAT)
    calibrate.run(["numpy"], False, seconds=0.1, clock=world[1])
    assert calibrated("numpy")
    assert calibrated("cpu") == (before == "others")


def test_an_interrupted_run_leaves_the_old_file(world, cache, monkeypatch):
    old = write(cache, records()).read_text()
    calls = iter(range(1000))

    def stop(*args, **how):
        if next(calls) == 20:
            raise KeyboardInterrupt

    monkeypatch.setattr(calibrate, "backprop", stop)
    with pytest.raises(KeyboardInterrupt):
        calibrate.run(["numpy", "cpu"], False)
    assert [file.name for file in cache.iterdir()] == ["prices.json"]
    assert prices_kept.path().read_text() == old
    free = plan.chunk_length(100, 2, 3, backend="numpy", weights=1)
    plan.refresh()
    assert plan.chunk_length(100, 2, 3, backend="numpy", weights=1) == free  # no length is imposed any more


def test_a_gpu_is_not_measured(monkeypatch):
    monkeypatch.setattr(backends, "cuda_available", lambda: True)
    assert calibrate.runnable() == ["numpy", "cpu"]
    with pytest.raises(ValueError, match="measured here, numpy, cpu; got 'cuda'"):
        calibrate.run(["numpy", "cuda"])


def test_new_defaults_leave_those_of_other_backends(tmp_path, monkeypatch):
    old = records(machine="old", points=[])
    monkeypatch.setattr(prices_kept, "DEFAULTS", write(tmp_path, old))
    new = {"numpy": records(machine="new", points=SOME)["numpy"]}
    prices_kept.store_defaults(new)
    plan.refresh()
    stored = files.read_json(tmp_path / "prices.json")["backends"]
    assert stored == {"numpy": new["numpy"] | {"points": []}, "cpu": old["cpu"]}
    assert "measured on new" in plan.explain(1, 1, 1, backend="numpy").source


# What a file may hold.


def test_prices_of_another_machine_or_format_are_left_alone(cache, caplog):
    path = write(cache, records(machine="Another, 64 cores"))
    with caplog.at_level(logging.INFO):
        assert prices_kept.load("cpu") is None and not calibrated("cpu")
        assert f"{path}: prices of cpu are of Another, 64 cores, not of {prices_kept.machine('cpu')}" in caplog.text
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


@pytest.mark.parametrize("wrong", [{"machine": 3}, {"date": None}, {"prices": {}}])
def test_a_damaged_file_is_an_error_that_says_what_to_do(cache, wrong):
    path = write(cache, records(**wrong))
    with pytest.raises(files.CorruptFileError, match="is damaged: .*; delete it, and `bppsa-nb calibrate`") as error:
        plan.explain(10, 2, 3, backend="numpy")
    assert str(path) in str(error.value)


@pytest.mark.filterwarnings("error")
def test_backprop_goes_by_the_prices(cache):
    content = records()
    content["numpy"]["prices"]["dense"]["linear"] = {"steps": 1.0}
    write(cache, content)
    jacobians_T, grad_output = np.ones((9, 2, 3, 3)), np.ones((2, 3))
    assert bp.explain(9, 2, 3, backend="numpy").method != "linear"
    chosen = bp.backprop(jacobians_T, grad_output, backend="numpy")
    assert np.allclose(chosen, bp.backprop(jacobians_T, grad_output, method="linear", backend="numpy"))
