"""All checkpoints of a run, one probe: how the kernel and its predictions change during training.

1. Read the settings, and the first checkpoint: its function, with running statistics as arguments,
   is that of the whole run, and compiled once.
2. One after the other, as they come: what is stored already is read; what is not is measured by
   itself, and then beside every checkpoint before it. Pairs that an earlier call left out are
   added.
3. Each is stored as soon as it is measured: its arrays first, then its line. Of several processes
   of a program all measure, and the first one stores.
"""

import itertools
import math
import os
from collections.abc import Iterable

import numpy as np

from ntkdiag import errors
from ntkdiag.comparison.measurer import Measurer
from ntkdiag.comparison.record import record_of_run
from ntkdiag.comparison.restore import Template
from ntkdiag.comparison.sides import Side, read_sides, require_some_state, state_of
from ntkdiag.comparison.sources import Model, RunSource, checkpoints_of
from ntkdiag.comparison.store import Store, store_in
from ntkdiag.comparison.tracked import Track
from ntkdiag.descent import DescentLike
from ntkdiag.engine import Memory
from ntkdiag.kernel.reduction import ReductionLike
from ntkdiag.losses.loss_argument import LossLike
from ntkdiag.measuring.measure import Measured
from ntkdiag.measuring.settings import read_settings
from ntkdiag.optimizer.saved_state import Optimizer
from ntkdiag.probe_batch import Pair
from ntkdiag.progress import Work, under_way


@errors.public
def track(
    run: RunSource,
    *,
    model: Model = None,
    train: Pair | None = None,
    held_out: Pair | None = None,
    reduction: ReductionLike = "auto",
    loss: LossLike | None = None,
    descent: DescentLike | None = None,
    optimizer: Optimizer | None = None,
    n_train: int | np.integer | None = None,
    gradient_kernel: bool = False,
    steps: Iterable[int] | None = None,
    out: str | os.PathLike[str] | None = None,
    memory: Memory | None = None,
    progress: bool | None = None,
) -> Track:
    """Measure the kernel of all checkpoints of a run, on a probe.

        run = ntkdiag.track("run/checkpoints", model=model, train=(x, y), loss="mse", out="run/ntk")

    Each checkpoint has spectrum, ranks, share of every leaf, loss, accuracy, alignment and
    stability. Each pair has kernel distance, overlap of the leading modes, and e1 of the network
    linearized at one for the outputs of the other, both ways.

    With `out`, each checkpoint is stored as soon as it is measured. The same call continues after
    an interruption, and measures new checkpoints after more training. A folder of another model,
    probe or setting is refused, and so is a checkpoint that differs from the stored one. A second
    process is refused while one measures. In a JAX program of several processes all of them make
    this call and get the same result; the first one writes, and its error is raised in all.

    Pass `ntkdiag.checkpoints.new_steps(root)` as `run` to wait for the checkpoints of a running
    training; each is measured when it is complete.

    Outputs, structures and probes are as in `compare`. The host holds the parameters and kernels of
    all checkpoints, because every checkpoint is linearized for every other.

    Cost: a kernel for each checkpoint, with its eigendecomposition (N C)^3; T (T - 1) forward
    derivatives of the probe for T checkpoints.

    Source: Fort et al. 2020 (arXiv 2010.15110) for distances through training and for networks
    linearized on the way; Chizat et al. 2019 (1812.07956) for e1.

    Args:
        run: A root of numbered checkpoints, such as that of a CheckpointManager; a dictionary from
            steps to what `compare` takes as one side: paths, parameters, train states, models; or
            pairs (step, checkpoint), which a generator is asked for one after the other.
        model: What gives parameters their meaning, as in `compare`.
        train: Examples of the training set with their labels, (x, y) or (x, y, weights), as in
            `compare`.
        held_out: Examples that are not trained on, with their labels. At least one of the two.
        reduction: Reduction of the kernels, as in `compare`: "auto" is "full" up to 2048 rows N C,
            beyond them "mean" up to 64 outputs of an example, and
            `ntkdiag.kernel.RandomProjections(8)` of more.
        loss: The loss that is trained, as in `compare`; None leaves out loss and stability.
        descent: How it is trained, for the margin: a `Descent`, or a learning rate.
        optimizer: The Optax optimizer it is trained with, instead of `descent`: the margin of
            each checkpoint is that of the next step from the state that is next to its parameters,
            as in `compare`.
        n_train: Examples of the whole training set, as in `compare`.
        gradient_kernel: Whether to measure the `gradient_kernel` of `train`, too: the noise scale
            of each checkpoint and the `self_influence` of each example. Its sum over checkpoints,
            each times the learning rate, is TracIn.
        steps: The steps of the checkpoints to take; None for all.
        out: A folder for the results, created if necessary; None stores nothing.
        memory: Memory budget of a kernel, as in `ntk`.
        progress: Whether to show how far it has come, as in `compare`.

    Returns:
        The checkpoints with all their numbers.

    Raises:
        CheckpointError: A path cannot be read; see `load_params`.
        StructureError: A checkpoint differs from the first one, or a state is not that of the
            optimizer; all differences are listed.
        InvalidInputError: An argument is out of range; parameters are NaN; model and probe do not
            fit; models are of several functions; neither the first nor the last checkpoint has the
            state of an optimizer where one is given; or `out` holds something else, or is being
            written to.
    """
    with store_in(out) as store:
        # Check everything that does not depend on the model before reading a checkpoint.
        settings = read_settings(
            train,
            held_out,
            reduction,
            loss,
            descent,
            memory,
            optimizer,
            n_train,
            gradient_kernel=gradient_kernel,
        )
        checkpoints = checkpoints_of(run, steps)
        with_optimizer = optimizer is not None
        template = Template.of(model, checkpoints.model, settings.x, with_optimizer=with_optimizer)
        sides = read_sides(checkpoints.in_order, template)
        first = next(sides)
        if optimizer is not None and state_of(first, optimizer) is None:
            # Of checkpoints that are still to come, the first one decides.
            require_some_state([first, *read_sides(checkpoints.last, template)], optimizer)
        measurer = Measurer.of(first, settings, detailed=False)
        shape = (settings.n_examples, *measurer.function.outputs_of_one)
        record = record_of_run(measurer.first, measurer.settings, shape)
        count = checkpoints.count
        with store.opened(record):
            if count is not None:
                n_new = count - len(store.finished)
                what = "1 checkpoint" if n_new == 1 else f"{n_new} checkpoints"
                measurer.announce(f"tracking {what}", n_new, progress)
            # Without a number of checkpoints no share of the work can be told.
            with under_way("tracking", steps=count or math.inf, show=progress) as work:
                in_order = itertools.chain([first], sides)
                done = _measured(in_order, measurer, store, work)
            rows = [{**store.finished[of.step], "step": of.step} for of in done]
        eigenvalues = np.stack([of.eigenvalues for of in done])
        outputs = np.stack([of.outputs for of in done])
        return Track.of(record, rows, eigenvalues, outputs, store.reader())


def _measured(
    sides: Iterable[Side], measurer: Measurer, store: Store, work: Work
) -> list[Measured]:
    """Measure and store one checkpoint after the other; all of them, in the order of the steps."""
    done: list[Measured] = []
    for side in sides:
        step = side.step
        assert step is not None  # `read_sides` gave it one
        work.text = f"tracking, {side.label}"
        measurer.require_like_first(side)
        arrays = store.read(step) if step in store.finished else None
        stored = store.finished.get(step)  # gone where it is damaged
        if stored is None or arrays is None:
            now = measurer.measure(side)
        else:
            now = measurer.stored(side, stored, arrays)
        row = measurer.row(now, done, stored)
        if stored is None:
            store.write(step, row, now.arrays_to_store)
        elif row != stored:  # it was measured without some of the others
            store.amend(step, row)
        if not store.is_common(step):
            break
        done.append(now)
        work.advance()
    else:
        store.is_common(None)
    done = sorted(done, key=lambda of: of.step)
    # Of checkpoints that came before the first one.
    for now in done[1:]:
        row = store.finished[now.step]
        with_start = measurer.with_start(row, done[0], now)
        if with_start is not row:
            store.amend(now.step, with_start)
    return done
