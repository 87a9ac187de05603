"""Two checkpoints, one probe, one answer."""

import dataclasses
import math
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int, PyTree

from ntkdiag import errors
from ntkdiag.comparison.comparison import Comparison, compare_measured
from ntkdiag.comparison.facts import facts, notes
from ntkdiag.comparison.linearized_change import predict
from ntkdiag.comparison.measured import class_numbers, evaluate, measure_side
from ntkdiag.comparison.parameter_movement import parameter_movement
from ntkdiag.comparison.placing import as_model
from ntkdiag.comparison.settings import Settings, read_settings
from ntkdiag.comparison.sides import Side, is_model, read_side, require_comparable
from ntkdiag.descent import DescentLike
from ntkdiag.kernel.reduction import automatic
from ntkdiag.losses import CrossEntropy
from ntkdiag.losses.custom_loss import CustomLoss
from ntkdiag.losses.loss_argument import LossLike
from ntkdiag.losses.targets import read_targets, require_labels_differ
from ntkdiag.models.functional import Functional

_FIT = "Check that x has the shape the model takes, and wrap the model to return the outputs to compare."


@errors.public
def compare(
    a: Any,
    b: Any,
    *,
    model: Any = None,
    variables: Any = None,
    x: PyTree,
    y: Any = None,
    reduction: str = "auto",
    loss: LossLike | None = None,
    descent: DescentLike | None = None,
    memory: int | float | str | None = None,
    names: tuple[str, str] | None = None,
) -> Comparison:
    """Compare two checkpoints of one model through their neural tangent kernels on a probe.

    Spectrum, rank, alignment with the labels and stability of each side; drift of the kernel, motion of every
    parameter, and how much of B the model linearized at A predicts. Structure, shapes and dtypes have to agree
    exactly: nothing is restored in part.

    Cost: two kernels, their eigendecompositions (N C)^3, and two more reduced kernels for their parts by leaf.

    Args:
        a: Orbax checkpoint (path of a checkpoint or of a step, a manager root, or ``"root@100"`` for its step 100),
            parameters, a variables dict, a train state, an NNX or Equinox model, or a Functional.
        b: The same for the other side.
        model: What gives parameters their meaning: a linen module, an NNX or Equinox model, a Functional, or a
            callable `f(params, x)`. Not needed beside Functionals and models.
        variables: Variables of a linen module, as `init` returns them: states the structure to expect, and the
            collections (batch statistics) that were not saved. Saved collections are used side by side.
        x: Probe examples, N on the leading axis of every leaf; 64 to 256 are enough.
        y: `[N]` class numbers or values, or `[N C]` targets; None leaves out alignment, loss and accuracy.
        reduction: Reduction of the kernels as `ntk` has it; "auto" is "full" up to 2048 rows N C, else "mean". Reduced
            kernels have no stability margin.
        loss: The loss that is trained: "mse", "cross_entropy", "sigmoid_cross_entropy", an object of `ntkdiag.losses`,
            or a function `loss(outputs, y)`. None leaves out the loss and all numbers about stability.
        descent: How it is trained, for the stability margin: a `Descent`, or the learning rate of plain gradient
            descent.
        memory: Memory budget of a kernel, as `ntk` takes it.
        names: Names of the two sides in tables.

    Returns:
        The comparison.

    Raises:
        CheckpointError: A path cannot be read; see `load_params`.
        StructureError: The two sides, or a side and the model, differ; the message lists every difference by path.
        InvalidInputError: An argument is out of range, parameters are NaN, or model and probe do not fit.
    """
    settings = read_settings(x, y, reduction, loss, descent, memory)
    label_a, label_b = _names(names)
    placed = {
        "model": _model_of(a, b) if model is None else as_model(model),
        "variables": variables,
        "like": model if isinstance(model, Functional) else None,
    }
    side_a = read_side(a, name="A", label=label_a, **placed)
    side_b = read_side(b, name="B", label=label_b, **placed)
    side_a, side_b = require_comparable(side_a, side_b)
    shape = _output_shape(side_a, settings)
    _output_shape(side_b, settings)
    if settings.reduction == "auto":
        chosen = automatic(shape[0], math.prod(shape[1:]))
        settings = dataclasses.replace(settings, reduction=chosen)
    targets = None
    if settings.y is not None:
        targets = _read_labels(settings, shape)
    return _measure(side_a, side_b, settings, targets)


def _names(names: Any) -> tuple[str | None, str | None]:
    """The names of the two sides."""
    if names is None:
        return None, None
    is_pair = isinstance(names, tuple | list) and len(names) == 2
    if not is_pair or not all(isinstance(name, str) for name in names):
        raise errors.InvalidInputError(
            argument="names=...",
            expected='the names of the two sides, such as ("start", "end")',
            got=f"a {type(names).__name__}",
            do="Class labels and targets of the probe go into y=.",
        )
    return names[0], names[1]


def _read_labels(settings: Settings, shape: tuple[int, ...]) -> Float[np.ndarray, "n o"]:
    """Labels as targets `[n o]` in float64; refused where the loss cannot read them."""
    with jax.enable_x64(True):
        targets = read_targets(settings.y, shape)
        require_labels_differ(targets)
        if settings.loss is not None:
            settings.loss.read(settings.y, shape)
        return np.asarray(targets, np.float64).reshape(shape[0], -1)


def _measure(
    a: Side, b: Side, settings: Settings, targets: Float[np.ndarray, "n o"] | None
) -> Comparison:
    """Measure both sides and what lies between them."""
    classes: Int[np.ndarray, " n"] | None = None if targets is None else class_numbers(targets)
    outputs_a = evaluate(a.functional.apply, a.functional.params, settings.x)
    outputs_b = evaluate(b.functional.apply, b.functional.params, settings.x)
    measured_a = measure_side(a, settings, outputs_a, targets, classes)
    measured_b = measure_side(b, settings, outputs_b, targets, classes)
    f, params_a = a.functional
    params_b = b.functional.params
    movement = parameter_movement(
        params_a, params_b, measured_a.leaf_kernels, measured_b.leaf_kernels
    )
    return compare_measured(
        measured_a,
        measured_b,
        movement=movement,
        prediction=predict(
            f, params_a, params_b, settings.x, measured_a.outputs, measured_b.outputs
        ),
        facts=facts(a, b, settings, outputs_a.shape, measured_a.kernel),
        notes=notes(a, b, settings, measured_a, measured_b),
        classes=classes,
    )


def _model_of(a: Any, b: Any) -> Any:
    """The side that knows its own function, where there is one."""
    for side in (a, b):
        if is_model(side):
            return side
    return None


def _output_shape(side: Side, settings: Settings) -> tuple[int, ...]:
    """The shape of the outputs `[N ...]` on the probe, without computing them; refused where it cannot be compared."""
    f, params = side.functional
    try:
        output = jax.eval_shape(f, params, settings.x)
    except Exception as error:
        first_line = (str(error).strip() or "no message").splitlines()[0]
        do = _FIT
        if type(error).__name__ == "ScopeCollectionNotFound":
            do = "Pass variables=, as init returns them, for collections that were not saved."
        got = f"{side.label}: {type(error).__name__}: {first_line[:200]}"
        raise _fit_error(got, do) from error
    leaves = jax.tree.leaves(output)
    if len(leaves) != 1 or leaves[0].shape[:1] != (settings.n_examples,):
        raise _fit_error(f"outputs of shape {', '.join(str(leaf.shape) for leaf in leaves)}")
    shape = tuple(leaves[0].shape)
    has_classes = settings.y is not None and settings.y.ndim == 1
    if len(shape) > 2 and (isinstance(settings.loss, CrossEntropy) or has_classes):
        raise _fit_error(
            f"outputs of shape {shape}",
            "Classes are told apart by the last of two axes: compare f(params, x)[:, -1], or "
            "flatten the positions of the probe into examples.",
        )
    if settings.loss is not None:
        settings.loss.require_fit(shape)
    if isinstance(settings.loss, CustomLoss) and settings.y is None:
        raise errors.InvalidInputError(
            expected="the labels `y` beside a loss of the user: it may depend on them",
            got="None",
            do="Pass the labels of the probe, or leave the loss out.",
        )
    return shape


def _fit_error(got: str, do: str = _FIT) -> errors.InvalidInputError:
    """What is wrong between model and probe."""
    return errors.InvalidInputError(
        call="compare(a, b, model=..., x=...)",
        expected="a model that gives one array [N ...] for x [N ...]; for cross-entropy [N C] with "
        "C of 2 or more",
        got=got,
        do=do,
    )
