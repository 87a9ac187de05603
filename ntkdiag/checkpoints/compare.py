"""Two checkpoints, one probe, one answer."""

import dataclasses
from typing import Any

import jax
import numpy as np

from ntkdiag import errors
from ntkdiag.adapters import Functional
from ntkdiag.checkpoints.comparison import Comparison, compare_measured
from ntkdiag.checkpoints.facts import facts, notes
from ntkdiag.checkpoints.measured import evaluate, measure_side
from ntkdiag.checkpoints.movement import parameter_movement
from ntkdiag.checkpoints.placing import as_model
from ntkdiag.checkpoints.prediction import predict
from ntkdiag.checkpoints.settings import Loss, Settings, read_settings
from ntkdiag.checkpoints.sides import Side, is_model, read_side, require_comparable
from ntkdiag.checkpoints.targets import read_targets, require_probabilities
from ntkdiag.kernels.reduction import automatic

_FIT = "Check that x has the shape the model takes, and wrap the model to return the outputs to compare."


def compare(
    a: Any,
    b: Any,
    *,
    model: Any = None,
    variables: Any = None,
    x: Any,
    y: Any = None,
    step_a: int | None = None,
    step_b: int | None = None,
    outputs: str = "auto",
    loss: Loss = "mse",
    learning_rate: float | None = None,
    momentum: float = 0.0,
    memory: int | float | str | None = None,
    labels: tuple[str, str] | None = None,
) -> Comparison:
    """Compare two checkpoints of one model through their neural tangent kernels on a probe.

    Spectrum, rank, alignment with the labels and stability of each side; drift of the kernel, motion of every
    parameter, and how much of B the model linearized at A predicts. Structure, shapes and dtypes have to agree
    exactly: nothing is restored in part.

    Cost: two kernels, their eigendecompositions (N C)^3, and two more reduced kernels for their parts by leaf.

    Args:
        a: Orbax checkpoint (path of a checkpoint, a step, or a manager root), parameters, a variables dict, a train
            state, an NNX or Equinox model, or a Functional.
        b: The same for the other side.
        model: What gives parameters their meaning: a linen module, an NNX or Equinox model, a Functional, or a
            callable `f(params, x)`. Not needed beside Functionals and models.
        variables: Variables of a linen module, as `init` returns them: states the structure to expect, and the
            collections (batch statistics) that were not saved. Saved collections are used side by side.
        x: Probe examples, N on the leading axis of every leaf; 64 to 256 are enough.
        y: `[N]` class numbers or values, or `[N C]` targets; None leaves out alignment, loss and accuracy.
        step_a: Step of `a` when it is a manager root; None takes its latest.
        step_b: Step of `b` when it is a manager root; None takes its latest.
        outputs: Reduction of the kernels as `ntk` has it; "auto" is "full" up to 2048 rows N C, else "mean". Reduced
            kernels have no stability margin.
        loss: For loss and stability, as a mean over examples: "mse" is half the squared error summed over outputs,
            "cross_entropy" the softmax cross-entropy of the outputs as logits.
        learning_rate: Learning rate of plain or heavy-ball SGD, for the stability margin.
        momentum: Its momentum.
        memory: Memory budget of a kernel, as `ntk` takes it.
        labels: Names of the two sides in tables.

    Returns:
        The comparison.

    Raises:
        CheckpointError: A path cannot be read; see `load_params`.
        StructureError: The two sides, or a side and the model, differ; the message lists every difference by path.
        InvalidInputError: An argument is out of range, parameters are NaN, or model and probe do not fit.
    """
    settings = read_settings(x, y, outputs, loss, learning_rate, momentum, memory)
    names = _names(labels)
    given = {"model": as_model(model) if model is not None else _model_of(a, b), "variables": variables}
    given["like"] = model if isinstance(model, Functional) else None
    side_a = read_side(a, name="a", label=names[0], step=step_a, **given)
    side_b = read_side(b, name="b", label=names[1], step=step_b, **given)
    side_a, side_b = require_comparable(side_a, side_b)
    shape, _ = (_output_shape(side, settings) for side in (side_a, side_b))
    if settings.outputs == "auto":
        settings = dataclasses.replace(settings, outputs=automatic(*shape))
    targets, classes = (None, None) if settings.y is None else read_targets(settings.y, shape[1])
    if targets is not None and settings.loss == "cross_entropy":
        require_probabilities(targets)
    return _measure(side_a, side_b, settings, targets, classes)


def _names(labels: Any) -> tuple[str | None, str | None]:
    if labels is None:
        return None, None
    if not isinstance(labels, tuple | list) or len(labels) != 2 or not all(isinstance(name, str) for name in labels):
        raise errors.InvalidInputError(
            errors.message(
                "compare(labels=...)",
                expected='the names of the two sides, such as ("start", "end")',
                got=f"a {type(labels).__name__}",
                do="Class labels and targets of the probe go into y=.",
            )
        )
    return labels[0], labels[1]


def _measure(
    a: Side, b: Side, settings: Settings, targets: np.ndarray | None, classes: np.ndarray | None
) -> Comparison:
    outputs_a, outputs_b = (evaluate(side.functional.apply, side.functional.params, settings.x) for side in (a, b))
    measured_a = measure_side(a, settings, outputs_a, targets, classes)
    measured_b = measure_side(b, settings, outputs_b, targets, classes)
    f, params_a = a.functional
    params_b = b.functional.params
    return compare_measured(
        measured_a,
        measured_b,
        movement=parameter_movement(params_a, params_b, measured_a.leaf_kernels, measured_b.leaf_kernels),
        prediction=predict(f, params_a, params_b, settings.x, outputs_a, outputs_b),
        facts=facts(a, b, settings, outputs_a.shape[1], measured_a.kernel),
        notes=notes(a, b, settings, measured_a, measured_b),
        classes=classes,
    )


def _model_of(a: Any, b: Any) -> Any:
    return next((side for side in (a, b) if is_model(side)), None)


def _output_shape(side: Side, settings: Settings) -> tuple[int, int]:
    f, params = side.functional
    try:
        output = jax.eval_shape(f, params, settings.x)
    except Exception as error:
        first = (str(error).strip() or "no message").splitlines()[0]
        missing = type(error).__name__ == "ScopeCollectionNotFound"
        do = "Pass variables=, as init returns them, for collections that were not saved." if missing else _FIT
        raise _fit_error(f"{side.label}: {type(error).__name__}: {first[:200]}", do) from error
    leaves = jax.tree.leaves(output)
    if len(leaves) != 1 or leaves[0].shape[:1] != (settings.n_examples,):
        raise _fit_error(f"outputs of shape {', '.join(str(leaf.shape) for leaf in leaves)}")
    n_outputs = int(np.prod(leaves[0].shape[1:]))
    if leaves[0].ndim > 2 and (settings.loss == "cross_entropy" or (settings.y is not None and settings.y.ndim == 1)):
        raise _fit_error(
            f"outputs of shape {leaves[0].shape}",
            "Classes are told apart by the last of two axes: compare f(params, x)[:, -1], or flatten the positions of "
            "the probe into examples.",
        )
    if settings.loss == "cross_entropy" and n_outputs < 2:
        raise _fit_error('a single output with loss="cross_entropy"')
    return settings.n_examples, n_outputs


def _fit_error(got: str, do: str = _FIT) -> errors.InvalidInputError:
    return errors.InvalidInputError(
        errors.message(
            "compare(a, b, model=..., x=...)",
            expected="a model that gives one array [N ...] for x [N ...]; for cross-entropy [N C] with C of 2 or more",
            got=got,
            do=do,
        )
    )
