"""How figures style, and how they are saved: with alt text, a caption, and where their numbers come from."""

import base64
import io
import textwrap
from html import escape

from bppsa_nb.machine import files
from bppsa_nb.schedule.colors import COLORS

MAX_BYTES = 150_000  # of a picture
MAX_VECTOR_BYTES = 230_000
_DPI = 130
_MADE = {"counted": "Counted", "timed": "Timed", "trained": "Trained"}
_FOOT = "foot"
_FOOT_SIZE = 7.5  # points
_STYLE = {  # beside Matplotlib's copy of seaborn's "whitegrid": seaborn itself takes a second to import
    "figure.figsize": (7.2, 4.2),
    "figure.dpi": 110,
    "figure.constrained_layout.use": True,
    "font.sans-serif": ["Arial", "DejaVu Sans", "Liberation Sans", "Bitstream Vera Sans", "sans-serif"],
    "font.size": 12,
    "axes.linewidth": 1.25,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titleweight": "bold",
    "axes.titlesize": 11,
    "axes.labelsize": 10,
    "xtick.bottom": False,
    "ytick.left": False,
    "legend.fontsize": 9,
    "legend.title_fontsize": 12,
    "legend.frameon": False,
    "grid.color": "#e3e3e3",
    "grid.linewidth": 1,
    "patch.edgecolor": "white",
    "patch.force_edgecolor": True,
    "lines.linewidth": 1.8,
}
_TICKS = {"major.size": 6, "major.width": 1.25, "minor.size": 4, "minor.width": 1, "labelsize": 9}
_STYLE |= {f"{axis}tick.{what}": size for axis in "xy" for what, size in _TICKS.items()}


def style():
    """Give the figures drawn from now on the project's style."""
    from matplotlib import cycler, rcParams
    from matplotlib import style as sheets

    palette = [COLORS[role] for role in ("blelloch", "linear", "identity", "vector", "truncated", "chunked")]
    sheets.use("seaborn-v0_8-whitegrid")
    rcParams.update(_STYLE | {"axes.prop_cycle": cycler(color=palette)})


def provenance_line(provenance, origin):
    """Say in one line where a figure's numbers come from, by a table's `attrs["provenance"]` and the figure's `origin`.

    How they were made, machine, scale and data, such as "Timed on NVIDIA H200 · scale: paper · data: synthetic"; what
    is no reference was made "here, on" its machine, and what was collected from recordings names machines above.
    """
    if origin == "collected":
        return f"Collected from recordings of what is named above · data: {provenance['data']}"
    machine = provenance.get("gpu") or f"{provenance['cpu']} ({provenance['cores']} cores)"
    where = f"{_MADE.get(origin, 'Measured')} {'on' if provenance['reference'] else 'here, on'} {machine}"
    return f"{where} · scale: {provenance['scale']} · data: {provenance['data']}"


def save(fig, name, *, alt, caption, provenance, origin):
    """Write `figures/<name>.png`, and `figures/<name>.json` with what the picture alone does not say; return its path.

    The caption and the provenance line, from a table's `attrs["provenance"]`, are drawn small at the figure's foot.
    There is a ValueError if `alt` or `caption` is empty, or the picture is larger than `MAX_BYTES`.
    """
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    for argument, text in (("alt", alt), ("caption", caption)):
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"{argument} must say something about figure {name!r}, got {text!r}")
    alt, caption = " ".join(alt.split()), " ".join(caption.split())
    _draw_foot(fig, [caption, provenance_line(provenance, origin)])
    drawn = io.BytesIO()
    fig.savefig(drawn, format="png", dpi=_DPI, bbox_inches="tight")
    # 256 colors are plenty for a drawing, and half the bytes.
    information = PngInfo()
    for key, text in (("Title", name), ("Description", alt)):  # nothing that changes by itself
        information.add_itxt(key, text)
    picture = io.BytesIO()
    Image.open(drawn).convert("RGB").quantize(256).save(picture, "PNG", optimize=True, pnginfo=information)
    if picture.tell() > MAX_BYTES:
        raise ValueError(
            f"figures/{name}.png would have {picture.tell():,} bytes, more than {MAX_BYTES:,}: "
            "draw fewer marks, or a smaller figure"
        )
    folder = files.root() / "figures"
    with files.atomic_write(folder / f"{name}.png") as file:
        file.write(picture.getvalue())
    described = {"alt": alt, "caption": caption, "origin": origin, "provenance": provenance}
    files.write_json(folder / f"{name}.json", described)
    return folder / f"{name}.png"


def vector(fig, name):
    """Return a figure as an SVG, for pages that have its words beside it, or None if it exceeds `MAX_VECTOR_BYTES`.

    The same figure is the same text.
    """
    import matplotlib

    drawn = io.StringIO()
    fig.draw_without_rendering()
    fig.set_layout_engine("none")  # it is laid out by now, which takes longer than drawing it
    with matplotlib.rc_context({"svg.hashsalt": name}):
        fig.savefig(drawn, format="svg", bbox_inches=fig.get_tightbbox().padded(0.1), metadata={"Date": None})
    return drawn.getvalue() if len(drawn.getvalue()) <= MAX_VECTOR_BYTES else None


class Shown:
    """A picture in `figures/`, as a notebook shows it: once, with its alt text.

    Notebooks embed figures as they were committed, for pages that are only read. Where a figure has been drawn, it
    stands in the place of that.
    """

    def __init__(self, path, alt):
        self.path, self.alt, self._png = path, alt, path.read_bytes()

    def __repr__(self):
        return f"{self.path.name}: {self.alt}"

    def _repr_html_(self):
        from PIL import Image

        width = Image.open(io.BytesIO(self._png)).width * 96 / _DPI
        source = f"data:image/png;base64,{base64.b64encode(self._png).decode()}"
        return (
            f'<style>img[src*="/{self.path.name}"] {{ display: none; }}</style>'
            f'<img src="{source}" alt="{escape(self.alt)}" style="width: {width:.0f}px; max-width: 100%;">'
        )


def _draw_foot(fig, paragraphs):
    for text in [text for text in fig.texts if text.get_gid() == _FOOT]:
        text.remove()  # saved before: the foot is replaced, not stacked
    width, height = fig.get_size_inches()
    # Below everything that the figure draws, labels outside the axes included.
    bottom = min(0.0, fig.get_tightbbox().y0)
    style = {"fontsize": _FOOT_SIZE, "color": "#444444", "linespacing": 1.4}
    foot = fig.text(0.01, (bottom - 0.12) / height, "", va="top", parse_math=False, gid=_FOOT, **style)
    letters = int(25 * width)
    while True:
        lines = [line for paragraph in paragraphs for line in textwrap.wrap(paragraph, letters)]
        foot.set_text("\n".join(lines))
        if foot.get_window_extent().width <= 0.98 * width * fig.dpi or letters <= 10:
            return foot
        letters -= 2
