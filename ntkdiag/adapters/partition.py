"""A tree split into the leaves that are differentiated and the leaves that are held fixed."""

import dataclasses
from typing import Any

import jax

from ntkdiag import errors
from ntkdiag.adapters import parameters, structure
from ntkdiag.adapters.trainable import trainable_mask


@dataclasses.dataclass(frozen=True, eq=False)
class Partition:
    """The way between a full tree and its trainable part.

    Attributes:
        params: The trainable part. Held leaves are absent: their dictionary keys are dropped, and where the container
            is not a dictionary, None stands in their place.
        leaves: All leaves in order, None where trainable.
        mask: One boolean per leaf, True where trainable.
        structure: Structure of the full tree.
        fixed: Path -> held leaf, arrays only.
    """

    params: Any
    leaves: list[Any]
    mask: list[bool]
    structure: Any
    fixed: dict[str, Any]

    def merge(self, params: Any, *, call: str = "f(params, x)") -> Any:
        """Put the held leaves back beside `params`.

        Args:
            params: Same paths as `self.params`.
            call: The call to name in the message, in code form.

        Returns:
            The full tree.
        """
        moving = iter(jax.tree.leaves(structure.repack(params, self.params, call=call)))
        leaves = [next(moving) if chosen else leaf for chosen, leaf in zip(self.mask, self.leaves, strict=True)]
        return jax.tree.unflatten(self.structure, leaves)

    def take(self, tree: Any, *, call: str) -> Any:
        """Take the trainable part of another full tree.

        Args:
            tree: Same paths as the tree that was split.
            call: The call to name in the message, in code form.

        Returns:
            Its trainable part, structured as `self.params`.
        """
        full = jax.tree.unflatten(self.structure, [0] * len(self.mask))
        leaves = jax.tree.leaves(structure.repack(tree, full, call=call))
        chosen = [parameters.as_jax(leaf) for leaf, keep in zip(leaves, self.mask, strict=True) if keep]
        return jax.tree.unflatten(jax.tree.structure(self.params), chosen)


def partition(tree: Any, trainable: Any, *, call: str, check_finite: bool) -> Partition:
    """Split a tree into trainable and held leaves.

    Args:
        tree: The full tree.
        trainable: See `trainable_mask`.
        call: The call to name in messages, in code form.
        check_finite: Refuse NaN and infinity in trainable leaves.

    Returns:
        The partition.

    Raises:
        InvalidInputError: If nothing is trainable.
    """
    mask = trainable_mask(tree, trainable, call=call)
    named = structure.leaves_by_path(tree)
    leaves = [parameters.as_jax(leaf) if keep else leaf for leaf, keep in zip(named.values(), mask, strict=True)]
    full = jax.tree.structure(tree)
    params = _prune(jax.tree.unflatten(full, [leaf if keep else None for leaf, keep in zip(leaves, mask, strict=True)]))
    if not any(mask):
        raise errors.InvalidInputError(
            errors.message(
                call,
                expected="at least one trainable floating parameter",
                got=", ".join(f"{path}: {structure.describe(leaf)}" for path, leaf in named.items()) or "no leaves",
                do="Pass the initialised parameters, or a `trainable=` that selects some of them.",
            )
        )
    parameters.require_real(params, call=call)
    if check_finite:
        parameters.require_finite(params, call=call)
    held = [None if keep else leaf for leaf, keep in zip(leaves, mask, strict=True)]
    fixed = {path: leaf for path, leaf in zip(named, held, strict=True) if parameters.is_array(leaf)}
    return Partition(params, held, mask, full, fixed)


def _prune(tree: Any) -> Any:
    if type(tree) is not dict:
        return tree
    kept = {key: _prune(value) for key, value in tree.items()}
    return {key: value for key, value in kept.items() if jax.tree.leaves(value)}
