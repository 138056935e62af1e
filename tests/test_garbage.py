"""Everything public, called with garbage for one argument, of every kind: an error that names the argument, or a right
result, where the argument's annotation allows the value.
"""

import itertools
import re
import tomllib
from pathlib import Path

import garbage
import numpy as np
import pytest
from described import Call

import bppsa_nb as bp
import warpwatch
from bppsa_nb import graphs, multigrid, schedule, sparse

# What a TypeError or ValueError may be called instead, where documented: an argument that names something that is not
# there, or numbers whose result leaves the range.
OTHERS = {IndexError: {"indices"}, FileNotFoundError: {"path", "source"}, OSError: {"path", "save_to"}}
# What an error calls an argument that others know under another name.
ALSO = {"y": "labels", "model": "params", "values": "x|w|grad_y", "grad_outputs": "grad_y", "solver": "cycles"}
ALSO |= {"input_shape": "operator 'c'|operator 'o'", "x": "operator 'c'", "opening": "operator", "closing": "operator"}
ALSO |= {"one": "argument 0", "two": "argument 1", "out": "out|argument 2", "size": "argument 3"}
# Operands may be of any kind that knows ⋄, and answer for themselves.
FREE = {("scan", "operands")}
GOOD = {("warpwatch.run", "records"), ("warpwatch.empty", "class")}  # of what nothing else takes
# What annotations do not describe: arguments that may be of several kinds, or of any library; and numbers that are not
# finite. Of these, what only some take for good, each wherever it is found, or of one call; warpwatch takes any arrays.
UNDESCRIBED = {
    *("jacobians_T", "grad_output", "local_grads", "comm", "carry", "h0", "grad_logits"),
    *("model", "optimizer", "dataset"),
    *("scan:operands", "trace:levels", "puzzles.grade:only"),
}
NONE = "True", "infinity", "empty text", "nonsense", "more axes", "narrower", "shorter", "empty", "a list", "masked"
ONLY = dict.fromkeys((*NONE, *(f"of dtype {dtype}" for dtype in "f2 f8 i4 ? c8".split())), "") | {
    "-1": "carry",
    "0": "levels carry steps n",
    "1.5": "carry",
    "None": "local_grads comm levels carry length h0",
    "fewer axes": "carry",
    "with nan": "values StructuredChain:weights slopes carry inputs ArrayDataset:x out PlannedProduct.performed:a",
    "with inf": "values StructuredChain:weights slopes carry inputs ArrayDataset:x out PlannedProduct.performed:a",
}
HIDDEN = {"with nan", "with inf", "all NaN"}  # which no annotation speaks of
ELSEWHERE = {"Instruments", "History"}  # the one reads recordings (datasets/test_audio.py), the other nothing
ELSEWHERE |= {"assert_clean", "use_without_gpu", "Finding", "Report"}  # warpwatch.run, and what it gives
ELSEWHERE |= {"Cell", "Recurrent"}  # check_cell; RNN
ELSEWHERE |= {"VGG11", "TwoStreams", "Solution", "Node", "library"}  # like LeNet5; results


def called(name, folder, changes):
    call, arguments = garbage.good(name, folder)
    return call(**arguments | changes)


def attempts(name, folder):
    """Yield an argument, what is wrong with it, its value, and the call."""
    for argument, good in garbage.good(name, folder)[1].items():
        for what, value in [*garbage.NEVER.items(), *garbage.PERHAPS.items(), *garbage.twisted(good)]:
            yield argument, what, value, lambda argument=argument, value=value: called(name, folder, {argument: value})


def finding(name, argument, what, value, call, known, reference, described):
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
    if described.describes(argument) and what not in HIDDEN and not name.startswith("warpwatch."):
        taken = described.takes(argument, value)
    else:
        listed = argument if name.startswith("warpwatch.") else ONLY.get(what, argument)
        taken = bool({argument, f"{name}:{argument}"} & {*listed.split()})
    if what in garbage.NEVER and (name, what) not in GOOD or not taken:
        return f"taken for good: {found!r}"
    if what in garbage.SAME and isinstance(reference, np.ndarray) and not np.array_equal(found, reference):
        return f"another result: {found!r}"
    return None


def attack(name, folder):
    call, known = garbage.good(name, folder)
    reference = called(name, folder, {})
    shown = [getattr(call, "__self__", None), *known.values(), *([] if name == "explain" else [reference])]
    assert garbage.badly_shown(*shown) == []
    described = Call(call, known)
    return {
        f"{argument}: {what}": wrong
        for argument, what, value, attempt in attempts(name, folder)
        if (name, argument) not in FREE
        if (wrong := finding(name, argument, what, value, attempt, known, reference, described))
    }


def refusals():
    """Yield what `refusals/` says, a file for each room: a call, or a case of `garbage.CASES` and the arguments that
    differ from its good ones; and a regular expression that is found in ``TypeError: x must be ...``.

    That an error names its argument is what `test_garbage` sees for all of them: rows are for sentences that give
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
def test_garbage(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert attack(name, tmp_path) == {}


def test_annotations_describe_all_other_arguments(tmp_path):
    for name in garbage.CASES:
        call = Call(*garbage.good(name, tmp_path))
        loose = {kind for kind in call.good if not {kind, f"{name}:{kind}"} & UNDESCRIBED and not call.describes(kind)}
        assert name.startswith("warpwatch.") or loose == set(), name


def test_nothing_public_is_spared():
    tried = {re.split(r"[.,(]", re.sub(r"^(schedule|multigrid|warpwatch)\.", "", name))[0] for name in garbage.CASES}
    for package in bp, sparse, schedule, multigrid, graphs, warpwatch:
        assert set(package.__all__) - tried - ELSEWHERE == set(), package.__name__
