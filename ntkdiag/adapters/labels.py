"""Leaves chosen by the labels or the mask that Optax was given."""

import dataclasses
from typing import Any

import jax
import numpy as np

from ntkdiag import errors
from ntkdiag.adapters import parameters, structure


@dataclasses.dataclass(frozen=True)
class Labelled:
    """A choice of leaves by label, for `trainable=`; made by `labelled`.

    Attributes:
        labels: A tree of labels, like the parameters or a prefix of them, or a function of the parameters.
        chosen: The labels that are differentiated.
    """

    labels: Any
    chosen: tuple[Any, ...]

    def of(self, params: Any) -> Any:
        """The tree of labels for these parameters; a function of them sees what Optax sees, floating arrays."""
        # A module of labels can be called too, but it is a tree; a function is a leaf.
        if not callable(self.labels) or jax.tree.structure(self.labels) != jax.tree.structure(0):
            return self.labels
        return self.labels(jax.tree.map(lambda leaf: leaf if parameters.is_inexact(leaf) else None, params))

    def mask(self, params: Any, *, call: str) -> dict[str, bool]:
        """Path -> whether the leaf has one of the chosen labels.

        Args:
            params: The candidates; leaves that have no label are not chosen.
            call: The call to name in the message, in code form.

        Returns:
            One boolean per leaf.

        Raises:
            InvalidInputError: If the labels do not fit the parameters, or a chosen one does not occur.
        """
        named, tree = structure.leaves_by_path(params), self.of(params)
        labels = structure.leaves_by_path(tree)
        if not labels.keys() <= named.keys():
            try:
                labels = dict(zip(named, jax.tree.leaves(jax.tree.broadcast(tree, params)), strict=True))
            except ValueError:
                got = f"labels at {structure.shown(list(labels))} for parameters at {structure.shown(list(named))}"
                raise _refused(call, "labels like the parameters, or a prefix of them", got) from None
        labels = {path: label.item() if isinstance(label, np.bool_) else label for path, label in labels.items()}
        missing = [label for label in self.chosen if label not in labels.values()]
        if missing:
            there = ", ".join(map(repr, dict.fromkeys(labels.values())))
            raise _refused(call, f"labels among which is {missing[0]!r}", there or "none")
        return {path: labels.get(path) in self.chosen for path in named}


def labelled(labels: Any, *chosen: Any) -> Labelled:
    """Choose what Optax trains: by the labels of `optax.multi_transform`, or the mask of `optax.masked`.

    Args:
        labels: What was given to Optax: a tree of labels (or of booleans) like the parameters or a prefix of them, or
            a function of the parameters that makes one.
        *chosen: The labels that are differentiated; all others are held fixed. For a mask, leave them out.

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


def _refused(call: str, expected: str, got: str) -> errors.InvalidInputError:
    return errors.InvalidInputError(
        errors.message(
            call,
            expected=expected,
            got=got,
            do='Pass trainable=labelled(labels, "adam") with the labels given to Optax and those that are trained.',
        )
    )
