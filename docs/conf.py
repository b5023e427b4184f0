"""Sphinx builds the site from the pages of this folder: `make docs`. It needs no network.

Pages about models, settings, verbs, the HTTP interface and the public functions are made of the code, so that
they cannot differ from it: see generate.py.
"""

import sys
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))

from generate import write_pages

import unskew

project = "unskew"
author = "the unskew developers"
copyright = f"2026, {author}"
release = version = unskew.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["deflist", "dollarmath"]
myst_heading_anchors = 3
napoleon_google_docstring = False
napoleon_use_rtype = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
nitpicky = False

highlight_language = "text"  # of blocks that name none: commands and output
html_theme = "furo"
html_title = f"unskew {release}"
html_extra_path = ["report.html"]
html_copy_source = False
html_show_sourcelink = False


def math_as_mathml(writer: Any, node: nodes.Element, display: str) -> None:
    """Equations as MathML, which browsers show without a script of anybody else."""
    writer.body.append(convert(node.astext(), display=display))
    raise nodes.SkipNode


def without_notes(hint: Any) -> Any:
    """A type without the notes of `Annotated`, such as the range of a setting."""
    if hasattr(hint, "__metadata__"):
        return without_notes(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return Union[tuple(map(without_notes, get_args(hint)))]  # noqa: UP007 (types that are only known here)
    return hint


def shorten_signature(app: Sphinx, thing: Any, bound_method: bool) -> None:
    """Show bare types in a signature."""
    if signature := getattr(thing, "__signature__", None):
        parameters = [
            of.replace(annotation=without_notes(of.annotation)) for of in signature.parameters.values()
        ]
        thing.__signature__ = signature.replace(parameters=parameters)


def setup(app: Sphinx) -> None:
    """Write the generated pages, and replace the writer of equations."""
    write_pages()
    app.connect("autodoc-before-process-signature", shorten_signature)
    app.add_node(
        nodes.math, override=True, html=(lambda writer, node: math_as_mathml(writer, node, "inline"), None)
    )
    app.add_node(
        nodes.math_block,
        override=True,
        html=(lambda writer, node: math_as_mathml(writer, node, "block"), None),
    )
