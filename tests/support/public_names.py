"""The public names of the package: those that the pages in `docs/api` describe."""

import functools
import pathlib
import re

import ntkdiag

API_PAGES = sorted((pathlib.Path(__file__).parents[2] / "docs" / "api").glob("*.md"))
DIRECTIVE = re.compile(
    r"^\.\. (?:py:)?(?:auto)?(?:function|class|data|exception):: (\S+)$", flags=re.MULTILINE
)


def documented():
    """What the API pages describe, in order."""
    return [name for page in API_PAGES for name in DIRECTIVE.findall(page.read_text())]


def resolve(name):
    """What a user reaches by this name after `import ntkdiag`."""
    return functools.reduce(getattr, name.split(".")[1:], ntkdiag)
