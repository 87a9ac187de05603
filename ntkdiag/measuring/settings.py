"""The settings of a comparison, checked before anything is computed."""

import dataclasses

import numpy as np
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.descent import Descent, DescentLike, as_descent
from ntkdiag.engine import Memory
from ntkdiag.kernel.reduction import (
    RandomProjections,
    Reduction,
    ReductionLike,
    automatic_of_probe,
)
from ntkdiag.losses import Loss
from ntkdiag.losses.custom_loss import CustomLoss
from ntkdiag.losses.loss_argument import LossLike, as_loss
from ntkdiag.losses.targets import Weighted
from ntkdiag.optimizer.saved_state import Optimizer as Optimizer
from ntkdiag.probe_batch import Pair, Probes, read_n_train, read_probes, require_label_of_each

REDUCTIONS = ("auto", "full", "mean", "trace", "sum-of-logits")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Probes and conventions of a comparison; see `compare` for their meaning."""

    probes: Probes  # examples and labels, trained on and held out
    reduction: ReductionLike  # reduction of the kernels
    loss: Loss | None  # loss of the loss and stability numbers; None leaves them out
    descent: Descent | None  # update rule for the stability margin; None leaves the margin out
    memory: Memory | None  # memory budget of a kernel
    # The optimizer from whose states the margin is read; None where the update rule is stated, or
    # nothing is known of it.
    optimizer: Optimizer | None = None
    gradient_kernel: bool = False  # whether the gradient kernel is measured, too
    n_train: int | None = None  # examples of the whole training set; None where it is not known

    @property
    def x(self) -> PyTree:
        """The probe of the kernels, their drift and stability, N on the leading axis."""
        return self.probes.of_kernel.x

    @property
    def y(self) -> PyTree:
        """Labels of that probe as the loss takes them, or None."""
        return self.probes.of_kernel.y

    @property
    def n_examples(self) -> int:
        """Number of its examples."""
        return self.probes.of_kernel.n_examples

    def loss_in_words(self, shape: tuple[int, ...]) -> str | None:
        """The loss, with what its sum is divided by for outputs of a shape; None without."""
        if self.loss is None:
            return None
        words = self.loss.describe(shape)
        return f"{words}, with weights" if isinstance(self.y, Weighted) else words

    def for_outputs(self, n_outputs: int) -> "Settings":
        """The settings for so many outputs of an example: "auto" becomes what it stands for."""
        if isinstance(self.reduction, RandomProjections):
            Reduction.of(self.reduction, n_outputs)  # refuses more directions than there are
            return self
        if self.reduction != "auto":
            return self
        chosen = automatic_of_probe(self.n_examples, n_outputs)
        return dataclasses.replace(self, reduction=chosen)


def read_settings(
    train: Pair | None,
    held_out: Pair | None,
    reduction: ReductionLike,
    loss: LossLike | None,
    descent: DescentLike | None,
    memory: Memory | None,
    optimizer: Optimizer | None = None,
    n_train: int | np.integer | None = None,
    *,
    gradient_kernel: bool = False,
) -> Settings:
    """Check the arguments of `compare` that do not depend on the model."""
    probes = read_probes(train, held_out)
    _require_examples(probes)
    # "auto" and the number of directions are decided when the number of outputs is known.
    is_name = isinstance(reduction, str) and reduction in REDUCTIONS
    if not is_name and not isinstance(reduction, RandomProjections):
        raise errors.InvalidInputError(
            argument=f"reduction={reduction!r}",
            expected=f"one of {REDUCTIONS}, or RandomProjections(k)",
            got=repr(reduction),
            do='The default is "auto".',
        )
    settings = Settings(
        probes,
        reduction,
        as_loss(loss),
        None if descent is None else _read_descent(descent),
        memory,
        optimizer,
        gradient_kernel,
        read_n_train(n_train, probes),
    )
    if optimizer is not None:
        _require_optimizer(settings)
    if gradient_kernel:
        reason = "it is the kernel of the gradients of single examples"
        _require_loss_of_examples(settings, "gradient_kernel=True", reason)
    return settings


def _read_descent(descent: DescentLike) -> Descent:
    """The update rule; refused where one margin of the plain kernel has no meaning for it."""
    update_rule = as_descent(descent)
    if update_rule.preconditioner is not None:
        raise errors.InvalidInputError(
            expected="a descent without a preconditioner: the kernels that are compared have none",
            got="descent.preconditioner",
            do="Compute ntk(..., preconditioner=P) and its stability_margin by themselves.",
        )
    return update_rule


def _require_optimizer(settings: Settings) -> None:
    """Refuse an optimizer without what its next step depends on, or beside a stated rule."""
    optimizer = settings.optimizer
    if settings.descent is not None:
        raise errors.InvalidInputError(
            argument="descent=..., optimizer=...",
            expected="one of the two",
            got="both",
            do="optimizer= reads learning rate, momentum and preconditioner from the state.",
        )
    _require_loss_of_examples(settings, "optimizer=...", "its next step needs a gradient")
    if not isinstance(optimizer, Optimizer):
        raise errors.InvalidInputError(
            argument="optimizer=...",
            expected="an optimizer of Optax",
            got=f"{type(optimizer).__module__}.{type(optimizer).__name__}",
            do="Pass the one that the run was trained with, such as optax.adamw(1e-3).",
        )


def _require_loss_of_examples(settings: Settings, argument: str, reason: str) -> None:
    """Refuse what needs the gradient of a loss where there is no loss, or no labels."""
    train = settings.probes.train
    lacking = []
    # A loss of the user may need no labels.
    needs_labels = not isinstance(settings.loss, CustomLoss)
    if train is None or (train.y is None and needs_labels):
        lacking.append("no train=" if train is None else "train=(x, None)")
    if settings.loss is None:
        lacking.append("no loss=")
    if lacking:
        raise errors.InvalidInputError(
            argument=argument,
            expected=f"train=(x, y) and loss= as well: {reason}",
            got=", ".join(lacking),
            do="Pass a part of the training set with its labels, and the loss that is trained.",
        )


def _require_examples(probes: Probes) -> None:
    """Refuse a probe of one example, which centring leaves nothing of, or of too few labels."""
    for probe in (probes.train, probes.held_out):
        if probe is None:
            continue
        if probe.n_examples < 2:
            raise errors.InvalidInputError(
                argument=f"{probe.name}=(x, y)",
                expected="two or more examples on the leading axis of every leaf of x",
                got="one",
                do="Pass a batch [N ...]: centring needs at least two examples.",
            )
        require_label_of_each(probe)  # whether they are classes or targets the outputs decide
