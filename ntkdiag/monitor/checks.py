"""What can be wrong with a model, a probe and settings, found before training starts."""

from typing import TYPE_CHECKING, Any, get_args

import jax
import numpy as np
from jax.core import Tracer

from ntkdiag import errors
from ntkdiag.adapters.functional import Functional
from ntkdiag.adapters.structure import shown
from ntkdiag.analysis.curvature import Loss
from ntkdiag.kernels import arguments
from ntkdiag.kernels.interaction import check_few
from ntkdiag.kernels.memory import budget

if TYPE_CHECKING:
    from ntkdiag.monitor.probe import Layout, Probe

REDUCTIONS = ("full", "mean", "trace", "sum-of-logits")


def check_settings(probe: "Probe") -> None:
    """Refuse arguments that are wrong by themselves.

    Raises:
        InvalidInputError: When one is.
    """
    arguments.check_function(probe.f, probe.call)
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(probe.x)]
    leading = {shape[:1] for shape in shapes}
    rate, denominator = probe.learning_rate, probe.loss_denominator
    top_k, choices = probe.top_k, ("auto", *REDUCTIONS)
    checks = (
        (
            len(leading) == 1 and leading.isdisjoint({(), (0,)}),
            "x with the same number of examples, at least one, on the leading axis of every leaf",
            f"shapes {shown([str(shape) for shape in shapes])}",
        ),
        (
            isinstance(top_k, int | np.integer) and not isinstance(top_k, bool) and top_k >= 1,
            "an integer top_k of at least 1",
            f"top_k={top_k!r}",
        ),
        (
            rate is None or callable(rate) or isinstance(rate, Tracer) or (_is_number(rate) and 0 <= rate < np.inf),
            "learning_rate to be a number from 0, a schedule of the step, or None",
            f"learning_rate={rate!r}",
        ),
        (_is_number(probe.momentum) and 0 <= probe.momentum < 1, "momentum in [0, 1)", f"momentum={probe.momentum!r}"),
        (
            probe.loss_denominator is None
            or (_is_number(probe.loss_denominator) and 0 < probe.loss_denominator < np.inf),
            "a positive loss_denominator, or None",
            f"loss_denominator={denominator!r}",
        ),
        (
            _is_number(probe.weight_decay) and 0 <= probe.weight_decay < np.inf,
            "a weight_decay from 0",
            f"weight_decay={probe.weight_decay!r}",
        ),
        (probe.loss in get_args(Loss), f"loss to be one of {get_args(Loss)}", f"loss={probe.loss!r}"),
        (probe.outputs in choices, f"outputs to be one of {choices}", f"outputs={probe.outputs!r}"),
    )
    for right, expected, got in checks:
        if not right:
            raise _error(probe, expected=expected, got=got, do="Correct this argument.")
    if probe.memory is not None:
        budget(probe.memory)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) or (isinstance(value, jax.Array | np.ndarray) and value.ndim == 0)


def output_shape(probe: "Probe", params: Any) -> Any:
    """Shape and dtype of the outputs on the probe, without computing them.

    Args:
        probe: Model and probe.
        params: Parameters in the structure the model takes.

    Returns:
        The `jax.ShapeDtypeStruct` of the single output array.

    Raises:
        InvalidInputError: When the model does not run on the probe, or returns something else.
    """
    try:
        output = jax.eval_shape(probe.f, params, probe.x)
    except Exception as error:
        raise _error(
            probe,
            expected="f(params, x) to run on the probe",
            got=f"{type(error).__name__}: {error}",
            do="Check the shape of x and that params are those f takes.",
        ) from error
    leaves = jax.tree.leaves(output)
    n_examples = jax.tree.leaves(probe.x)[0].shape[0]
    if len(leaves) != 1 or leaves[0].shape[:1] != (n_examples,):
        raise _error(
            probe,
            expected=f"f(params, x) to return one array with the {n_examples} examples of x on its leading axis",
            got=", ".join(f"shape {leaf.shape}" for leaf in leaves) or "nothing",
            do="Wrap f so that it returns the outputs to diagnose.",
        )
    return leaves[0]


def check_independent(probe: "Probe", params: Any) -> None:
    """Refuse a model whose outputs for one example depend on the others, such as batch norm in train mode.

    Cost: a forward pass of four examples together and each alone.

    Args:
        probe: Model and probe.
        params: Parameters in the structure the model takes, not traced.

    Raises:
        ExamplesInteractError: When they do.
    """
    f = probe.f.apply if isinstance(probe.f, Functional) else probe.f
    check_few(f, params, probe.x, probe.call)


def check_fit(probe: "Probe", layout: "Layout") -> None:
    """Refuse settings and labels that do not fit the kernel.

    Raises:
        InvalidInputError: When something does not fit.
    """
    if probe.top_k > layout.size:
        raise _error(
            probe,
            expected=f"top_k of at most {layout.size}, the rows of the {layout.outputs} kernel",
            got=f"top_k={probe.top_k}",
            do="Lower top_k or use a larger probe.",
        )
    if probe.loss == "cross_entropy" and layout.n_classes == 1:
        raise _error(
            probe,
            expected='two or more logits for loss="cross_entropy"',
            got="one output per example" + (" and position" if layout.n_outputs > 1 else ""),
            do='Use loss="sigmoid_cross_entropy" for a single logit.',
        )
    if probe.y is not None:
        _check_labels(probe, layout)


def _check_labels(probe: "Probe", layout: "Layout") -> None:
    y, n, c = probe.y, layout.n_examples, layout.n_outputs
    positions = f", {c // layout.n_classes} each" if c > layout.n_classes else ""
    if y.shape[:1] != (n,) or not (probe.are_classes(layout) or y.size == n * c):
        raise _error(
            probe,
            expected=f"y of shape ({n}, {c}), or ({n},) integer classes{positions}",
            got=f"{y.dtype} of shape {y.shape}",
            do="x and y hold the same examples in the same order.",
        )
    if probe.are_classes(layout) and (y.min() < 0 or y.max() >= layout.n_classes):
        raise _error(
            probe,
            expected=f"classes from 0 to {layout.n_classes - 1}, the outputs of f",
            got=f"classes from {y.min()} to {y.max()}",
            do="Number the classes from 0.",
        )
    if not np.isfinite(y.astype(np.float64)).all():
        raise _error(probe, expected="finite y", got="NaN or infinity", do="Drop the examples without a label.")
    if (y == y[:1]).all():
        raise _error(
            probe,
            expected="labels that differ between examples",
            got="the same label for all",
            do="Use a probe with several classes or targets, or y=None, which leaves the alignment out.",
        )


def _error(probe: "Probe", **parts: str) -> errors.InvalidInputError:
    return errors.InvalidInputError(errors.message(probe.call, **parts))
