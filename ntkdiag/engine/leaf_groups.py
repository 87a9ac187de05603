"""Which parameters a kernel is split by: leaves, layers of stacked leaves, or path globs.

Every part of the Jacobian has the name of its leaf, or one name for each layer of a stack that a
scan runs over. `per_leaf=True` makes a group of every name; globs sort the names into groups:

    parts                        names                      groups of ["layers/*", "head"]
    head        [8 10]           head                       1
    layers/w    [2 8 8]          layers/w[0] layers/w[1]    0 0

The kernel of a group is the sum over its names. What no glob matches is the group "(rest)".
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Literal

from ntkdiag import errors
from ntkdiag.engine.jacobian.parts import Part
from ntkdiag.jaxtools.arguments import matches

# The group of what no glob matches.
_REST = "(rest)"


@dataclasses.dataclass(frozen=True)
class LeafGroups:
    """The groups that the parts of the Jacobian belong to."""

    names: tuple[str, ...]  # of the groups
    # For every part the numbers of its groups; several where it is split by layer.
    of_parts: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(
        names_of_parts: list[list[str]], per_leaf: Literal[True] | str | Sequence[str]
    ) -> "LeafGroups":
        """Sort names into groups as `per_leaf=` says: each alone, or by the first matching glob."""
        # A leaf that is used in two ways is two parts of one name.
        names = list(dict.fromkeys(itertools.chain.from_iterable(names_of_parts)))
        if per_leaf is True:
            groups = {name: name for name in names}
            return _numbered(names_of_parts, groups, names)

        # One glob, or several in the order in which they take names.
        globs = [per_leaf] if isinstance(per_leaf, str) else per_leaf
        # The first glob that matches a name takes it.
        groups = {}
        for name in names:
            groups[name] = next((glob for glob in globs if matches(glob, name)), _REST)
        _require_matches(globs, groups)
        # Groups stand in the order of their globs, with the rest at the end.
        return _numbered(names_of_parts, groups, [*globs, *groups.values()])


def names_of(parts: Sequence[Part], paths: list[str], stacked: dict[int, int]) -> list[list[str]]:
    """For every part the names of its leaf: "path", or "path[layer]" for each layer of a stack."""
    names = []
    for part in parts:
        [leaf] = part.leaves
        # A stack can be split by layer where the layers are the outermost part of its coordinates.
        n_layers = stacked.get(leaf, 1)
        in_leaf_order = part.kind in ("dense", "assembled")
        by_layer = all(site.use.weight.block_shape[:1] == (n_layers,) for site in part.sites)
        if n_layers > 1 and (in_leaf_order or by_layer):
            names.append([f"{paths[leaf]}[{layer}]" for layer in range(n_layers)])
        else:
            names.append([paths[leaf]])
    return names


def _numbered(
    names_of_parts: list[list[str]], groups: dict[str, str], order: Sequence[str]
) -> LeafGroups:
    """Groups by number, in an order that may repeat itself."""
    keys = tuple(dict.fromkeys(order))
    number_of = {key: number for number, key in enumerate(keys)}
    of_parts = []
    for names in names_of_parts:
        numbers = [number_of[groups[name]] for name in names]
        of_parts.append(tuple(numbers))
    return LeafGroups(keys, tuple(of_parts))


def _require_matches(globs: Sequence[str], groups: dict[str, str]) -> None:
    """Every glob has a parameter that no glob before it has taken."""
    for glob in globs:
        if glob not in groups.values():
            that_is_left = " that is left" if len(globs) > 1 else ""
            raise errors.InvalidInputError(
                expected="path globs that match parameters",
                got=f"per_leaf={glob!r}, which matches none{that_is_left}",
                do=f"The parameters are: {', '.join(groups)}.",
            )
