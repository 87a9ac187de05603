"""What a comparison is asked to measure, checked before anything is computed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, PyTree

from ntkdiag import errors
from ntkdiag.descent import Descent, DescentLike, as_descent
from ntkdiag.engine.calls.call import Memory
from ntkdiag.kernel.digest import digest
from ntkdiag.losses import Loss
from ntkdiag.losses.loss_argument import LossLike, as_loss
from ntkdiag.losses.targets import as_numbers
from ntkdiag.models.paths import shown

REDUCTIONS = ("auto", "full", "mean", "trace", "sum-of-logits")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Probe, labels and conventions of a comparison; see `compare` for their meaning.

    Attributes:
        x: Probe examples, N on the leading axis of every leaf.
        y: Labels or targets, or None.
        reduction: Reduction of the kernels.
        loss: Loss of the loss and stability numbers; None leaves them out.
        descent: Update rule for the stability margin; None leaves the margin out.
        memory: Memory budget of a kernel.
    """

    x: PyTree
    y: Array | np.ndarray | None
    reduction: str
    loss: Loss | None
    descent: Descent | None
    memory: Memory | None

    @property
    def n_examples(self) -> int:
        """Number of probe examples."""
        return jax.tree.leaves(self.x)[0].shape[0]

    @property
    def probe(self) -> str:
        """SHA-256 of the probe examples, as the kernels name it."""
        return digest(jax.tree.map(jnp.asarray, self.x))


def read_settings(
    x: PyTree,
    y: ArrayLike | list | None,
    reduction: str,
    loss: LossLike | None,
    descent: DescentLike | None,
    memory: Memory | None,
) -> Settings:
    """Check the arguments of `compare` that do not depend on the model."""
    n_examples = _require_probe(x)
    # "auto" is decided where the number of outputs is known.
    if reduction not in REDUCTIONS:
        raise errors.InvalidInputError(
            argument=f"reduction={reduction!r}",
            expected=f"one of {REDUCTIONS}",
            got=repr(reduction),
            do='The default is "auto".',
        )
    update_rule = None
    if descent is not None:
        update_rule = as_descent(descent)
        _require_comparable_rule(update_rule)
    labels = None
    if y is not None:
        # Whether they are classes or targets is decided beside the outputs.
        labels = as_numbers(y)
        if labels.shape[:1] != (n_examples,) or labels.ndim > 2:
            raise errors.InvalidInputError(
                argument="y=...",
                expected=f"one label for each of the {n_examples} examples of x",
                got=f"shape {labels.shape}",
                do="x and y are the same examples in the same order.",
            )
    return Settings(x, labels, reduction, as_loss(loss), update_rule, memory)


def _require_comparable_rule(update_rule: Descent) -> None:
    """Refuse update rules for which one margin of the plain kernel has no meaning."""
    if callable(update_rule.learning_rate):
        update_rule.require_learning_rate()  # refuses schedules
    if update_rule.preconditioner is not None:
        raise errors.InvalidInputError(
            expected="a descent without a preconditioner: the kernels that are compared have none",
            got="descent.preconditioner",
            do="Compute ntk(..., preconditioner=P) and its stability_margin by themselves.",
        )


def _require_probe(x: PyTree) -> int:
    """The number of examples: two or more, the same in every leaf, and all of them finite."""
    # A list of numbers has leaves without axes, and is refused as such.
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(x)]
    shapes = [leaf.shape for leaf in leaves]
    n_examples = {shape[:1] for shape in shapes}
    has_examples = len(n_examples) == 1 and shapes[0] != ()
    if not has_examples or shapes[0][0] < 2:
        raise errors.InvalidInputError(
            expected="two or more examples on the leading axis of every leaf of x",
            got=f"shapes {shown([str(shape) for shape in shapes])}",
            do="Pass a probe batch [N ...], arrays and no lists; what is centred needs two "
            "examples or more.",
        )
    for leaf in leaves:
        # Through float64: NumPy does not judge bfloat16.
        is_floating = jnp.issubdtype(leaf.dtype, jnp.floating)
        if is_floating and not np.isfinite(leaf.astype(np.float64)).all():
            raise errors.InvalidInputError(
                expected="a finite probe",
                got="NaN or infinity in x",
                do="Drop the examples that hold them.",
            )
    return shapes[0][0]
