"""Everything public, called with garbage for one argument: an error that names the argument, or a right result.

`make test` tries what few arguments take and, of the rest, one value in ten, another one for every argument;
`make test-full` tries all of them.
"""

import itertools
import re
import tomllib
from pathlib import Path

import garbage
import numpy as np
import pytest

import bppsa_nb as bp
from bppsa_nb import graphs, multigrid, ptx, schedule, sparse

# What a TypeError or ValueError may be called instead, where documented: an argument that names something that is not
# there, or numbers whose result leaves the range.
OTHERS = {IndexError: {"indices"}, FileNotFoundError: {"path", "source"}, OSError: {"path", "save_to"}}
# What an error calls an argument that others know under another name.
ALSO = {"y": "labels", "model": "params", "values": "x|w|grad_y", "grad_outputs": "grad_y", "solver": "cycles"}
ALSO |= {"input_shape": "operator 'c'|operator 'o'", "opening": "operator", "closing": "operator"}
ALSO |= {"one": "argument 0", "two": "argument 1", "out": "out|argument 2", "size": "argument 3"}
# Operands may be of any kind that knows ⋄, and answer for themselves.
FREE = {("scan", "operands")}
GOOD = {("ptx.run", "records"), ("ptx.empty", "class")}  # of what nothing else takes
# What only these arguments take for good, each wherever it is found, or of one call; `ptx` takes any arrays.
ONLY = {
    "-1": "carry",
    "0": "levels carry explain:T explain:weights tol most rng lr momentum eps epochs Bitstream:length padding rate "
    "sync activation output_grad weight_grad inner k boundary_cost size latency worker steps n",
    "True": "progress from_input first_output_grad weight_grad_first send_after_weight_grad backward_first flush "
    "carry_over nested_iteration skip_downcycle",
    "1.5": "carry tol most lr eps sync activation output_grad weight_grad inner boundary_cost size bandwidth latency h",
    "infinity": "",
    "empty text": "Graph:name",
    "nonsense": "save_to path name",
    "None": "local_grads comm levels carry jacobian length tol most rng h0 lengths sequence_ranks num_samples out "
    "stride sync scan_until memory k memory_limit initial cycles error ResidualModel:h solver wanted saved ax",
    "more axes": "relu_jacobian_T:x y",
    "fewer axes": "carry a b",
    "narrower": "unroll:h0 inputs logits indices x weight y",
    "shorter": "values inputs x indices a b weight y ResidualNetwork.forward:u0",
    "empty": "values inputs x indices",
    "a list": "lengths indices indptr unroll:h0 inputs y logits labels ArrayDataset:x speedup",
    "masked": "",
    "with nan": "values StructuredChain:weights slopes carry inputs ArrayDataset:x out PlannedProduct.performed:a",
    "with inf": "values StructuredChain:weights slopes carry inputs ArrayDataset:x out PlannedProduct.performed:a",
    "with -1": "ArrayDataset:y",
    "with a large one": "ArrayDataset:y",
    "of dtype f2": "inputs logits CSRPattern.matrix:values speedup",
    "of dtype f8": "values unroll:h0 inputs logits x PlannedProduct.performed:a weight y speedup",
    "of dtype i4": "lengths indices indptr inputs y labels CSRPattern.matrix:values speedup",
    "of dtype ?": "inputs CSRPattern.matrix:values",
    "of dtype c8": "inputs CSRPattern.matrix:values",
}
ELSEWHERE = {"Instruments", "History"}  # the one reads recordings (datasets/test_audio.py), the other nothing
ELSEWHERE |= {"assert_clean", "use_without_gpu", "Finding", "Report"}  # ptx.run, and what it gives
ELSEWHERE |= {"Cell", "Recurrent"}  # check_cell; RNN
ELSEWHERE |= {"VGG11", "Executor", "TwoStreams", "Solution", "Node", "library"}  # like LeNet5; processes; results


def called(name, folder, changes):
    call, arguments = garbage.good(name, folder)
    return call(**arguments | changes)


def attempts(name, folder, every):
    """Yield an argument, what is wrong with it, and the call."""
    for number, (argument, good) in enumerate(garbage.good(name, folder)[1].items()):
        values = [*garbage.NEVER.items(), *garbage.PERHAPS.items(), *garbage.twisted(good)]
        chosen = range(number % every, len(values), every)
        for what, value in (each for i, each in enumerate(values) if i in chosen or each[0] in ONLY):
            yield argument, what, lambda argument=argument, value=value: called(name, folder, {argument: value})


def finding(name, argument, what, call, known, reference):
    """Return what is wrong with the answer, or None."""
    try:
        found = call()
    except (TypeError, ValueError, IndexError, OSError, FloatingPointError) as error:
        kinds = (TypeError, ValueError, *(kind for kind, names in OTHERS.items() if argument in names))
        if isinstance(error, FloatingPointError):
            return None if re.search("overflows|leaves the range", str(error)) else f"{error!r}"
        words = rf"\b({'|'.join(map(re.escape, known))})\b|{ALSO.get(argument, argument)}"
        same = what in garbage.SAME and argument != "out"  # which is written to
        if type(error).__module__ != "builtins" or not isinstance(error, kinds) or same:
            return f"{error!r}"
        file = isinstance(error, OSError) and error.filename  # which says as much as the name of the argument
        return None if file or re.search(words, str(error)) else f"{error!r}"
    except RuntimeWarning as warning:
        looked_for = not name.startswith("Graph.") or "inf" not in what
        return f"{warning!r}" if looked_for else None
    except Exception as error:
        return f"{error!r}"
    takes = argument if name.startswith("ptx.") else ONLY.get(what, argument)
    if what in garbage.NEVER and (name, what) not in GOOD or not {argument, f"{name}:{argument}"} & {*takes.split()}:
        return f"taken for good: {found!r}"
    if what in garbage.SAME and isinstance(reference, np.ndarray) and not np.array_equal(found, reference):
        return f"another result: {found!r}"
    return None


def attack(name, folder, every):
    call, known = garbage.good(name, folder)
    reference = called(name, folder, {})
    shown = [getattr(call, "__self__", None), *known.values(), *([] if name == "explain" else [reference])]
    assert garbage.badly_shown(*shown) == []
    return {
        f"{argument}: {what}": wrong
        for argument, what, call in attempts(name, folder, every)
        if (name, argument) not in FREE
        if (wrong := finding(name, argument, what, call, known, reference))
    }


def refusals():
    """Yield what `refusals/` says, a file for each room: a call, or a case of `garbage.CASES` and the arguments that
    differ from its good ones; and a regular expression that is found in ``TypeError: x must be ...``.

    That an error names its argument is what `test_some_garbage` sees for all of them: rows are for sentences that give
    advice, and for arguments that do not go together. Of several calls, cases or arguments, each is refused; a message
    may speak of the `{argument}`.
    """
    for path in sorted(Path(__file__).with_name("refusals").glob("*.toml")):
        said = tomllib.loads(path.read_text(encoding="utf-8"))
        for *asked, message in said["refused"]["rows"]:
            for name, *changes in itertools.product(*([each] if isinstance(each, str) else each for each in asked)):
                call = f"called({name!r}, folder, dict({changes[0]}))" if changes else name
                first = changes[0].split("=")[0] if changes else ""
                yield said.get("given", {}), call, message.replace("{argument}", first)


@pytest.mark.parametrize("given, call, message", [*refusals()], ids=itertools.count())
def test_refusals(given, call, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"called": called, "folder": tmp_path}
    for name, text in given.items():
        names[name] = garbage.evaluate(text, **names)
    with pytest.raises((TypeError, ValueError, IndexError, OSError, FloatingPointError)) as caught:
        garbage.evaluate(call, **names)
    assert re.search(message, f"{caught.type.__name__}: {caught.value}"), call


@pytest.mark.parametrize("name", garbage.CASES)
def test_some_garbage(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert attack(name, tmp_path, 10) == {}


@pytest.mark.full
@pytest.mark.parametrize("name", garbage.CASES)
def test_all_garbage(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert attack(name, tmp_path, 1) == {}


def test_nothing_public_is_spared():
    tried = {re.split(r"[.,(]", re.sub(r"^(schedule|multigrid|ptx)\.", "", name))[0] for name in garbage.CASES}
    for package in bp, sparse, schedule, multigrid, graphs, ptx:
        assert set(package.__all__) - tried - ELSEWHERE == set(), package.__name__
