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

// The worker of the page of puzzles: it says when it is ready, and then judges answers, [name, code].
__BRYTHON__.runPythonSource(`
from browser import self as _window
from judge import judge

judge("", "")  # imports what it needs before somebody waits for it
_window.judge = judge
`, "begin");
onmessage = ({ data }) => postMessage(judge(...data));
postMessage("ready");
