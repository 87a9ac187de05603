"""Parameter trees by path: the names of leaves, differences between trees, and repacking by name.

A path joins the keys, attribute names and positions that lead to a leaf: `encoder/0/kernel`. The
same parameter has the same path in a module, in a dictionary restored from a checkpoint and in a
list turned into a dictionary. That is how trees in different containers are matched.
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.jaxtools.arguments import leaf_name


@errors.public
def leaves_by_path(tree: PyTree) -> dict[str, PyTree]:
    """Name every leaf of a tree by its path."""
    # JAX names a leaf by a tuple of key objects, one kind for each container.
    leaves: dict[str, PyTree] = {}
    for key_path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        path = leaf_name(key_path)
        if path in leaves:
            raise errors.StructureError(
                expected="every leaf to have a path of its own",
                got=f'two leaves named "{path}"',
                do="Rename one of the keys: integers and strings, and keys with slashes, are "
                "written alike.",
            )
        leaves[path] = leaf
    return leaves


@errors.public
def differences(a: PyTree, b: PyTree) -> list[str]:
    """Compare two trees leaf by leaf: paths, shapes and dtypes, not values and not containers."""
    leaves_a = leaves_by_path(a)
    leaves_b = leaves_by_path(b)
    # Paths that only one of the trees has; then, of the paths in both, shapes and dtypes.
    lines = _unpaired(leaves_a, leaves_b)
    for path, leaf in leaves_a.items():
        if path not in leaves_b:
            continue
        expected = describe(leaf)
        got = describe(leaves_b[path])
        if expected != got:
            lines.append(f"{_path_or_whole(path)}: expected {expected}, got {got}")
    return lines


def _unpaired(leaves_a: Mapping[str, PyTree], leaves_b: Mapping[str, PyTree]) -> list[str]:
    """One line for every path that only one of two trees has."""
    lines = []
    for path, leaf in leaves_a.items():
        if path not in leaves_b:
            lines.append(f"{_path_or_whole(path)}: missing, expected {describe(leaf)}")
    for path, leaf in leaves_b.items():
        if path not in leaves_a:
            lines.append(f"{_path_or_whole(path)}: unexpected {describe(leaf)}")
    return lines


def _path_or_whole(path: str) -> str:
    """A path for a message; a tree that is a single leaf has an empty one."""
    return path or "(the whole tree)"


def describe(leaf: object) -> str:
    """Write dtype and shape of a leaf as ``"float32[3, 4]"``, or its type if it is no array."""
    dtype = getattr(leaf, "dtype", None)
    if dtype is None:
        return type(leaf).__name__
    return f"{dtype}{list(getattr(leaf, 'shape', ()))}"


def shown(lines: Sequence[str], most: int = 12) -> str:
    """Join the parts of a list for a message, and count the parts that are left out."""
    if not lines:
        return "nothing"
    text = "; ".join(lines[:most])
    if len(lines) > most:
        text += f"; and {len(lines) - most} more"
    return text


@errors.public
def require_same(a: PyTree, b: PyTree) -> None:
    """Refuse a tree that differs from the reference in paths, shapes or dtypes."""
    _require_no_differences(differences(a, b))


def repack(tree: PyTree, like: PyTree) -> PyTree:
    """Put the leaves of `tree`, of any shapes and dtypes, into the containers of `like` by path."""
    structure = jax.tree.structure(like)
    # The usual case: parameters that this model made itself.
    if jax.tree.structure(tree) == structure:
        return tree
    # Other containers, or another order: match the leaves by name.
    leaves = leaves_by_path(tree)
    leaves_like = leaves_by_path(like)
    _require_no_differences(_unpaired(leaves_like, leaves))
    return jax.tree.unflatten(structure, [leaves[path] for path in leaves_like])


def spread(prefix: PyTree, tree: PyTree) -> dict[str, PyTree] | None:
    """For every leaf of a tree the value that a prefix of it has; None where it is no prefix."""
    try:
        values = jax.tree.leaves(jax.tree.broadcast(prefix, tree))
        return dict(zip(leaves_by_path(tree), values, strict=True))
    except ValueError:
        return None


def with_leaves(tree: PyTree, values: Mapping[str, PyTree]) -> PyTree:
    """A tree with the values at their paths, as arrays of JAX, and its own leaves elsewhere."""
    # Among the leaves of an Equinox module are functions and settings: they stay what they are.
    leaves = []
    for path, leaf in leaves_by_path(tree).items():
        value = values.get(path, leaf)
        is_array = hasattr(value, "__array_interface__")
        leaves.append(jnp.asarray(value) if is_array else value)
    return jax.tree.unflatten(jax.tree.structure(tree), leaves)


def _require_no_differences(lines: list[str]) -> None:
    """Refuse a tree that differs in what these lines say."""
    if not lines:
        return
    count = "1 difference" if len(lines) == 1 else f"{len(lines)} differences"
    raise errors.StructureError(
        expected="parameters with the paths, shapes and dtypes of this model",
        got=f"{count}: {shown(lines)}",
        do="Pass parameters of the same model (Functional.extract takes them out of a model), or "
        "call ntkdiag.functionalize again.",
    )
