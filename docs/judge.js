// Say what cannot be imported, rather than look for it in the internet.
__BRYTHON__.runPythonSource(`
from browser import self as _window

class Missing:
    def find_spec(name, *_):
        raise ModuleNotFoundError(
            f"this page has no {name}. Of Python's library it has OFFERED; a notebook has all of it", name=name
        )

_window.__BRYTHON__.finders.stdlib_static = _window.__BRYTHON__.finders.path = Missing
`, "missing");

// In the worker: check an answer, { name, code }; post whether it is right, and what to show.
onmessage = ({ data }) => {
  self.given = data;
  __BRYTHON__.runPythonSource(`
from browser import self as _window
from bppsa_nb.puzzles.checker import IDENTITY, Verdict, said
from bppsa_nb.puzzles.scans import PUZZLES

def leave(*_):
    raise SystemExit

name = _window.given.name
written = {"IDENTITY": IDENTITY, "exit": leave, "quit": leave}
try:
    exec(_window.given.code, written)
    if name in written:
        found = PUZZLES[name].check(written[name])
    else:
        found = Verdict(False, f"there is no {name} in what you wrote")
except SyntaxError as error:
    found = Verdict(False, f"line {error.lineno}: {error.msg}")
except BaseException as error:
    found = Verdict(False, said(error, None))
_window.postMessage([bool(found), found._repr_html_()])
`, "judge" + Math.random().toString(36).slice(2));
};
