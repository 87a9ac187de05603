"""Which parameters a kernel is split by: leaves, layers of stacked leaves, or path globs.

Every part of the Jacobian has the name of its leaf, or one name for each layer of a stack that a
scan runs over. `per_leaf=True` makes a group of every name; globs sort the names into groups.
"""

import dataclasses
import fnmatch
from collections.abc import Sequence

from ntkdiag import errors
from ntkdiag.engine.jacobian.parts import Part

_REST = "(rest)"


@dataclasses.dataclass(frozen=True)
class LeafGroups:
    """The groups that the parts of the Jacobian belong to.

    Attributes:
        names: Of the groups.
        of_parts: For every part the numbers of its groups; several where it is split by layer.
    """

    names: tuple[str, ...]
    of_parts: tuple[tuple[int, ...], ...]

    @staticmethod
    def none(n_parts: int) -> "LeafGroups":
        """No groups: everything is added up."""
        return LeafGroups((), ((0,),) * n_parts)

    @staticmethod
    def of(names_of_parts: list[list[str]], per_leaf: bool | str | Sequence[str]) -> "LeafGroups":
        """Sort names into groups as `per_leaf=` says: each alone, or by the first matching glob.

        Raises:
            InvalidInputError: `per_leaf` is neither True nor path globs, or a glob matches nothing.
        """
        names = list(dict.fromkeys(name for part in names_of_parts for name in part))
        if per_leaf is True:
            groups = {name: name for name in names}
            return _numbered(names_of_parts, groups, names)
        globs = [per_leaf] if isinstance(per_leaf, str) else per_leaf
        if not isinstance(globs, list | tuple) or not all(isinstance(glob, str) for glob in globs):
            raise errors.InvalidInputError(
                expected="per_leaf= as True, a path glob or a list of path globs",
                got=f"per_leaf={per_leaf!r}",
                do="per_leaf=True gives the kernel of every parameter.",
            )
        groups = {name: _first_match(name, globs) for name in names}
        _require_matches(globs, groups)
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
    keys = list(dict.fromkeys(order))
    number = {key: k for k, key in enumerate(keys)}
    of_parts = [tuple(number[groups[name]] for name in names) for names in names_of_parts]
    return LeafGroups(tuple(keys), tuple(of_parts))


def _first_match(name: str, globs: Sequence[str]) -> str:
    """The first glob that matches a name."""
    for glob in globs:
        if _matches(name, glob):
            return glob
    return _REST


def _matches(name: str, glob: str) -> bool:
    """Whether a glob matches: ``*`` and ``**`` any part of a path, ``**/`` also nothing."""
    if name == glob or fnmatch.fnmatchcase(name, glob):
        return True
    return fnmatch.fnmatchcase(name, glob.removeprefix("**/"))


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
