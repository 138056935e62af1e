// The worker of the page of puzzles: it says when it is ready, and then judges answers, [name, code].
__BRYTHON__.runPythonSource(`
from browser import self as _window

class Missing:  # rather than to look for it in the internet
    def find_spec(name, *_):
        raise ModuleNotFoundError(
            f"this page has no {name}. Of Python's library it has OFFERED; a notebook has all of it", name=name
        )

_window.__BRYTHON__.finders.stdlib_static = _window.__BRYTHON__.finders.path = Missing

from judge import judge

_window.judge = judge
`, "begin");
onmessage = ({ data }) => postMessage(judge(...data));
postMessage("ready");
