"""Two sides without common parameters: models of two structures, or steps of a run directory.

1. Of each side the shape of its outputs, before anything is computed: of full kernels both need
   the same number of outputs, of reduced ones not.
2. Measure each side by itself. Of a stored step kernel and outputs are there already.
3. Measure what lies between the kernels: their distance, and the overlap of their modes; and
   between the outputs: decisions that are the same.
4. Judge B alone, dead or collapsed, and whether its alignment is another one.
"""

import dataclasses
import math

from ntkdiag import errors
from ntkdiag.analysis import drift
from ntkdiag.analysis.drift import Drift
from ntkdiag.comparison.compared_outputs import require_outputs, with_one_output
from ntkdiag.comparison.comparison import Comparison
from ntkdiag.comparison.facts import facts, notes
from ntkdiag.comparison.kernels_alone import kernels_alone
from ntkdiag.comparison.load import Side
from ntkdiag.comparison.measured_step import measure_step
from ntkdiag.comparison.stored_step import AnySide, StoredStep, require_probe
from ntkdiag.comparison.verdict import judge_kernels
from ntkdiag.kernel.reduction import RandomProjections, ReductionLike, automatic_of_probe
from ntkdiag.measuring.decisions import class_numbers, decision_rule
from ntkdiag.measuring.labels_of_probes import read_labels
from ntkdiag.measuring.measure import measure
from ntkdiag.measuring.measured import Measured
from ntkdiag.measuring.probed_function import ProbedFunction
from ntkdiag.measuring.settings import Settings
from ntkdiag.measuring.training_margin import TrainingMargins
from ntkdiag.models.paths import differences
from ntkdiag.progress import under_way


def why_kernels_alone(a: AnySide, b: AnySide, *, two_models: bool) -> str | None:
    """Why two sides have no parameters in common; None where they may have."""
    steps = [side.label for side in (a, b) if isinstance(side, StoredStep)]
    if steps:
        of = " and ".join(steps)
        return f"no parameters: of {of} a run directory holds kernel and outputs alone"
    if not two_models:
        return None
    assert isinstance(a, Side)
    assert isinstance(b, Side)
    are_alike = not differences(a.functional.params, b.functional.params)
    what = "two models" if are_alike else "different parameters"
    return f"{what}: {_of_model(a)} at A, {_of_model(b)} at B"


def bring_two_structures(a: AnySide, b: AnySide) -> bool:
    """Whether both sides are models of their own, whose parameters differ in structure."""
    if isinstance(a, StoredStep) or isinstance(b, StoredStep):
        return False
    if a.shares_model or b.shares_model:
        return False
    return bool(differences(a.functional.params, b.functional.params))


def _of_model(side: Side) -> str:
    """A model in a few words."""
    return f"{side.model} with {side.n_parameters:,} parameters"


def compare_kernels(
    a: AnySide, b: AnySide, settings: Settings, reason: str, *, show: bool | None
) -> Comparison:
    """Compare two sides by kernels and outputs alone; `reason` is why, `show` the progress."""
    if settings.optimizers is not None:
        raise errors.InvalidInputError(
            argument="optimizer=...",
            expected="two checkpoints of one model, whose optimizers can be read",
            got=reason,
            do="Leave it out; descent= states an update rule.",
        )
    a, shape_a = _with_shape(a, settings)
    b, shape_b = _with_shape(b, settings)
    chosen = _reduction((a, b), (shape_a, shape_b), settings)
    settings = dataclasses.replace(settings, reduction=chosen)
    labels = read_labels(settings.probes.of_kernel, settings, shape_a[1:])
    with under_way("comparing", steps=3, show=show) as work:
        measured_a = _measure(a, settings, shape_a)
        work.advance()
        measured_b = _measure(b, settings, shape_b)
        work.advance()
        motion = _drift(measured_a, measured_b)
        targets = None if labels is None else labels.targets
        rule = decision_rule(shape_a, targets, settings.loss)
        beside = kernels_alone(measured_a, measured_b, reason, rule, (shape_a, shape_b))
        work.advance()
    distance = float(motion.distance_centred)
    return Comparison(
        a=measured_a,
        b=measured_b,
        drift=motion,
        movement=(),
        prediction=None,
        verdict=judge_kernels(measured_a, measured_b, distance_centred=distance),
        facts=facts(a, b, settings, shape_a, measured_a, measured_b),
        notes=notes(a, b, settings, shape_a, measured_a, measured_b),
        classes=None if targets is None else class_numbers(targets),
        kernels_alone=beside,
    )


def _with_shape(side: AnySide, settings: Settings) -> tuple[AnySide, tuple[int, ...]]:
    """A side whose function returns one array, and the shape `[N ...]` of that."""
    if isinstance(side, StoredStep):
        require_probe(side, settings)
        return side, side.outputs.shape
    side, _ = with_one_output(side, side, settings)
    return side, require_outputs(side, settings)


def _reduction(
    sides: tuple[AnySide, AnySide], shapes: tuple[tuple[int, ...], ...], settings: Settings
) -> ReductionLike:
    """The reduction of both kernels: that of stored ones, the one asked for, or the automatic."""
    stored = {side.reduction for side in sides if isinstance(side, StoredStep)}
    n_outputs_a, n_outputs_b = (math.prod(shape[1:]) for shape in shapes)
    asked = settings.reduction
    if not isinstance(asked, RandomProjections) and asked == "auto":
        asked = "mean"
        if stored:
            asked = min(stored, key=str)
        elif n_outputs_a == n_outputs_b:
            asked = automatic_of_probe(settings.n_examples, n_outputs_a)
    if stored - {asked}:
        raise errors.InvalidInputError(
            argument=f"reduction={settings.reduction!r}",
            expected="kernels of one reduction",
            got=f"{asked!r} beside a stored kernel of {min(stored - {asked}, key=str)!r}",
            do="Kernels of two reductions do not compare: track once more with the other one.",
        )
    if asked == "full" and n_outputs_a != n_outputs_b:
        raise errors.InvalidInputError(
            argument='reduction="full"',
            expected="full kernels of the same number of outputs",
            got=f"{n_outputs_a} outputs at A and {n_outputs_b} at B",
            do='Write reduction="mean", which compares them by examples alone.',
        )
    return asked


def _measure(side: AnySide, settings: Settings, shape: tuple[int, ...]) -> Measured:
    """One side by itself; `shape` is that of its outputs."""
    if isinstance(side, StoredStep):
        return measure_step(side, settings)
    f, params = side.functional
    function = ProbedFunction.of(f, params, {}, settings, shape[1:])
    margins = TrainingMargins.of(side.functional, settings, optimizer=None)
    in_training = margins and margins.begin(side.functional, state=None)
    return measure(function, params, {}, side, in_training=in_training)


def _drift(a: Measured, b: Measured) -> Drift:
    """How far the kernel of B is from that of A."""
    # Reduced kernels compare whatever number of outputs they were reduced over.
    convention = dataclasses.replace(b.kernel.convention, n_outputs=a.kernel.convention.n_outputs)
    return drift(a.kernel, dataclasses.replace(b.kernel, convention=convention))
