"""Settings of Sphinx, which `docs/book.py` runs."""

import re
import sys
from pathlib import Path

from docutils import nodes
from PIL import Image
from sphinx.ext import autosummary
from sphinx.writers.html5 import HTML5Translator

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import bppsa_nb  # noqa: E402

project, version = "bppsa-nb", bppsa_nb.__version__
author = "bppsa-nb contributors"
copyright = f"2026, {author}"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.viewcode", "numpydoc"]
extensions += ["sphinx_copybutton", "mathml", "parameters"]

exclude_patterns = ["benchmarks", "bppsa_nb", "data", "tests"]  # to be linked to, not pages
nb_execution_mode = "off"  # notebooks come executed
nb_merge_streams = True
nb_ipywidgets_js = {}  # no widget manager from elsewhere
nb_mime_priority_overrides = [("html", "text/html", 0)]
myst_enable_extensions = ["amsmath", "attrs_inline", "colon_fence", "dollarmath"]
myst_heading_anchors = 3
suppress_warnings = ["mystnb.unknown_mime_type"]  # of widgets, which are shown as what they drew

default_role = "py:obj"
autosummary_generate = True
autodoc_typehints = "none"  # what parameters take is written behind their names
autodoc_preserve_defaults = True
numpydoc_show_class_members = False
numpydoc_xref_param_type = False
templates_path = [str(HERE / "_templates")]
toc_object_entries_show_parents = "hide"

html_title = "bppsa-nb"
html_favicon = str(HERE / "_static/icon.svg")
html_theme = "furo"
html_math_renderer = "mathml"
html_static_path = [str(HERE / "_static"), str(HERE.parent / "build/book/static")]
html_css_files = ["scan.css", "book.css"]
html_js_files = [("book.js", {"defer": "defer"})]
html_show_sphinx = False
html_copy_source = False
html_permalinks_icon = "#"
html_theme_options = {"navigation_with_keys": True}


def _first_paragraph(doc, document):
    """Return what a table of names says of one: all of its docstring's first paragraph, not what is before a dot."""
    return " ".join(line.strip() for line in "\n".join(doc).strip().split("\n\n")[0].splitlines())


autosummary.extract_summary = _first_paragraph


def _write_image(writer, node):
    """Write an image that loads when it comes into view, and has its place until then."""
    path, more = Path(writer.builder.srcdir, node["uri"]), "loading='lazy'"
    if path.suffix == ".png":
        with Image.open(path) as picture:
            more += f" width='{picture.width}' height='{picture.height}'"
    elif path.suffix == ".svg":
        head = path.read_text(encoding="utf-8")[:2000]
        if size := re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', head):
            more += f" width='{size[1]}' height='{size[2]}'"
    HTML5Translator.visit_image(writer, node)
    writer.body[-1] = writer.body[-1].replace("<img ", f"<img {more} ", 1)


def setup(app):
    """Have Sphinx do what no setting does."""
    app.add_node(nodes.image, override=True, html=(_write_image, None))
