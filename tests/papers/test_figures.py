import io
import re
import xml.etree.ElementTree as ET

import matplotlib.pyplot as plt
import numpy as np
import pytest
from PIL import Image
from texts import beside

from bppsa_nb.machine import files
from bppsa_nb.papers import figures

PROVENANCE = {"cpu": "Fine Processor", "cores": 2, "gpu": None, "scale": "quick", "data": "stand-in", "reference": True}
TEXT = {"alt": "A line that goes up.", "caption": "It goes up by $1 a step, Θ(n)."}


@pytest.fixture(autouse=True)
def _folder(project):
    with plt.rc_context():
        figures.style()
        yield


def line():
    fig, ax = plt.subplots()
    ax.plot(np.arange(4), np.arange(4) ** 2)
    ax.set(xlabel="n", ylabel="work")
    return fig


def feet(fig):
    return [text for text in fig.texts if text.get_gid() == "foot"]


def test_save_writes_picture_and_words(tmp_path):
    path = figures.save(line(), "up", provenance=PROVENANCE, origin="timed", **TEXT)
    assert path == tmp_path / "figures" / "up.png"
    assert files.read_json(tmp_path / "figures" / "up.json") == {**TEXT, "origin": "timed", "provenance": PROVENANCE}
    with Image.open(path) as picture:
        assert picture.text == {"Title": "up", "Description": TEXT["alt"]}
        assert min(picture.size) > 400


def test_same_figure_same_bytes():
    first = figures.save(line(), "up", provenance=PROVENANCE, origin="timed", **TEXT)
    picture = first.read_bytes()
    figures.save(line(), "up", provenance=PROVENANCE, origin="timed", **TEXT)
    assert first.read_bytes() == picture and figures.vector(line(), "up") == figures.vector(line(), "up")


def test_what_scales_has_no_foot(monkeypatch):
    text = figures.vector(line(), "up")
    assert ET.fromstring(text).tag.endswith("svg") and "<!-- work -->" in text and "Fine" not in text
    monkeypatch.setattr(figures, "MAX_VECTOR_BYTES", 1000)
    assert figures.vector(line(), "up") is None


def test_foot_says_caption_machine_scale_and_data_and_is_not_stacked():
    fig = line()
    figures.save(fig, "up", provenance=PROVENANCE, origin="timed", **TEXT)
    figures.save(fig, "up", provenance=PROVENANCE | {"data": "real"}, origin="timed", **TEXT)
    (foot,) = feet(fig)
    said = "Timed on Fine Processor (2 cores) · scale: quick · data: real"
    assert foot.get_text().split("\n") == [TEXT["caption"], said]


def test_foot_is_wrapped_and_lies_below_everything_inside_the_width():
    fig = line()
    fig.axes[0].set_xlabel("a label\non\nthree lines")
    drawn = fig.get_tightbbox()
    figures.save(fig, "up", alt="x", caption="many words " * 60, provenance=PROVENANCE, origin="timed")
    (foot,) = feet(fig)
    box = foot.get_window_extent(fig.canvas.get_renderer()).transformed(fig.dpi_scale_trans.inverted())
    assert box.y1 < drawn.y0
    assert box.x1 <= fig.get_size_inches()[0]
    assert foot.get_text().count("\n") > 3


@pytest.mark.parametrize("about, origin, line", beside(__file__)["lines"])
def test_the_line_says_how_numbers_were_made_and_where(about, origin, line):
    assert figures.provenance_line(PROVENANCE | about, origin) == f"{line} · data: stand-in"


@pytest.mark.parametrize("missing", ["alt", "caption"])
@pytest.mark.parametrize("nothing", ["", "  \n", None])
def test_words_are_required(tmp_path, missing, nothing):
    with pytest.raises(ValueError, match=f"{missing} must say something about figure 'up'"):
        figures.save(line(), "up", provenance=PROVENANCE, origin="timed", **(TEXT | {missing: nothing}))
    assert not (tmp_path / "figures").exists()


def test_a_heavy_picture_is_refused(tmp_path):
    fig, ax = plt.subplots()
    ax.imshow(np.random.default_rng(0).random((600, 600)))
    with pytest.raises(ValueError, match=r"heavy\.png would have [\d,]+ bytes, more than 150,000"):
        figures.save(fig, "heavy", provenance=PROVENANCE, origin="timed", **TEXT)
    assert not (tmp_path / "figures").exists()


def test_roles_have_colors_that_tell_methods_apart():
    assert all(re.fullmatch("#[0-9A-F]{6}", color.upper()) for color in figures.COLORS.values())
    methods = ["linear", "blelloch", "truncated", "chunked", "baseline"]
    forward, layers = ["linear", "chunked", "newton", "auto"], ["linear", "blelloch", "pipeline", "multigrid"]
    for roles in (["matrix", "vector", "identity"], methods, forward, layers, ["PyTorch", "JAX"]):
        assert len({figures.COLORS[role] for role in roles}) == len(roles)


def test_the_foot_is_in_the_picture_and_in_a_notebook_s():
    fig = line()
    fig.savefig(bare := io.BytesIO(), format="png", bbox_inches="tight")
    path = figures.save(fig, "up", provenance=PROVENANCE, origin="timed", **TEXT)
    fig.savefig(inline := io.BytesIO(), format="png", bbox_inches="tight")
    for picture in (io.BytesIO(path.read_bytes()), inline):
        width, height = Image.open(picture).size
        bare_width, bare_height = Image.open(bare).size
        assert height / width > 1.05 * bare_height / bare_width
