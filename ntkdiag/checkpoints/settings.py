"""What a comparison is asked to measure, checked before anything is computed."""

import dataclasses
import hashlib
from typing import Any, Literal

import jax
import numpy as np

from ntkdiag import errors

Loss = Literal["mse", "cross_entropy"]
OUTPUTS = ("full", "mean", "trace", "sum-of-logits")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Probe, labels and conventions of a comparison; see `compare` for their meaning.

    Attributes:
        x: Probe examples, N on the leading axis of every leaf.
        y: Labels or targets, or None.
        outputs: Reduction of the kernels.
        loss: Loss of the loss and stability numbers, mean over examples.
        learning_rate: Learning rate for the stability margin, or None.
        momentum: Heavy-ball momentum.
        memory: Memory budget of a kernel.
    """

    x: Any
    y: np.ndarray | None
    outputs: str
    loss: Loss
    learning_rate: float | None
    momentum: float
    memory: Any

    @property
    def n_examples(self) -> int:
        """Number of probe examples."""
        return jax.tree.leaves(self.x)[0].shape[0]

    @property
    def probe(self) -> str:
        """SHA-256 of the probe examples: dtype, shape and bytes of every leaf."""
        digest = hashlib.sha256()
        for leaf in jax.tree.leaves(self.x):
            array = np.asarray(leaf)
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


def read_settings(
    x: Any, y: Any, outputs: str, loss: str, learning_rate: float | None, momentum: float, memory: Any
) -> Settings:
    """Check the arguments of `compare` that do not depend on the model.

    Returns:
        The settings.

    Raises:
        InvalidInputError: An argument is out of range, or x and y do not hold the same number of examples.
    """
    sizes = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(x)}
    _require(len(sizes) == 1 and sizes.isdisjoint({(), (0,)}), "x=...", "one or more examples on the leading axis of x",
             f"shapes {[np.shape(leaf) for leaf in jax.tree.leaves(x)]}", "Pass a probe batch [N ...].")  # fmt: skip
    bad = [
        leaf for leaf in map(np.asarray, jax.tree.leaves(x)) if leaf.dtype.kind == "f" and not np.isfinite(leaf).all()
    ]
    _require(not bad, "x=...", "a finite probe", "NaN or infinity in x", "Drop the examples that hold them.")
    _require(outputs in OUTPUTS, f"outputs={outputs!r}", f"one of {OUTPUTS}", repr(outputs), 'The default is "full".')
    name = str(loss).replace("-", "_")
    _require(name in ("mse", "cross_entropy"), f"loss={loss!r}", '"mse" or "cross_entropy"', repr(loss),
             "It sets the loss and the stability numbers; kernels do not depend on it.")  # fmt: skip
    _require(learning_rate is None or learning_rate > 0, f"learning_rate={learning_rate!r}", "a positive number",
             repr(learning_rate), "Leave it out to skip the stability margin.")  # fmt: skip
    _require(
        0 <= momentum < 1, f"momentum={momentum!r}", "a number in [0, 1)", repr(momentum), "Pass optax.sgd's momentum."
    )
    labels = None if y is None else np.asarray(y)
    n = next(iter(sizes))[0]
    if labels is not None:
        _require(labels.shape[:1] == (n,) and labels.ndim <= 2, "y=...", f"one label for each of the {n} examples of x",
                 f"shape {labels.shape}", "x and y are the same examples in the same order.")  # fmt: skip
    return Settings(x, labels, outputs, name, learning_rate, float(momentum), memory)  # pyright: ignore[reportArgumentType]


def _require(right: bool, argument: str, expected: str, got: str, do: str) -> None:
    if not right:
        raise errors.InvalidInputError(errors.message(f"compare({argument})", expected=expected, got=got, do=do))
