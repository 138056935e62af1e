"""Step through a scan, level by level, in a notebook."""

from bppsa_nb.machine import process
from bppsa_nb.machine.checks import check_choice, check_count
from bppsa_nb.scan.trace import trace
from bppsa_nb.schedule.traced import scan_figure

with process.explained():
    import ipywidgets as widgets
    from IPython.display import HTML, display

METHODS = {"linear scan": "linear", "Blelloch (BPPSA)": "blelloch", "truncated": "truncated"}
METHODS |= {"Hillis-Steele": "hillis_steele"}
LARGEST = 63  # more could not be read


class Stepper:
    """A scan to step through: shown as the last line of a cell. See `stepper`."""

    def __init__(self, n, method, levels):
        self.links = widgets.BoundedIntText(n, min=0, max=LARGEST, description="n")
        self.method = widgets.Dropdown(options=METHODS, value=method, description="method")
        self.levels = widgets.BoundedIntText(levels, min=0, max=LARGEST, description="levels")
        self._shown = None
        self.squares = widgets.Dropdown(options=["numbers", "letters", "shapes"], description="squares")
        for control in (self.links, self.method, self.levels, self.squares):
            control.observe(self._redraw, "value")
        self._redraw()

    @property
    def html(self):
        """str: The picture, its slider and its script, which need neither Python nor the internet."""
        truncated = self.method.value == "truncated"
        run = trace(self.links.value, self.method.value, self.levels.value if truncated else None)
        return scan_figure(run, self.squares.value)

    def _redraw(self, _=None):
        self.levels.layout.display = None if self.method.value == "truncated" else "none"
        if self._shown is not None:
            self._shown.update(HTML(self.html))

    def _ipython_display_(self):
        controls = widgets.HBox([self.links, self.method, self.levels, self.squares], layout={"flex_flow": "row wrap"})
        # Without a kernel there is nothing to choose, and nothing is shown in the controls' place.
        display(controls._repr_mimebundle_() | {"text/plain": "", "text/html": ""}, raw=True)
        self._shown = display(HTML(self.html), display_id=True)


def stepper(n=7, method="blelloch", levels=1):
    """Step through the levels of a scan over n links, up to 63, as the last line of a cell; a `Stepper`.

    `method` is "linear", "blelloch", "truncated" or "hillis_steele"; `levels`, the k of "truncated". Drag the slider,
    or use the arrow keys on it. What is out of range or unknown is a ValueError.
    """
    n, levels = check_count("n", n, 0, LARGEST), check_count("levels", levels, 0, LARGEST)
    check_choice("method", method, METHODS.values())
    return Stepper(n, method, levels)
