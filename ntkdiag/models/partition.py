"""A tree split into the leaves that are differentiated and the leaves that are held fixed.

`partition` decides for every leaf, and gives the trainable part as a tree of its own, in which the
held leaves are absent. What it takes to go back is kept in a `Partition`: the held leaves, which
leaf was which, and the structure of the full tree.
"""

import dataclasses

import jax
import numpy as np
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.jaxtools.arguments import check_params
from ntkdiag.jaxtools.jaxprs import TreeStructure
from ntkdiag.models import paths
from ntkdiag.models.array_leaves import as_jax, is_array
from ntkdiag.models.trainable import Trainable, trainable_mask


@dataclasses.dataclass(frozen=True, eq=False)
class Partition:
    """The way between a full tree and its trainable part."""

    like: PyTree  # shapes and dtypes of the trainable part, in its containers
    held: list[PyTree]  # all leaves of the full tree in order, None where trainable
    leaf_paths: list[str]  # paths of all leaves in order
    mask: list[bool]  # one boolean per leaf, True where trainable
    structure: TreeStructure  # the PyTreeDef of the full tree

    @property
    def fixed(self) -> dict[str, PyTree]:
        """Path -> held leaf, arrays only."""
        leaves = zip(self.leaf_paths, self.held, strict=True)
        return {path: leaf for path, leaf in leaves if is_array(leaf)}

    def merge(self, params: PyTree) -> PyTree:
        """Put the held leaves back beside `params`, whose shapes are free, as under `vmap`."""
        # Both go in leaf order of the full tree: take the next of whichever the mask says.
        trainable = iter(jax.tree.leaves(paths.repack(params, self.like)))
        leaves = []
        for is_trainable, held_leaf in zip(self.mask, self.held, strict=True):
            leaves.append(next(trainable) if is_trainable else held_leaf)
        return jax.tree.unflatten(self.structure, leaves)

    @errors.called("Functional.restore(params)")
    def restore(self, params: PyTree) -> PyTree:
        """Put the held leaves back beside `params` of the same shapes; dtypes may differ."""
        shapes = [np.shape(leaf) for leaf in jax.tree.leaves(paths.repack(params, self.like))]
        if shapes != [leaf.shape for leaf in jax.tree.leaves(self.like)]:
            # This raises, and names what differs by path.
            paths.require_same(self.like, params)
        return self.merge(params)

    @errors.called("Functional.extract(model)")
    def extract(self, tree: PyTree) -> PyTree:
        """Take the trainable part of another full tree, in any containers."""
        trainable_paths = set()
        for path, is_trainable in zip(self.leaf_paths, self.mask, strict=True):
            if is_trainable:
                trainable_paths.add(path)
        # A flat dictionary keyed by whole paths names its leaves as the tree does.
        trainable = {}
        for path, leaf in paths.leaves_by_path(tree).items():
            if path in trainable_paths:
                trainable[path] = as_jax(leaf)
        return paths.repack(trainable, self.like)


def partition(tree: PyTree, trainable: Trainable, *, check: bool) -> tuple[PyTree, Partition]:
    """Split a tree: the leaves that `trainable` chooses, and the way back to the full tree."""
    leaves = paths.leaves_by_path(tree)
    mask = list(trainable_mask(tree, trainable).values())
    if not any(mask):
        described = [f"{path}: {paths.describe(leaf)}" for path, leaf in leaves.items()]
        raise errors.InvalidInputError(
            expected="at least one trainable floating parameter",
            got=paths.shown(described),
            do="Pass the initialized parameters, or a `trainable=` that selects some of them.",
        )
    # Two trees of the same structure, with None where a leaf belongs to the other one.
    trained: list[PyTree] = []
    held: list[PyTree] = []
    for leaf, is_trainable in zip(leaves.values(), mask, strict=True):
        trained.append(as_jax(leaf) if is_trainable else None)
        held.append(None if is_trainable else leaf)
    structure = jax.tree.structure(tree)
    params = _without_empty_entries(jax.tree.unflatten(structure, trained))

    check_params(params, finite=check)

    # Shapes only: a function made from this partition must not keep the parameters alive.
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)
    return params, Partition(like, held, list(leaves), mask, structure)


def _without_empty_entries(tree: PyTree) -> PyTree:
    """Drop the entries of plain dictionaries in which no leaf is left."""
    if type(tree) is not dict:
        return tree
    entries = {}
    for key, subtree in tree.items():
        subtree = _without_empty_entries(subtree)
        if jax.tree.leaves(subtree):
            entries[key] = subtree
    return entries
