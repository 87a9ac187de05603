"""Which parameters a kernel is split by: leaves, layers of stacked leaves, or path globs."""

import fnmatch

from ntkdiag import errors
from ntkdiag.kernels.ways import Way


def leaf_names(ways: tuple[Way, ...], paths: list[str], stacked: dict[int, int]) -> list[list[str]]:
    """For every part, the names of the leaves it is made of: "path", or "path[layer]" for each layer of a stack."""
    names = []
    for way in ways:
        [leaf] = way.part.leaves
        length = stacked.get(leaf, 1)
        in_leaf_order = way.part.kind in ("dense", "assembled")
        by_layer = all(site.use.weight.block_shape[:1] == (length,) for site in way.part.sites)
        split = length > 1 and (in_leaf_order or by_layer)
        names.append([f"{paths[leaf]}[{k}]" for k in range(length)] if split else [paths[leaf]])
    return names


def _matches(name: str, glob: str) -> bool:
    """Whether a name is, or is matched: ``*`` and ``**`` alike match any part of a path, ``**/`` nothing, too."""
    return name == glob or any(fnmatch.fnmatchcase(name, one) for one in (glob, glob.removeprefix("**/")))


def group(
    names: list[list[str]], wanted: bool | str | list[str], call: str
) -> tuple[tuple[tuple[int, ...], ...], list[str]]:
    """Sort leaves into groups.

    Args:
        names: Per part, names of leaves.
        wanted: True for one group per leaf, or globs: a leaf goes to the first that matches, the rest to "(rest)".
        call: For the message.

    Returns:
        For every part the numbers of its groups, and the names of the groups.

    Raises:
        InvalidInputError: `wanted` is neither, or a glob matches nothing.
    """
    flat = [name for part in names for name in part]
    if wanted is True:
        keys = list(dict.fromkeys(flat))
        return tuple(tuple(keys.index(name) for name in part) for part in names), keys
    globs = [wanted] if isinstance(wanted, str) else wanted
    if not isinstance(globs, list | tuple) or not all(isinstance(glob, str) for glob in globs):
        raise errors.InvalidInputError(
            errors.message(
                call,
                expected="per_leaf= as True, a path glob or a list of path globs",
                got=f"per_leaf={wanted!r}",
                do="per_leaf=True gives the kernel of every parameter.",
            )
        )
    first = lambda name: next((glob for glob in globs if _matches(name, glob)), "(rest)")
    taken = {first(name) for name in flat}
    for glob in globs:
        if glob not in taken:
            raise errors.InvalidInputError(
                errors.message(
                    call,
                    expected="path globs that match parameters",
                    got=f"per_leaf={glob!r}, which matches none" + (" that is left" if len(globs) > 1 else ""),
                    do=f"The parameters are: {', '.join(dict.fromkeys(flat))}.",
                )
            )
    keys = list(dict.fromkeys([*globs, *(first(name) for name in flat)]))
    return tuple(tuple(keys.index(first(name)) for name in part) for part in names), keys
