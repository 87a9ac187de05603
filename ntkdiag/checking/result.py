"""What a self-check found."""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag.adapters import leaves_by_path

Status = Literal["ok", "note", "wrong", "not checked"]


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One array of a model.

    Attributes:
        path: Its path; for linen the first part of a fixed array is its collection.
        shape: Its shape.
        dtype: Its dtype.
        size: How many numbers it holds.
        bytes: How many bytes they take.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    size: int
    bytes: int

    @staticmethod
    def of(tree: Any) -> "tuple[Leaf, ...]":
        """The leaves of a tree, or of a dictionary path -> array."""
        return tuple(Leaf._of_one(path, leaf) for path, leaf in leaves_by_path(tree).items())

    @staticmethod
    def _of_one(path: str, leaf: Any) -> "Leaf":
        raw = jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        size = int(np.prod(leaf.shape, dtype=int))
        return Leaf(path, tuple(leaf.shape), str(leaf.dtype), size, int(raw.size * raw.dtype.itemsize))


@dataclasses.dataclass(frozen=True)
class Finding:
    """The answer to one question.

    Attributes:
        question: What was asked, in a few words.
        status: ``"ok"``; ``"note"``, worth a look; ``"wrong"``; or ``"not checked"``.
        text: The answer.
    """

    question: str
    status: Status
    text: str


@dataclasses.dataclass(frozen=True)
class SelfCheck:
    """What a self-check found; print it for a table.

    Attributes:
        model: Library and name of the model.
        mode: The mode it is evaluated in, as kernels write it into their convention.
        trainable: What is differentiated.
        fixed: What is held fixed.
        findings: One answer per question.
        seconds: How long it took.
    """

    model: str
    mode: str
    trainable: tuple[Leaf, ...]
    fixed: tuple[Leaf, ...]
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong; notes do not count."""
        return all(finding.status != "wrong" for finding in self.findings)

    def __getitem__(self, question: str) -> Finding:
        """The finding of that name."""
        for finding in self.findings:
            if finding.question == question:
                return finding
        raise KeyError(f"{question!r}: there are {', '.join(repr(one.question) for one in self.findings)}")

    def __rich__(self) -> Any:
        """The tables, for `rich.print`."""
        from ntkdiag.checking.table import selfcheck_table

        return selfcheck_table(self)

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        """The tables as plain text, 110 columns wide."""
        from ntkdiag.checking.table import selfcheck_text

        return selfcheck_text(self)
