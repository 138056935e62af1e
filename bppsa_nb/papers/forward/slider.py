"""Drag the spectral radius of a network's weights in a notebook, and see where its states are right."""

from bppsa_nb.machine import process
from bppsa_nb.machine.checks import is_number
from bppsa_nb.papers.forward.newton_and_chunks import picture

with process.explained():
    import ipywidgets as widgets

RADII = (0.2, 4.0)


def slider(radius=0.6, seed=0):
    """Show errors over time and iterations, by both methods, of a network whose spectral radius can be dragged.

    The slider begins at `radius`, from 0.2 to 4 or there is a ValueError; `seed` is that of weights and inputs. Returns
    an ipywidgets.VBox, to be shown as the last line of a cell.
    """
    low, high = RADII
    if not is_number(radius) or not low <= radius <= high:
        raise ValueError(f"radius must be from {low} to {high}, got {radius!r}")
    image = widgets.Image(format="png", layout={"max_width": "100%"})
    style = {"style": {"description_width": "initial"}, "layout": {"width": "60%"}, "continuous_update": False}
    control = widgets.FloatSlider(radius, min=low, max=high, step=0.1, description="spectral radius", **style)

    def show(_=None):
        image.value = picture(control.value, seed)

    control.observe(show, "value")
    show()
    return widgets.VBox([control, image])
