"""What sentences and advice have in common: where the parameters stand that do nothing, and how."""

from collections.abc import Sequence

from ntkdiag import display
from ntkdiag.report.reported import Comparison, Measured


def reached_leaves(side: Measured) -> list[str]:
    """Paths of the leaves whose kernel is not zero: some gradient reaches them."""
    return [path for path, kernel in side.leaf_kernels.items() if kernel.any()]


def unreached_leaves(side: Measured) -> list[str]:
    """Paths of the leaves whose kernel is zero: no gradient on the probe reaches them."""
    return [path for path, kernel in side.leaf_kernels.items() if not kernel.any()]


def unmoved_leaves(comparison: Comparison) -> list[str]:
    """Paths of the leaves that did not move while others did, though gradients reach them.

    At A and at B: where a gradient reached a leaf at A alone, training may have lost it early.
    """
    *leaves, everything = comparison.movement
    if everything.moved == 0:
        return []
    return [
        leaf.path for leaf in leaves if leaf.moved == 0 and leaf.share_a > 0 and leaf.share_b > 0
    ]


def some_of(paths: Sequence[str]) -> str:
    """Paths joined by commas, the first four of them, and how many more there are."""
    return display.some_of(path or "(the only leaf)" for path in paths)
