"""Leaves chosen by the labels or the mask that Optax was given.

Optax takes labels as a tree like the parameters, as a prefix of it, or as a function that makes
either. All three are read into one label for every path; a leaf is differentiated where its label
is among the chosen ones. A mask is read as the labels True and False.
"""

import dataclasses
from collections.abc import Hashable

import jax
import numpy as np
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.models import paths
from ntkdiag.models.array_leaves import is_inexact

_WHAT_TO_PASS = (
    'Pass trainable=labelled(labels, "adam") with the labels given to Optax and those that are '
    "trained."
)


@dataclasses.dataclass(frozen=True)
class Labelled:
    """A choice of leaves by label, for `trainable=`; made by `labelled`."""

    # A tree of labels, like the parameters or a prefix of them, or a function of the parameters
    # that makes one.
    labels: PyTree
    chosen: tuple[Hashable, ...]  # the labels that are differentiated

    def for_params(self, params: PyTree) -> PyTree:
        """The tree of labels; where it is made by a function, from what Optax sees: floating."""
        # A module of labels can be called too, but it is a tree; a function is a leaf.
        is_function = jax.tree.structure(self.labels) == jax.tree.structure(0)
        if not callable(self.labels) or not is_function:
            return self.labels
        return self.labels(jax.tree.map(lambda leaf: leaf if is_inexact(leaf) else None, params))

    def mask(self, params: PyTree) -> dict[str, bool]:
        """Path -> whether the leaf has one of the chosen labels; a leaf without a label has not."""
        labels = self._by_path(params)
        for label in self.chosen:
            if label not in labels.values():
                occurring = dict.fromkeys(labels.values())
                raise errors.InvalidInputError(
                    expected=f"labels among which is {label!r}",
                    got=", ".join(map(repr, occurring)) or "none",
                    do=_WHAT_TO_PASS,
                )
        return {path: labels.get(path) in self.chosen for path in paths.leaves_by_path(params)}

    def _by_path(self, params: PyTree) -> dict[str, Hashable]:
        """The label of every leaf that has one."""
        label_tree = self.for_params(params)
        labels: dict[str, Hashable] | None = paths.leaves_by_path(label_tree)
        param_paths = list(paths.leaves_by_path(params))
        if not labels.keys() <= set(param_paths):
            # Then it has to be a prefix: one label for all leaves below it.
            label_paths = list(labels)  # for the message
            labels = paths.spread(label_tree, params)
        if labels is None:
            raise errors.InvalidInputError(
                expected="labels like the parameters, or a prefix of them",
                got=f"labels at {paths.shown(label_paths)} for parameters at "
                f"{paths.shown(param_paths)}",
                do=_WHAT_TO_PASS,
            )
        # Masks come with the booleans of NumPy.
        return {
            path: label.item() if isinstance(label, np.bool_) else label
            for path, label in labels.items()
        }


@errors.public
def labelled(labels: PyTree, *chosen: Hashable) -> Labelled:
    """Choose what Optax trains: by labels of `optax.multi_transform`, or a mask of `optax.masked`.

    Args:
        labels: What was given to Optax: a tree of labels (or of booleans) like the parameters or a
            prefix of them, or a function of the parameters that makes one.
        *chosen: The labels that are differentiated; all others are held fixed. For a mask, leave
            them out.

    Returns:
        For `trainable=` of `functionalize`.

    Example:
        >>> import jax.numpy as jnp, ntkdiag
        >>> params = {"body": jnp.ones((3, 4)), "head": jnp.ones((4, 2))}
        >>> f = lambda params, x: jnp.tanh(x @ params["body"]) @ params["head"]
        >>> labels = {"body": "frozen", "head": "adam"}
        >>> ntkdiag.functionalize(f, params, trainable=labelled(labels, "adam")).params.keys()
        dict_keys(['head'])
    """
    return Labelled(labels, chosen or (True,))
