"""What a comparison is asked to measure, checked before anything is computed."""

import dataclasses
from typing import TypeAlias

import jax
import numpy as np
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.descent import Descent, DescentLike, as_descent
from ntkdiag.engine.calls.call import Memory
from ntkdiag.kernel.convention import Convention
from ntkdiag.losses import Loss
from ntkdiag.losses.loss_argument import LossLike, as_loss
from ntkdiag.losses.targets import Labels, as_numbers
from ntkdiag.optimizer.saved_state import Optimizer
from ntkdiag.probe_batch import Pair, ProbeBatch, Probes, read_probes

# Rows of a kernel up to which the margin comes from products with it: vectors of 8 MB.
MOST_ROWS_OF_PRODUCTS = 1_000_000
# An optimizer of Optax, or those of A and B.
OptimizerLike: TypeAlias = Optimizer | tuple[Optimizer, Optimizer]
REDUCTIONS = ("auto", "full", "mean", "trace", "sum-of-logits")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Probes and conventions of a comparison; see `compare` for their meaning.

    Attributes:
        probes: Examples and labels, trained on and held out.
        reduction: Reduction of the kernels.
        loss: Loss of the loss and stability numbers; None leaves them out.
        descent: Update rule for the stability margin; None leaves the margin out.
        memory: Memory budget of a kernel.
        reduction_asked: As the call states it, also where it is "auto".
        optimizers: The optimizers of A and B, from whose states the margin is read; None where
            the update rule is stated, or nothing is known of it.
    """

    probes: Probes
    reduction: str
    loss: Loss | None
    descent: Descent | None
    memory: Memory | None
    reduction_asked: str
    optimizers: tuple[Optimizer, Optimizer] | None = None

    @property
    def x(self) -> PyTree:
        """The probe of the kernels, their drift and stability, N on the leading axis."""
        return self.probes.of_kernel.x

    @property
    def y(self) -> Labels | None:
        """Labels of that probe, or None."""
        labels = self.probes.of_kernel.y
        assert labels is None or isinstance(labels, jax.Array | np.ndarray)  # `_checked` saw to it
        return labels

    def margin_by_products(self, convention: Convention) -> bool:
        """Whether a reduced kernel leaves the margin to products with the full one.

        They are of examples that are trained on, microbatch by microbatch, with some dozens of
        vectors of N C numbers on the host.
        """
        if self.probes.train is None or self.loss is None or convention.examples == "joint":
            return False
        return self.n_examples * convention.n_outputs <= MOST_ROWS_OF_PRODUCTS

    @property
    def n_examples(self) -> int:
        """Number of its examples."""
        return self.probes.of_kernel.n_examples


def read_settings(
    train: Pair | None,
    held_out: Pair | None,
    reduction: str,
    loss: LossLike | None,
    descent: DescentLike | None,
    memory: Memory | None,
    optimizer: OptimizerLike | None = None,
) -> Settings:
    """Check the arguments of `compare` that do not depend on the model."""
    probes = read_probes(train, held_out)
    probes = Probes(_checked(probes.train), _checked(probes.held_out))
    return settings_of(probes, reduction, loss, descent, memory, optimizer)


def settings_of(
    probes: Probes,
    reduction: str,
    loss: LossLike | None,
    descent: DescentLike | None,
    memory: Memory | None,
    optimizer: OptimizerLike | None = None,
) -> Settings:
    """Check the conventions of a comparison beside probes that are checked already."""
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
    settings = Settings(probes, reduction, as_loss(loss), update_rule, memory, reduction)
    if optimizer is None:
        return settings
    _require_gradients(settings)
    return dataclasses.replace(settings, optimizers=_of_both_sides(optimizer))


def _of_both_sides(optimizer: OptimizerLike) -> tuple[Optimizer, Optimizer]:
    """The optimizers of A and B; one alone is that of both."""
    if isinstance(optimizer, Optimizer):  # itself a pair of functions
        return optimizer, optimizer
    is_pair = isinstance(optimizer, tuple) and len(optimizer) == 2
    if not is_pair or not all(isinstance(one, Optimizer) for one in optimizer):
        raise errors.InvalidInputError(
            argument="optimizer=...",
            expected="an optimizer of Optax, or a pair of them",
            got=f"a {type(optimizer).__name__}",
            do="Pass the one that the run was trained with, such as optax.adamw(1e-3).",
        )
    return optimizer


def _require_gradients(settings: Settings) -> None:
    """Refuse an optimizer without what its next step depends on, or beside a stated rule."""
    if settings.descent is not None:
        raise errors.InvalidInputError(
            argument="descent=..., optimizer=...",
            expected="one of the two",
            got="both",
            do="optimizer= reads learning rate, momentum and preconditioner from the state.",
        )
    train = settings.probes.train
    lacking = []
    if train is None or train.y is None:
        lacking.append("no train=" if train is None else "train=(x, None)")
    if settings.loss is None:
        lacking.append("no loss=")
    if lacking:
        raise errors.InvalidInputError(
            argument="optimizer=...",
            expected="train=(x, y) and loss= beside it: its next step needs a gradient",
            got=", ".join(lacking),
            do="Pass a part of the training set with its labels, and the loss that is trained.",
        )


def _checked(probe: ProbeBatch | None) -> ProbeBatch | None:
    """A probe with two examples or more, all finite, and a label for each where it has labels."""
    if probe is None:
        return None
    _require_examples(probe)
    if probe.y is None:
        return probe
    # Whether they are classes or targets is decided beside the outputs.
    labels = as_numbers(probe.y)
    if labels.shape[:1] != (probe.n_examples,):
        raise errors.InvalidInputError(
            argument=f"{probe.name}=(x, y)",
            expected=f"one label for each of the {probe.n_examples} examples of x",
            got=f"shape {labels.shape}",
            do="x and y are the same examples in the same order.",
        )
    return dataclasses.replace(probe, y=labels)


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


def _require_examples(probe: ProbeBatch) -> None:
    """Refuse a probe of one example, which centring leaves nothing of."""
    if probe.n_examples < 2:
        raise errors.InvalidInputError(
            argument=f"{probe.name}=(x, y)",
            expected="two or more examples on the leading axis of every leaf of x",
            got="one",
            do="Pass a batch [N ...]: what is centred needs two examples or more.",
        )
