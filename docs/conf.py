"""Sphinx configuration: `sphinx-build -W docs docs/_build`, without network."""

import os
import re

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # the executed pages run wherever the documentation is built

import ntkdiag

project = "ntkdiag"
author = "the ntkdiag authors"
copyright = author
version = release = ntkdiag.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build", "jupyter_execute"]
default_role = "code"

html_theme = "sphinx_book_theme"
html_title = "ntkdiag"
html_theme_options = {"show_toc_level": 2, "use_download_button": False}

myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_execution_show_tb = True

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = ["Cost", "Source"]

_SECTION = re.compile(r"(Args|Returns|Yields|Raises|Attributes|Example|Examples|Cost|Source):$")
_LITERAL = re.compile(r"(``.*?``|`.*?`)")


def _as_restructured_text(app, what, name, obj, options, lines):
    """Docstrings are plain text: escape what reStructuredText reads as markup, and keep indented code as code."""
    in_section = False
    for k, line in enumerate(lines):
        in_section = bool(_SECTION.match(line)) or (in_section and (not line or line.startswith(" ")))
        pieces = _LITERAL.split(line)
        pieces[::2] = [re.sub(r"(?<!\\)([|]|\*(?!\*))", r"\\\1", piece) for piece in pieces[::2]]
        if not line.lstrip().startswith((">>>", "...", "**", "*")):
            lines[k] = "".join(pieces)
        before = k >= 2 and not lines[k - 1].strip() and lines[k - 2].strip()
        if before and line.startswith("    ") and not in_section and not lines[k - 2].startswith((" ", "-", "::")):
            lines[k - 1] = "\n::\n"
            lines[k] = line
    lines[:] = "\n".join(lines).split("\n")


def setup(app):
    """Register the conversion before napoleon's own (priority 500)."""
    app.connect("autodoc-process-docstring", _as_restructured_text, priority=400)
