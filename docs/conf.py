"""Sphinx: `sphinx-build -W docs docs/_build`; pages are built and read without network."""

import re
import typing

# jaxtyping then writes Float[Array, "n o"] in signatures.
typing.GENERATING_DOCUMENTATION = "ntkdiag"

from docutils import nodes  # noqa: E402
from latex2mathml.converter import convert  # noqa: E402

import ntkdiag  # noqa: E402

project = "ntkdiag"
author = "the ntkdiag authors"
copyright = author
version = release = ntkdiag.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build"]
default_role = "code"

html_theme = "sphinx_book_theme"
html_title = "ntkdiag"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_theme_options = {
    "show_toc_level": 2,
    "use_download_button": False,
    "navbar_persistent": [],
}

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
html_math_renderer = "mathml"  # see `setup`

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False

_SECTION = re.compile(r"(Args|Returns|Yields|Raises|Attributes|Example):$")
_LITERAL = re.compile(r"(``.*?``|`.*?`|\*\w[\w ]*\*)")
_COLON = "\ue000"


def _to_restructured_text(app, what, name, obj, options, lines):
    """Docstrings are plain text: escape what would be markup, keep indented code as code."""
    text: list[str] = []
    in_section = False
    for line in lines:
        in_section = bool(_SECTION.match(line)) or (
            in_section and (not line or line.startswith(" "))
        )
        if line.startswith(("Cost:", "Source:")) and text:
            text.append("")
        is_code = line.startswith("    ") and not in_section
        if (
            is_code
            and len(text) > 1
            and not text[-1]
            and not text[-2].startswith((" ", "-"))
        ):
            text += ["::", ""]
        text.append(
            line
            if is_code or line.lstrip().startswith((">>>", "*"))
            else _escaped(line)
        )
    if what == "property":  # napoleon would read "words: words" as a type
        text = [line.replace(":", _COLON) for line in text]
    lines[:] = text


def _escaped(line):
    pieces = _LITERAL.split(line)
    pieces[::2] = [
        re.sub(r"(?<!\\)([|*])", r"\\\1", piece) for piece in pieces[::2]
    ]
    return "".join(pieces)


def _restore_colons(app, what, name, obj, options, lines):
    lines[:] = [line.replace(_COLON, ":") for line in lines]


def _inline_formula(translator, node):
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _displayed_formula(translator, node):
    translator.body.append(
        f'<div class="math">{convert(node.astext(), display="block")}</div>'
    )
    raise nodes.SkipNode


def setup(app):
    """Docstrings are converted before napoleon does it (priority 500), and cleaned up after it.

    Formulas become MathML, which browsers draw by themselves.
    """
    app.add_html_math_renderer(
        "mathml", (_inline_formula, None), (_displayed_formula, None)
    )
    app.connect(
        "autodoc-process-docstring", _to_restructured_text, priority=400
    )
    app.connect("autodoc-process-docstring", _restore_colons, priority=600)
