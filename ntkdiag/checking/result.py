"""The result of a self-check: answers to questions and the arrays of the model, as tables."""

import dataclasses
from typing import TYPE_CHECKING, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ntkdiag import display
from ntkdiag.models.paths import leaves_by_path

if TYPE_CHECKING:
    from rich.console import Group

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
    described = []
    for path, leaf in leaves_by_path(tree).items():
        raw = leaf
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            raw = jax.random.key_data(leaf)  # a random key is an array of integers
        n_bytes = int(raw.size * raw.dtype.itemsize)
        size = int(np.prod(leaf.shape, dtype=int))
        described.append(Leaf(path, tuple(leaf.shape), str(leaf.dtype), size, n_bytes))
    return tuple(described)


def listed(names: list[str], most: int = 8) -> str:
    """Write a list of names, and count those that are left out."""
    text = ", ".join(names[:most])
    if len(names) > most:
        text += f" and {len(names) - most} more"
    return text


@dataclasses.dataclass(frozen=True)
class SelfCheck:
    """What a self-check found; print it for a table.

    Attributes:
        model: Library and name of the model.
        mode: The mode it is evaluated in, as kernels write it into their convention.
        trainable: The arrays that are differentiated, each with `path`, `shape`, `dtype`, `size`
            (how many numbers) and `bytes`.
        fixed: Those that are held fixed, likewise.
        findings: One answer per question, each with `question`, `status` ("ok", "note", "wrong" or
            "not checked") and `text`; `check["engine"]` is the one of that name.
        seconds: How long it took.
    """

    model: str
    mode: str
    trainable: tuple[Leaf, ...]
    fixed: tuple[Leaf, ...]
    findings: tuple[Check, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong; notes do not count."""
        return all(finding.status != "wrong" for finding in self.findings)

    def __getitem__(self, question: str) -> Check:
        """The finding of that name."""
        for finding in self.findings:
            if finding.question == question:
                return finding
        questions = ", ".join(repr(finding.question) for finding in self.findings)
        raise KeyError(f"{question!r}: there are {questions}")

    def to_dict(self) -> dict[str, display.PlainValue]:
        """Everything as plain JSON values, with `ok`."""
        return display.plain({"ok": self.ok, **dataclasses.asdict(self)})

    def __rich__(self) -> "Group":
        """The tables, for `rich.print`."""
        # Imported here: rich is not needed to check a model.
        from rich.console import Group
        from rich.padding import Padding
        from rich.text import Text

        from ntkdiag.checking import tables

        verdict = Text("something is wrong", "bold red")
        if self.ok:
            verdict = Text("nothing is wrong", "bold green")
        heading = Text.assemble(
            (self.model, "bold"), f", mode {self.mode}: ", verdict, f"  ({self.seconds:.1f} s)"
        )
        parts = [
            heading,
            tables.leaves_table("Differentiated", self.trainable),
            tables.leaves_table("Held fixed", self.fixed),
            tables.findings_table("Checked", self.findings),
        ]
        return Group(*(Padding(part, (0, 0, 1, 0)) for part in parts))

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        """The tables as plain text, 110 columns wide."""
        from ntkdiag.checking import tables

        return tables.as_text(self)
