"""Two checkpoints, one probe, one answer.

1. Read the settings, and both sides: each becomes a Functional, parameters with their function.
2. Refuse what cannot be compared, before anything is computed: other parameters, outputs that do
   not fit probe, labels or loss.
3. Measure each side by itself: kernel, spectrum, alignment, stability.
4. Measure what lies between them: drift of the kernel, motion of every parameter, and how much of B
   the model linearized at A predicts; what other running statistics did by themselves is apart.
5. Judge: dead, collapsed, or regime and task.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.analysis import drift
from ntkdiag.checkpoints.files import ParameterNames
from ntkdiag.comparison.compared_outputs import require_outputs, with_one_output
from ntkdiag.comparison.comparison import Comparison
from ntkdiag.comparison.facts import facts, notes
from ntkdiag.comparison.fixed_arrays_change import (
    Start,
    change_of_fixed_arrays,
    differing_fixed_arrays,
    numbers_of_drift,
    start_of,
)
from ntkdiag.comparison.load import (
    Side,
    read_side,
    refuse_run_directory,
    require_comparable,
    require_one_model,
    require_some_state,
    require_two,
    state_of,
)
from ntkdiag.comparison.parameter_movement import parameter_movement, total_movement
from ntkdiag.comparison.restore import Template
from ntkdiag.comparison.sources import Model, Source, classified, model_among
from ntkdiag.descent import DescentLike
from ntkdiag.engine import Memory
from ntkdiag.judging.of_ends import Ends
from ntkdiag.kernel.reduction import ReductionLike
from ntkdiag.losses.loss_argument import LossLike
from ntkdiag.measuring.decisions import agreement, class_numbers, decision_rule
from ntkdiag.measuring.forecast import announce_forecast
from ntkdiag.measuring.linearized_change import predict
from ntkdiag.measuring.measure import measure
from ntkdiag.measuring.probed_function import ProbedFunction
from ntkdiag.measuring.settings import Settings, read_settings
from ntkdiag.measuring.training_margin import TrainingMargins
from ntkdiag.optimizer.saved_state import Optimizer, OptimizerState
from ntkdiag.probe_batch import Pair
from ntkdiag.progress import under_way


@errors.public
def compare(
    a: Source,
    b: Source,
    *,
    model: Model = None,
    variables: PyTree = None,
    train: Pair | None = None,
    held_out: Pair | None = None,
    reduction: ReductionLike = "auto",
    loss: LossLike | None = None,
    descent: DescentLike | None = None,
    optimizer: Optimizer | None = None,
    n_train: int | np.integer | None = None,
    memory: Memory | None = None,
    parameter_names: ParameterNames | None = None,
    progress: bool | None = None,
) -> Comparison:
    """Compare two checkpoints through their neural tangent kernels on a probe.

    The comparison has spectrum, rank, alignment with the labels and stability of each side, the
    drift of the kernel, the movement of every parameter, and how much of B the model linearized at
    A predicts. Structure, shapes and dtypes must agree exactly.

    Stability, drift and linearization error are measured on `train`; alignment, label power and
    leave-one-out error on `held_out`. With `train` alone the latter are measured on examples that
    the kernel was trained on, and the notes say so. With `held_out` alone there are no stability
    numbers: under the cross-entropy the margin would be 1.7 to 2.5 times too high late in training.

    Outputs are one array `[N ... C]`, or a dictionary that holds it, alone or as `logits`. Axes
    between examples and classes are positions, whose outputs are rows of the full kernel.

    Cost: two kernels with their eigendecompositions (N C)^3, two reduced kernels per leaf, and two
    reduced kernels of the held-out examples. If fixed arrays differ between the sides, two more
    kernels of A, with the arrays of B.

    Args:
        a: Checkpoint (path of a checkpoint or of a step, a root of numbered ones, or ``"root@100"``
            for its step 100) of Orbax, safetensors, msgpack or Equinox, or a file that an
            installed distribution reads (a `state_dict`, by ntkdiag-torch); parameters, a variables
            dict, a `state_dict`, a train state, an NNX or Equinox model, `(model, state)` of a
            stateful Equinox model, one of an installed adapter, or a Functional. Each side is
            evaluated with its own running statistics.
        b: The same for the other side.
        model: What gives parameters their meaning: a linen module, an NNX or Equinox model, one
            of an installed adapter, a Functional, or a callable `f(params, x)`. Not needed beside
            Functionals and models. The options of a Functional hold for both sides; its fixed
            arrays only for a side without.
        variables: Variables of a linen module, as `init` returns them: states the structure to
            expect, and the collections (batch statistics) that were not saved. Saved collections
            are used side by side.
        train: Examples of the training set with their labels, (x, y): N examples on the leading
            axis of every leaf of x, 64 to 256 are enough; y `[N]` class numbers or values, `[N T]`
            class numbers of tokens, targets of the shape of the outputs, or None, which leaves out
            alignment, loss and accuracy. A loss of your own gets y as it comes, a tree of arrays
            too; (x, y, weights) weights the losses of ntkdiag, sum w l / sum w, by example or
            position.
        held_out: Examples that are not trained on, with their labels. At least one of the two is
            given. Their kernel is the mean over outputs, unless `reduction` states another one.
        reduction: Reduction of the kernels as `ntk` has it; "auto" is "full" up to 2048 rows N C
            (N T C), beyond them "mean" up to 64 outputs of an example, its positions counted, and
            `ntkdiag.kernel.RandomProjections(8)` of more, an estimate of the trace; the notes say
            so. The margin of a reduced kernel comes from products with the full one.
        loss: The loss that is trained: "mse", "cross_entropy", "sigmoid_cross_entropy", an object
            of `ntkdiag.losses`, or a function `loss(outputs, y)`. None leaves out the loss and all
            numbers about stability.
        descent: How it is trained, for the stability margin: a `Descent`, or the learning rate of
            plain gradient descent.
        optimizer: The Optax optimizer it is trained with, instead of `descent`. Learning rate,
            momentum and preconditioner of each side are read from the state that is next to its
            parameters: `opt_state` of a train state, `optimizer`, or a pair (parameters, state).
            The margin is that of the next step, with the gradient of
            `train`, measured as `ntkdiag.watch` does, with the interval of all training examples;
            NaN, and why, where a side has no state or the optimizer is not recognized.
        n_train: Examples of the whole training set, of which `train` are some: the interval of the
            margin is that of a part of them, none where the probe is all.
        memory: Memory budget of a kernel, as `ntk` takes it.
        parameter_names: What paths the names of a safetensors file have, as in `load_params`.
        progress: Whether to show progress and the remaining time: None on a terminal after two
            seconds, True everywhere, False never, and without a forecast.

    Returns:
        The comparison.

    Raises:
        CheckpointError: A path cannot be read; see `load_params`.
        StructureError: The two sides, a side and the model, or a state and the optimizer, differ;
            the message lists every difference by path.
        InvalidInputError: An argument is out of range, parameters are NaN, model and probe do not
            fit, or neither side has the state of an optimizer where one is given.
    """
    source_a, source_b = classified(a), classified(b)
    for source in (source_a, source_b):
        refuse_run_directory(source)
    # What does not depend on the model is checked before a checkpoint is read.
    settings = read_settings(train, held_out, reduction, loss, descent, memory, optimizer, n_train)

    # Parameters mean nothing without a model: the argument, or the side that is one itself.
    template = Template.of(
        require_one_model(model),
        common=model_among((source_a, source_b)),
        variables=variables,
        x=settings.x,
        parameter_names=parameter_names,
        with_optimizer=optimizer is not None,
    )
    side_a, side_b = require_two(
        read_side(source_a, template, name="A"),
        read_side(source_b, template, name="B"),
    )
    side_a, side_b = require_comparable(side_a, side_b)
    side_a, side_b = with_one_output(side_a, side_b, settings)
    states = _optimizer_states((side_a, side_b), settings)

    # Shapes are known without computing the outputs: what does not fit is refused here.
    output_shape = require_outputs(side_a, settings)
    require_outputs(side_b, settings)
    f, params = side_a.functional
    function = ProbedFunction.of(f, params, {}, settings, output_shape[1:])
    settings = function.settings
    if progress is not False:
        announce_forecast(
            function,
            params,
            {},
            work="comparing two checkpoints",
            n_checkpoints=2,
            show=progress,
        )
    with under_way("comparing", steps=4, show=progress) as work:
        return _measure(side_a, side_b, function, states, work.advance)


def _optimizer_states(
    sides: tuple[Side, Side], settings: Settings
) -> list[OptimizerState | None] | None:
    """The state of each side's optimizer; None where no optimizer is given."""
    optimizer = settings.optimizer
    if optimizer is None:
        return None
    states = [state_of(side, optimizer) for side in sides]
    require_some_state(sides, states)
    return states


def _measure(
    a: Side,
    b: Side,
    function: ProbedFunction,
    states: list[OptimizerState | None] | None,
    advance: Callable[[], None],
) -> Comparison:
    """Measure both sides and what lies between them, in four steps: `advance` after each.

    `function` is that of A on the probes.
    """
    settings, labels = function.settings, function.labels
    shape = (settings.n_examples, *function.outputs_of_one)
    # Each side by itself.
    _, params_a = a.functional
    f_b, params_b = b.functional
    margins_a, margins_b = _margins_in_training((a, b), function)
    state_a, state_b = states or (None, None)
    stability = margins_a and margins_a.begin(a.functional, state_a)
    measured_a = measure(function, params_a, {}, a, in_training=stability)
    advance()
    function_b = function.at(f_b, params_b)
    stability = margins_b and margins_b.begin(b.functional, state_b)
    measured_b = measure(function_b, params_b, {}, b, in_training=stability)
    advance()

    # What lies between them. What the parameters did is measured at the fixed arrays of B, running
    # statistics for one.
    differing = differing_fixed_arrays(a, b)
    start = Start(function.f, params_a, measured_a.outputs, measured_a.kernel, {})
    leaf_kernels, of_fixed_arrays = measured_a.leaf_kernels, {}
    if differing:
        _, params = b.functional.with_params(params_a, check=False)
        start = start_of(function_b, params, {})
        leaf_kernels = function_b.leaf_kernels(params, {})
        of_fixed_arrays = change_of_fixed_arrays(
            start, measured_a.kernel, measured_a.outputs, measured_b.outputs
        )
    advance()
    movement = parameter_movement(
        params_a,
        params_b,
        measured_a.leaf_kernels,
        measured_b.leaf_kernels,
        leaf_kernels,
    )
    predicted, linearized = predict(
        start.f, start.params, params_b, settings.x, start.outputs, measured_b.outputs
    )
    targets = None if labels is None else labels.targets
    rule = decision_rule(shape, targets, settings.loss)
    agreeing = agreement(linearized.reshape(shape), measured_b.outputs.reshape(shape), rule)
    numbers = {
        **numbers_of_drift(drift(start.kernel, measured_b.kernel)),
        **predicted,
        **({} if agreeing is None else {"agreement": agreeing}),
        **total_movement(movement),
        **of_fixed_arrays,
    }
    probes = (settings.probes.train, settings.probes.held_out)
    ends = Ends(
        before=measured_a.row,
        after=measured_b.row,
        e1=numbers.get("e1"),
        distance_centred=numbers["drift_distance_centred"],
        first=a.label,
        step=b.step,
        leaves=list(measured_a.leaf_kernels),
        reduction=str(settings.reduction),
        examples={probe.name: probe.n_examples for probe in probes if probe is not None},
        start=start.numbers | of_fixed_arrays,
    )
    return Comparison(
        a=measured_a,
        b=measured_b,
        numbers=numbers,
        arrays={"outputs_start": start.outputs, "outputs_linearized": linearized},
        movement=movement,
        ends=ends,
        facts=facts(a, b, settings, shape, measured_a, measured_b),
        notes=notes(a, b, settings, shape, measured_a, measured_b),
        classes=None if targets is None else class_numbers(targets),
        fixed_arrays=differing,
    )


def _margins_in_training(
    sides: tuple[Side, Side], function: ProbedFunction
) -> tuple[TrainingMargins | None, TrainingMargins | None]:
    """What measures the margin of each side as it is trained; None where its kernel tells it."""
    a, b = sides
    settings, outputs_of_one = function.settings, function.outputs_of_one

    def margins_of(side: Side) -> TrainingMargins | None:
        return TrainingMargins.of(side.functional, settings, settings.optimizer, outputs_of_one)

    margins = margins_of(a)
    # Compiled once for both sides, where one function is theirs; what a common model holds beside
    # its parameters is handed in.
    is_one_model = a.shares_model and b.shares_model
    if is_one_model or a.functional.apply is b.functional.apply:
        return margins, margins
    return margins, margins_of(b)
