"""Two checkpoints, one probe, one answer.

1. Read the settings, and both sides: each becomes a Functional, parameters with their function.
2. Refuse what cannot be compared, before anything is computed: other parameters, outputs that do
   not fit probe, labels or loss.
3. Measure each side by itself, as `track` measures a checkpoint, with more detail.
4. Measure what lies between them: drift of the kernel, motion of every parameter, and how much of B
   the model linearized at A predicts; the effect of running statistics is measured separately.
"""

import math

import numpy as np

from ntkdiag import errors
from ntkdiag.analysis import drift
from ntkdiag.comparison.change import (
    change_of_fixed_arrays,
    motion_of_all,
    motion_of_leaves,
    numbers_of_drift,
)
from ntkdiag.comparison.comparison import Comparison
from ntkdiag.comparison.measurer import Measurer
from ntkdiag.comparison.record import facts_of_comparison, notes_on
from ntkdiag.comparison.restore import Template
from ntkdiag.comparison.sides import Side, read_sides, require_some_state, with_labels_apart
from ntkdiag.comparison.sources import Model, Source, classified, model_among
from ntkdiag.descent import DescentLike
from ntkdiag.engine import Memory
from ntkdiag.judging.of_ends import Ends
from ntkdiag.kernel.reduction import ReductionLike
from ntkdiag.losses.loss_argument import LossLike
from ntkdiag.measuring.fit import class_numbers
from ntkdiag.measuring.measure import Measured
from ntkdiag.measuring.settings import read_settings
from ntkdiag.optimizer.saved_state import Optimizer
from ntkdiag.probe_batch import Pair
from ntkdiag.progress import under_way


@errors.public
def compare(
    a: Source,
    b: Source,
    *,
    model: Model = None,
    train: Pair | None = None,
    held_out: Pair | None = None,
    reduction: ReductionLike = "auto",
    loss: LossLike | None = None,
    descent: DescentLike | None = None,
    optimizer: Optimizer | None = None,
    n_train: int | np.integer | None = None,
    memory: Memory | None = None,
    progress: bool | None = None,
) -> Comparison:
    """Compare two checkpoints through their neural tangent kernels on a probe.

    The comparison has spectrum, rank, alignment with the labels and stability of each side, the
    drift of the kernel, the movement of every parameter, and how much of B the model linearized at
    A predicts. Structure, shapes and dtypes must agree exactly.

    Stability, drift and linearization error are measured on `train`; alignment, label power and
    leave-one-out error on `held_out`. With `train` alone the latter are measured on examples that
    the kernel was trained on; with `held_out` alone there are no stability numbers. The notes say
    so.

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
            of an installed adapter, a Functional, or a callable `f(params, x)`. Not needed with
            Functionals and models. The options of a Functional hold for both sides; its fixed
            arrays only where neither side has them: `functionalize(model, variables)` gives a linen
            module the collections that were not saved.
        train: Examples of the training set with their labels, (x, y): N examples on the leading
            axis of every leaf of x, 64 to 256 are enough; y `[N]` class numbers or values, `[N T]`
            class numbers of tokens, targets of the shape of the outputs, or None, which leaves out
            alignment, loss and accuracy. A loss of your own receives y unchanged, also as a tree of
            arrays; (x, y, weights) weights the losses of ntkdiag by example or position.
        held_out: Examples that are not trained on, with their labels. At least one of the two is
            given. Their kernel is the mean over outputs, unless `reduction` states another one.
        reduction: Reduction of the kernels as `ntk` has it; "auto" is "full" up to 2048 rows N C
            (N T C), beyond them "mean" up to 64 outputs of an example, its positions counted, and
            `ntkdiag.kernel.RandomProjections(8)` of more, an estimate of the trace. The margin of a
            reduced kernel comes from products with the full one.
        loss: The loss that is trained: "mse", "cross_entropy", "sigmoid_cross_entropy", an object
            of `ntkdiag.losses`, or a function `loss(outputs, y)`. None leaves out the loss and all
            numbers about stability.
        descent: How it is trained, for the stability margin: a `Descent`, or the learning rate of
            plain gradient descent.
        optimizer: The Optax optimizer it is trained with, instead of `descent`. Learning rate,
            momentum and preconditioner of each side are read from the state next to its parameters:
            `opt_state` of a train state, `optimizer`, or a pair (parameters, state). The margin is
            that of the next step, as `ntkdiag.watch` measures it; NaN, and why, where a side has no
            state or the optimizer is not recognized.
        n_train: Examples of the whole training set, of which `train` are some: the interval of the
            margin is that of a part of them, none where the probe is all.
        memory: Memory budget of a kernel, as `ntk` takes it.
        progress: Whether to show progress and the remaining time: None on a terminal after two
            seconds, True everywhere, False never, and without a forecast.

    Returns:
        The comparison.

    Raises:
        CheckpointError: A path cannot be read; see `load_params`.
        StructureError: The two sides, a side and the model, or a state and the optimizer, differ;
            the message lists every difference by path.
        InvalidInputError: An argument is out of range, parameters are NaN, model and probe do not
            fit, the models are of two functions, or neither side has the state of an optimizer
            where one is given.
    """
    # Check everything that does not depend on the model before reading a checkpoint.
    settings = read_settings(train, held_out, reduction, loss, descent, memory, optimizer, n_train)
    # Parameters need a model: the argument, or a side that is a model.
    common = model_among(map(classified, (a, b)))
    template = Template.of(model, common, settings.x, with_optimizer=optimizer is not None)
    side_a, side_b = with_labels_apart(*read_sides([("A", a), ("B", b)], template))
    measurer = Measurer.of(side_a, settings, detailed=True)
    sides = (measurer.first, side_b)
    measurer.require_like_first(side_b)
    if optimizer is not None:
        require_some_state(sides, optimizer)
    measurer.announce("comparing two checkpoints", 2, progress)
    with under_way("comparing", steps=3, show=progress) as work:
        measured_a = measurer.measure(sides[0])
        work.advance()
        measured_b = measurer.measure(sides[1])
        work.advance()
        return _compared(measurer, sides, (measured_a, measured_b))


def _compared(
    measurer: Measurer, sides: tuple[Side, Side], measured: tuple[Measured, Measured]
) -> Comparison:
    """What lies between the sides, and all of it together."""
    a, b = measured
    settings, labels = measurer.settings, measurer.function.labels
    # What the parameters did is measured at the fixed arrays of B, running statistics for one.
    start = measurer.start(a, b)
    kernel, leaf_kernels, of_fixed_arrays = a.kernel, a.leaf_kernels, {}
    if start is not None:
        kernel = start.kernel
        leaf_kernels = measurer.function.leaf_kernels(a.params, b.kwargs)
        of_fixed_arrays = change_of_fixed_arrays(start, a, b)
    predicted = measurer.pairs.prediction(a, b)
    of_leaves = motion_of_leaves(a, b, leaf_kernels)
    numbers = {
        **numbers_of_drift(drift(kernel, b.kernel)),
        **motion_of_all(of_leaves),
        **of_fixed_arrays,
    }
    if math.isfinite(predicted.e1):
        numbers["e1"] = predicted.e1
        numbers["e2"] = measurer.pairs.quadratic_error(a, b, predicted.start)
    if math.isfinite(predicted.agreement):
        numbers["agreement"] = predicted.agreement
    probes = (settings.probes.train, settings.probes.held_out)
    ends = Ends(
        before=a.row,
        after=b.row | {"step": sides[1].step},
        e1=numbers.get("e1"),
        distance_centred=numbers["drift_distance_centred"],
        first=sides[0].label,
        step=sides[1].step,
        examples={probe.name: probe.n_examples for probe in probes if probe is not None},
        start={} if start is None else start.numbers | of_fixed_arrays,
    )
    n = len(b.outputs)
    return Comparison(
        sides=measured,
        labels=(sides[0].label, sides[1].label),
        numbers=numbers,
        arrays={
            "outputs_start": predicted.start.reshape(n, -1),
            "outputs_linearized": predicted.linear.reshape(n, -1),
            **of_leaves,
        },
        ends=ends,
        facts=facts_of_comparison(sides, measurer.function, measured),
        notes=notes_on(sides, settings, measured),
        classes=None if labels is None or labels.targets is None else class_numbers(labels.targets),
        fixed_arrays=measurer.differing(a, b),
    )
