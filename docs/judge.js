// Say what cannot be imported, rather than look for it in the internet.
__BRYTHON__.runPythonSource(`
from browser import self as _window

class Missing:
    def find_spec(name, *_):
        raise ModuleNotFoundError(
            f"this page has no {name}. Do without it, or answer in the notebook, which has all of Python's library "
            "and NumPy; what this page has is listed at its top", name=name
        )

_window.__BRYTHON__.finders.stdlib_static = _window.__BRYTHON__.finders.path = Missing
`, "missing");
self.XMLHttpRequest = self.fetch = undefined;

// An answer may run so many lines, on a slow machine, too; right ones run a tenth of them, most a hundredth. It goes on
// after it has said so, for no answer can keep a page from ending its worker.
const LINES = 5, plain = __BRYTHON__.set_lineno;
let lines = 0;
__BRYTHON__.set_lineno = (frame, line, type) => {
  if (++lines == LINES * 1e6) postMessage(`${LINES} million lines`);
  return plain(frame, line, type);
};

// The worker of the page of puzzles: it says when it is ready, and then judges answers, [name, code].
__BRYTHON__.runPythonSource(`
from browser import self as _window
from judge import PUZZLES, judge

judge("reduce", PUZZLES["reduce"].text())  # what a right answer takes for the first time, before somebody waits for it
_window.judge = judge
`, "begin");
onmessage = ({ data }) => {
  lines = 0;
  postMessage(judge(...data));
};
postMessage("ready");
