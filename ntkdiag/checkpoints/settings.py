"""What a comparison is asked to measure, checked before anything is computed."""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag import errors
from ntkdiag.adapters.structure import shown
from ntkdiag.kernels.probe import digest

Loss = Literal["mse", "cross_entropy"]
LOSSES = ("mse", "cross_entropy")
OUTPUTS = ("auto", "full", "mean", "trace", "sum-of-logits")


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
        """SHA-256 of the probe examples, as the kernels name it."""
        return digest(jax.tree.map(jnp.asarray, self.x))


def read_settings(
    x: Any, y: Any, outputs: str, loss: Loss, learning_rate: float | None, momentum: float, memory: Any
) -> Settings:
    """Check the arguments of `compare` that do not depend on the model.

    Returns:
        The settings.

    Raises:
        InvalidInputError: An argument is out of range, or x and y do not hold the same number of examples.
    """
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(x)]
    shapes = [leaf.shape for leaf in leaves]
    same = len({shape[:1] for shape in shapes}) == 1 and shapes[0] != ()
    if not same or shapes[0][0] < 2:
        got = f"shapes {shown([str(shape) for shape in shapes])}"
        do = "Pass a probe batch [N ...], arrays and no lists; what is centred needs two examples or more."
        raise _error("x=...", "two or more examples on the leading axis of every leaf of x", got, do)
    floating = [leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]
    if not all(np.isfinite(leaf.astype(np.float64)).all() for leaf in floating):
        raise _error("x=...", "a finite probe", "NaN or infinity in x", "Drop the examples that hold them.")
    if outputs not in OUTPUTS:
        raise _error(f"outputs={outputs!r}", f"one of {OUTPUTS}", repr(outputs), 'The default is "auto".')
    if loss not in LOSSES:
        do = "It sets the loss and the stability numbers; kernels do not depend on it."
        raise _error(f"loss={loss!r}", '"mse" or "cross_entropy"', repr(loss), do)
    if learning_rate is not None and not (_is_number(learning_rate) and 0 < learning_rate < np.inf):
        do = "Leave it out to skip the stability margin."
        raise _error(f"learning_rate={learning_rate!r}", "a positive number", repr(learning_rate), do)
    if not (_is_number(momentum) and 0 <= momentum < 1):
        raise _error(f"momentum={momentum!r}", "a number in [0, 1)", repr(momentum), "Pass the momentum of optax.sgd.")
    labels = None if y is None else np.asarray(y)
    n = shapes[0][0]
    if labels is not None and (labels.shape[:1] != (n,) or labels.ndim > 2):
        do = "x and y are the same examples in the same order."
        raise _error("y=...", f"one label for each of the {n} examples of x", f"shape {labels.shape}", do)
    return Settings(x, labels, outputs, loss, learning_rate, float(momentum), memory)


def _is_number(value: Any) -> bool:
    dtype = np.asarray(value).dtype
    return np.ndim(value) == 0 and (dtype.kind in "iuf" or jnp.issubdtype(dtype, jnp.floating))


def _error(argument: str, expected: str, got: str, do: str) -> errors.InvalidInputError:
    return errors.InvalidInputError(errors.message(f"compare({argument})", expected=expected, got=got, do=do))
