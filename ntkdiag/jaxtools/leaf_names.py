"""Names of leaves, `encoder/0/kernel`, and globs over them."""

import re

import jax

# How the parts of a glob are written as a regular expression.
_GLOB_PARTS = re.compile(r"(\*\*/|/\*\*$|\*\*|\*|\?)")
_REGEX_OF_GLOB = {
    "**/": "(?:.*/)?",
    "/**": "(?:/.*)?",
    "**": ".*",
    "*": "[^/]*",
    "?": "[^/]",
}


def leaf_name(path: tuple[object, ...]) -> str:
    """The keys, attributes and positions that lead to a leaf, ``"a/b/0"``; "" for an only leaf."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def matches(glob: str, name: str) -> bool:
    """Whether a glob matches: ``*`` within one part of a name, ``**`` any parts, also none."""
    parts = _GLOB_PARTS.split(glob)  # the signs of a glob, and the plain text between them
    regex = "".join(_REGEX_OF_GLOB.get(part, re.escape(part)) for part in parts)
    return re.fullmatch(regex, name) is not None
