"""A tree split into the leaves that are differentiated and the leaves that are held fixed."""

import dataclasses
from typing import Any

import jax
import numpy as np

from ntkdiag import errors
from ntkdiag.adapters import parameters, structure
from ntkdiag.adapters.trainable import trainable_mask


@dataclasses.dataclass(frozen=True, eq=False)
class Partition:
    """The way between a full tree and its trainable part.

    Attributes:
        like: Shapes of the trainable part, in its containers: a function of parameters does not keep them. Held leaves
            are absent: their dictionary keys are dropped, and where the container is not a dictionary, None stands in
            their place.
        held: All leaves in order, None where trainable.
        paths: Paths of all leaves in order.
        mask: One boolean per leaf, True where trainable.
        structure: Structure of the full tree.
    """

    like: Any
    held: list[Any]
    paths: list[str]
    mask: list[bool]
    structure: Any

    @property
    def fixed(self) -> dict[str, Any]:
        """Path -> held leaf, arrays only."""
        return {p: leaf for p, leaf in zip(self.paths, self.held, strict=True) if parameters.is_array(leaf)}

    def merge(self, params: Any, *, call: str = "f(params, x)") -> Any:
        """Put the held leaves back beside `params`.

        Args:
            params: Same paths as `self.like`; shapes are free, as under `vmap`.
            call: The call to name in the message, in code form.

        Returns:
            The full tree.
        """
        moving = iter(jax.tree.leaves(structure.repack(params, self.like, call=call)))
        leaves = [next(moving) if keep else leaf for keep, leaf in zip(self.mask, self.held, strict=True)]
        return jax.tree.unflatten(self.structure, leaves)

    def rebuild(self, params: Any) -> Any:
        """Put the held leaves back beside `params` of the same shapes; dtypes may differ.

        Args:
            params: Same paths and shapes as `self.like`.

        Returns:
            The full tree.

        Raises:
            StructureError: If paths or shapes differ.
        """
        call = "Functional.restore(params)"
        leaves = jax.tree.leaves(structure.repack(params, self.like, call=call))
        if [np.shape(leaf) for leaf in leaves] != [leaf.shape for leaf in jax.tree.leaves(self.like)]:
            structure.require_same(self.like, params, call=call)
        return self.merge(params, call=call)

    def take(self, tree: Any) -> Any:
        """Take the trainable part of another full tree.

        Args:
            tree: A tree that has the paths of `self.like`, in any containers.

        Returns:
            Its trainable part, structured as `self.like`.
        """
        chosen = {path for path, keep in zip(self.paths, self.mask, strict=True) if keep}
        named = structure.leaves_by_path(tree)
        found = {path: parameters.as_jax(leaf) for path, leaf in named.items() if path in chosen}
        # A flat dictionary keyed by whole paths names its leaves as the tree does.
        return structure.repack(found, self.like, call="Functional.extract(model)")


def partition(tree: Any, trainable: Any, *, call: str, check_finite: bool) -> tuple[Any, Partition]:
    """Split a tree into trainable and held leaves.

    Args:
        tree: The full tree.
        trainable: See `trainable_mask`.
        call: The call to name in messages, in code form.
        check_finite: Refuse NaN and infinity in trainable leaves.

    Returns:
        The trainable part, and the way between it and the full tree.

    Raises:
        InvalidInputError: If nothing is trainable.
    """
    named = structure.leaves_by_path(tree)
    mask = trainable_mask(tree, trainable, call=call)
    if not any(mask):
        raise errors.InvalidInputError(
            errors.message(
                call,
                expected="at least one trainable floating parameter",
                got=structure.shown([f"{path}: {structure.describe(leaf)}" for path, leaf in named.items()]),
                do="Pass the initialised parameters, or a `trainable=` that selects some of them.",
            )
        )
    pairs = list(zip(named.values(), mask, strict=True))
    full = jax.tree.structure(tree)
    params = _prune(jax.tree.unflatten(full, [parameters.as_jax(leaf) if keep else None for leaf, keep in pairs]))
    parameters.require_real(params, call=call)
    parameters.require_live(params, call=call)
    if check_finite:
        parameters.require_finite(params, call=call)
    held = [None if keep else leaf for leaf, keep in pairs]
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)
    return params, Partition(like, held, list(named), mask, full)


def _prune(tree: Any) -> Any:
    if type(tree) is not dict:
        return tree
    kept = {key: _prune(value) for key, value in tree.items()}
    return {key: value for key, value in kept.items() if jax.tree.leaves(value)}
