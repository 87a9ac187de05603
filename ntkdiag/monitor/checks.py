"""What can be wrong with a model, a probe and settings, found before training starts.

1. `check_settings`: arguments that are wrong by themselves;
2. `require_outputs`: a function that does not run on the probe, or returns something else than one
   array with the examples first;
3. `check_fit`: settings and labels that do not fit these outputs and their kernel.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.descent import Descent
from ntkdiag.engine.calls import arguments
from ntkdiag.engine.calls.call import Memory
from ntkdiag.kernel.reduction import RandomProjections
from ntkdiag.losses import Loss
from ntkdiag.losses.custom_loss import MOST_ROWS, CustomLoss
from ntkdiag.losses.targets import read_targets, require_labels_differ
from ntkdiag.memory import budget
from ntkdiag.monitor.probe_layout import ProbeLayout, ReductionLike
from ntkdiag.user_function import running

REDUCTIONS = ("full", "mean", "trace", "sum-of-logits")
CHOICES = ("auto", *REDUCTIONS)


def check_settings(
    f: Callable[..., PyTree],
    top_k: int | np.integer,
    descent: Descent | None,
    reduction: ReductionLike,
    memory: Memory | None,
) -> None:
    """Refuse arguments that are wrong by themselves."""
    arguments.check_function(f)

    # A flag is an integer to Python; nobody means one here.
    if not isinstance(top_k, int | np.integer) or isinstance(top_k, bool) or top_k < 1:
        raise errors.InvalidInputError(
            expected="an integer top_k of at least 1",
            got=f"top_k={top_k!r}",
            do="Correct this argument.",
        )
    if not isinstance(reduction, RandomProjections) and reduction not in CHOICES:
        raise errors.InvalidInputError(
            expected=f"reduction to be one of {CHOICES}, or RandomProjections(k)",
            got=f"reduction={reduction!r}",
            do="Correct this argument.",
        )
    if descent is not None and descent.preconditioner is not None:
        raise errors.InvalidInputError(
            expected="a descent without a preconditioner: the kernel that is watched has none",
            got="descent.preconditioner",
            do="Compute ntk(..., preconditioner=P) and its stability_margin beside the loop.",
        )
    if memory is not None:
        budget(memory)  # refuses what is no number of bytes


def require_outputs(f: Callable[..., PyTree], params: PyTree, x: PyTree) -> jax.ShapeDtypeStruct:
    """Shape and dtype of the outputs on the probe, without computing them.

    Refused unless the outputs are one array with the examples on its leading axis.
    """
    with running():
        outputs = jax.eval_shape(f, params, x)
    leaves = jax.tree.leaves(outputs)
    n_examples = jax.tree.leaves(x)[0].shape[0]
    if len(leaves) != 1 or leaves[0].shape[:1] != (n_examples,):
        raise errors.InvalidInputError(
            expected=f"f(params, x) to return one array with the {n_examples} examples of x on its "
            "leading axis",
            got=", ".join(f"shape {leaf.shape}" for leaf in leaves) or "nothing",
            do="Wrap f so that it returns the outputs to diagnose.",
        )
    return leaves[0]


def check_fit(layout: ProbeLayout, top_k: int, loss: Loss | None, y: PyTree) -> None:
    """Refuse settings and labels that do not fit the kernel."""
    projections = layout.projections
    if projections is not None and not projections.possible(layout.n_outputs):
        raise errors.InvalidInputError(
            expected=f"RandomProjections(k) with 2 <= k <= 2^{layout.n_outputs - 1}",
            got=layout.reduction,
            do=f"This function has {layout.n_outputs} outputs per example.",
        )
    if top_k > layout.size:
        raise errors.InvalidInputError(
            expected=f"top_k of at most {layout.size}, the rows of the {layout.reduction} kernel",
            got=f"top_k={top_k}",
            do="Lower top_k or use a larger probe.",
        )
    if loss is not None:
        loss.require_fit(layout.output_shape)
    if isinstance(loss, CustomLoss):
        _check_custom_loss(layout, y)
    if y is None:
        return

    def read(y: ArrayLike) -> None:
        """Labels are read once as the alignment does, and once as the loss does."""
        targets = read_targets(y, layout.output_shape)
        # What is trained to be 0 everywhere, as a residual is, has a loss and no alignment.
        is_regression = jnp.issubdtype(jnp.result_type(y), jnp.floating)
        if loss is None or not is_regression:
            require_labels_differ(targets)
        if loss is not None:
            loss.read(y, layout.output_shape)

    if arguments.has_shapes_alone(y):
        jax.eval_shape(read, y)
    else:
        read(y)


def _check_custom_loss(layout: ProbeLayout, y: PyTree) -> None:
    """Refuse a loss of the user whose curvature could not be computed inside a compiled step."""
    if y is None:
        raise errors.InvalidInputError(
            expected="the labels `y` beside a loss of the user: its curvature may depend on them",
            got="None",
            do="Hand them in with their examples: train=(x, y).",
        )
    if layout.reduction == "full" and layout.size > MOST_ROWS:
        raise errors.InvalidInputError(
            expected=f"a kernel of at most {MOST_ROWS} rows beside a loss of the user, whose "
            "Hessian is as large",
            got=f"{layout.size} rows",
            do="Use a smaller probe.",
        )
