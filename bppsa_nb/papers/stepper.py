"""Step through a scan, level by level, in a notebook."""

import ipywidgets as widgets
from matplotlib.figure import Figure

from bppsa_nb.machine.checks import check_choice, check_count
from bppsa_nb.papers import panels
from bppsa_nb.scan.trace import span_label, trace
from bppsa_nb.schedule import draw

METHODS = {
    "linear scan": "linear",
    "Blelloch (BPPSA)": "blelloch",
    "truncated": "truncated",
    "Hillis-Steele": "hillis_steele",
}
LARGEST = 63  # more could not be read


def describe(run, level):
    """Say in a sentence what a level (0: the state before the first) does, and in another what was done so far."""
    done = run.levels[:level]
    if not level:
        text = f"The array before the first level: the gradient at x_{run.n}"
        text += f" and {run.n} transposed Jacobian{'s' * (run.n != 1)}." if run.n else ", and nothing to do."
        return text
    this = run.levels[level - 1]
    parts = [" ⋄ ".join(f"({span_label(parent)})" for parent in product.parents) for product in this.products]
    what = f"computes {len(parts)} product{'s' * (len(parts) != 1)}" if parts else "computes nothing"
    few = ", ".join(parts[:4]) + (", …" if len(parts) > 4 else "")
    phase, d, _ = this.level
    where = "linear" if phase == "linear" else f"{phase}-sweep, d = {d}"
    text = f"Level {level} of {run.steps} ({where}) {what}{': ' * bool(parts)}{few}"
    if this.moves:
        text += f", and moves {len(this.moves)} operand{'s' * (len(this.moves) != 1)}"
    kinds = [product.product for before in done for product in before.products]
    text += f". So far {kinds.count('mm')} matrix-matrix and {kinds.count('mv')} matrix-vector products"
    return text + f", of {run.mm} and {run.mv} in all."


def picture(run, level):
    """Draw a scan up to a level, as a PNG."""
    rows = run.rows()
    size = (max(5.0, 2.1 + 0.5 * len(run.result)), 1.6 + 0.7 * len(rows))
    fig = Figure(figsize=size, layout="constrained")
    draw.tree(run, fig.subplots(), upto=level)
    return panels.png(fig)


def stepper(n=7, method="blelloch", levels=1):
    """Step through the levels of a scan over n links, for any n up to 63 and any method.

    Parameters
    ----------
    n : int
        Links of the chain.
    method : {"linear", "blelloch", "truncated", "hillis_steele"}
        Which scan.
    levels : int
        The k of ``"truncated"``.

    Returns
    -------
    ipywidgets.VBox
        Show it as the last line of a cell, and drag the slider.

    Raises
    ------
    ValueError
        If n or levels are out of range, or the method is unknown.
    """
    n, levels = check_count("n", n, 0, LARGEST), check_count("levels", levels, 0, LARGEST)
    check_choice("method", method, METHODS.values())
    links = widgets.BoundedIntText(n, min=0, max=LARGEST, description="n")
    choice = widgets.Dropdown(options=METHODS, value=method, description="method")
    k = widgets.BoundedIntText(levels, min=0, max=LARGEST, description="k")
    slider = widgets.IntSlider(0, min=0, max=1, description="level")
    sentence, image = widgets.HTML(), widgets.Image(format="png", layout={"max_width": "100%"})
    shown = {}

    def show(_=None):
        sentence.value = describe(shown["run"], slider.value)
        image.value = picture(shown["run"], slider.value)

    def rerun(_=None):
        k.layout.display = None if choice.value == "truncated" else "none"
        shown["run"] = trace(links.value, choice.value, k.value if choice.value == "truncated" else None)
        slider.max = shown["run"].steps
        slider.value = 0
        show()

    for control in (links, choice, k):
        control.observe(rerun, "value")
    slider.observe(show, "value")
    rerun()
    return widgets.VBox([widgets.HBox([links, choice, k]), slider, sentence, image])
