"""Formulas as MathML, written when the book is built: no script, nothing from elsewhere, and screen readers read it."""

from docutils import nodes
from latex2mathml.converter import convert


def setup(app):
    """Add the renderer ``"mathml"`` to Sphinx."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _inline(writer, node):
    writer.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _block(writer, node):
    latex = node.astext()
    if "&" in latex and r"\begin" not in latex:
        latex = rf"\begin{{aligned}}{latex}\end{{aligned}}"
    writer.body.append(f'<div class="math" tabindex="0">{convert(latex, display="block")}</div>\n')
    raise nodes.SkipNode
