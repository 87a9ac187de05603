"""What a self-check is made of: answers to questions, and the arrays of the model."""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ntkdiag.models.paths import leaves_by_path

Status = Literal["ok", "note", "wrong", "not checked"]


@dataclasses.dataclass(frozen=True)
class Check:
    """The answer to one question."""

    question: str  # what was asked, in a few words
    status: Status  # ``"ok"``; ``"note"``, worth a look; ``"wrong"``; or ``"not checked"``
    text: str  # the answer


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One array of a model."""

    path: str  # its path; for linen the first part of a fixed array is its collection
    shape: tuple[int, ...]  # its shape
    dtype: str  # its dtype
    size: int  # how many numbers it holds
    bytes: int  # how many bytes they take


def describe_leaves(tree: PyTree) -> tuple[Leaf, ...]:
    """The leaves of a tree, or of a dictionary path -> array."""
    return tuple(_describe_leaf(path, leaf) for path, leaf in leaves_by_path(tree).items())


def _describe_leaf(path: str, leaf: jax.Array | np.ndarray) -> Leaf:
    """What one array is, and how much it holds."""
    raw = leaf
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        raw = jax.random.key_data(leaf)  # a random key is an array of integers
    return Leaf(
        path=path,
        shape=tuple(leaf.shape),
        dtype=str(leaf.dtype),
        size=int(np.prod(leaf.shape, dtype=int)),
        bytes=int(raw.size * raw.dtype.itemsize),
    )


def listed(names: list[str], most: int = 8) -> str:
    """Write a list of names, and count those that are left out."""
    text = ", ".join(names[:most])
    if len(names) > most:
        text += f" and {len(names) - most} more"
    return text
