"""What can be wrong with a model, a probe and settings, found before training starts.

1. `check_settings`: arguments that are wrong by themselves;
2. `require_outputs`: a function that does not run on the probe, or returns something else than one
   array with the examples first;
3. `check_fit`: settings and labels that do not fit these outputs and their kernel.

`require_step` is asked in every call of a monitor.
"""

from collections.abc import Callable

import jax
import numpy as np
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.call_f import running
from ntkdiag.display import shortened
from ntkdiag.engine.calls import arguments
from ntkdiag.engine.calls.call import Memory
from ntkdiag.kernel.reduction import RandomProjections, ReductionLike
from ntkdiag.losses import Loss
from ntkdiag.losses.alignable import alignable_targets
from ntkdiag.losses.custom_loss import MOST_ROWS, CustomLoss
from ntkdiag.losses.targets import require_labels_differ
from ntkdiag.memory import budget
from ntkdiag.monitor.probe_layout import ProbeLayout

REDUCTIONS = ("full", "mean", "trace", "sum-of-logits")
CHOICES = ("auto", *REDUCTIONS)
_LARGEST_STEP = 2**31 - 1  # a measurement holds it as int32


def check_settings(
    f: Callable[..., PyTree],
    top_k: int | np.integer,
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
    if memory is not None:
        budget(memory)  # refuses what is no number of bytes


def require_outputs(f: Callable[..., PyTree], params: PyTree, x: PyTree) -> jax.ShapeDtypeStruct:
    """Shape and dtype of the outputs on the probe, without computing them."""
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
    if top_k > layout.size and layout.output_shape[0] == 1:
        raise errors.InvalidInputError(
            expected="two or more examples on the leading axis of every leaf of x",
            got="one",
            do="Pass a batch [N ...]: what is centred needs two examples or more.",
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
        _check_custom_loss(loss, layout, y)

    if loss is not None and y is not None:
        loss.read(y, layout.output_shape)
    targets = alignable_targets(y, layout.output_shape, loss)
    if targets is not None:
        require_labels_differ(targets)


def require_step(step: object) -> int:
    """The number of a step that a loop hands in; refused where it is none."""
    try:
        number = int(step)  # pyright: ignore[reportArgumentType]
        is_step = number == step and 0 <= number <= _LARGEST_STEP
    except (TypeError, ValueError, OverflowError):
        is_step = False
    if not is_step:
        raise errors.InvalidInputError(
            expected="a step, an integer from 0 to 2^31 - 1",
            got=shortened(step),
            do="Pass the number of the step that the parameters belong to: 0 before the first "
            "update.",
        )
    return number


def _check_custom_loss(loss: CustomLoss, layout: ProbeLayout, y: PyTree) -> None:
    """Refuse a loss of the user that does not run, or whose curvature takes too much."""
    loss.require_runs(layout.output_shape, layout.dtype, y)
    if layout.reduction == "full" and layout.size > MOST_ROWS:
        raise errors.InvalidInputError(
            expected=f"a kernel of at most {MOST_ROWS} rows beside a loss of the user, whose "
            "Hessian is as large",
            got=f"{layout.size} rows",
            do="Use a smaller probe.",
        )


def require_limit(name: str, limit: object, expected: str, do: str) -> None:
    """Refuse a limit that is neither None nor a number above zero."""
    if limit is None:
        return
    is_number = isinstance(limit, int | float | np.number)
    if not (is_number and limit > 0):
        raise errors.InvalidInputError(expected=expected, got=f"{name}={limit!r}", do=do)
