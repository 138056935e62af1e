// In the worker: judge an answer, { name, code }; post whether it is right, and what to show.
onmessage = ({ data }) => {
  self.given = data;
  __BRYTHON__.runPythonSource(`
from browser import self as _window
from bppsa_nb.puzzles.heart import IDENTITY, Verdict
from bppsa_nb.puzzles.scans import PUZZLES

name = _window.given.name
written = {"IDENTITY": IDENTITY}
try:
    exec(_window.given.code, written)
    if name in written:
        found = PUZZLES[name].judge(written[name])
    else:
        found = Verdict(False, f"there is no {name} in what you wrote")
except SyntaxError as error:
    found = Verdict(False, f"line {error.lineno}: {error.msg}")
except Exception as error:
    found = Verdict(False, f"{type(error).__name__}: {error}")
_window.postMessage([bool(found), found._repr_html_()])
`, "judge" + Math.random().toString(36).slice(2));
};
