"""Two sides of a comparison beside each other: two checkpoints, which tables tell apart."""

import dataclasses
import os

from ntkdiag import errors
from ntkdiag.comparison.load import Side


def require_two(a: Side, b: Side) -> tuple[Side, Side]:
    """Refuse two sides that are one checkpoint; give them labels that tell them apart."""
    if _are_one_checkpoint(a, b):
        raise errors.InvalidInputError(
            expected="two different checkpoints",
            got=f"{a.path} {a.label} twice",
            do='Two steps of one manager root are "root@0" and "root@100".',
        )
    if a.label == b.label:
        a = dataclasses.replace(a, label=f"A: {a.label}")
        b = dataclasses.replace(b, label=f"B: {b.label}")
    return a, b


def _are_one_checkpoint(a: Side, b: Side) -> bool:
    """Whether two sides are the same step of the same path."""
    if a.path is None or b.path is None:
        return False
    return _absolute(a.path) == _absolute(b.path) and a.step == b.step


def _absolute(path: str) -> str:
    """A path by which two names of one directory are known as the same, links included."""
    return os.path.realpath(os.path.expanduser(path))
