"""All checkpoints of a run, one probe: how the kernel and what it predicts went through training.

1. Read the settings, and the first checkpoint: its function, with running statistics as arguments,
   is that of the whole run, and compiled once.
2. One after the other, as they come: what is stored already is read; what is not is measured by
   itself, and then beside every checkpoint before it. Pairs that an earlier call left out are made
   up for.
3. Each is stored as soon as it is measured: its arrays first, then its line. Of several processes
   of a program all measure, and the first one stores.
"""

import contextlib
import dataclasses
import itertools
import math
import os
from collections.abc import Iterable, Iterator

import numpy as np
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.checkpoints.files import ParameterNames
from ntkdiag.comparison.compared_outputs import require_outputs, with_one_output
from ntkdiag.comparison.load import (
    Side,
    read_side,
    require_some_state,
    state_of,
)
from ntkdiag.comparison.restore import Template
from ntkdiag.comparison.snapshots import RunSource, Snapshot, snapshots_of
from ntkdiag.comparison.sources import Model, classified
from ntkdiag.comparison.track_record import record_of_run
from ntkdiag.comparison.track_store import Destination, Store, destination
from ntkdiag.comparison.tracked import Track
from ntkdiag.comparison.tracker import Tracker
from ntkdiag.descent import DescentLike
from ntkdiag.engine import Memory
from ntkdiag.kernel.reduction import ReductionLike
from ntkdiag.losses.loss_argument import LossLike
from ntkdiag.measuring.checkpoint_pairs import Place
from ntkdiag.measuring.settings import (
    Settings,
    read_settings,
    with_gradient_kernel,
)
from ntkdiag.optimizer.saved_state import Optimizer
from ntkdiag.probe_batch import Pair
from ntkdiag.progress import Work, under_way


@errors.public
def track(
    run: RunSource,
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
    gradient_kernel: bool = False,
    steps: Iterable[int] | None = None,
    out: str | os.PathLike[str] | None = None,
    memory: Memory | None = None,
    parameter_names: ParameterNames | None = None,
    progress: bool | None = None,
) -> Track:
    """Follow the kernel through all checkpoints of a run, on a probe.

        run = ntkdiag.track("run/checkpoints", model=model, train=(x, y), loss="mse", out="run/ntk")

    Each checkpoint has spectrum, ranks, trace and the share of every leaf in it, loss, accuracy,
    alignment and stability. Each pair has kernel distance, overlap of the leading modes, and e1 of
    the network linearized at one for the outputs of the other, both ways.

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
        variables: Variables of a linen module, as in `compare`.
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
            of each checkpoint and the `self_influence` of each example, for
            `Track.self_influence`.
        steps: The steps of the checkpoints to take; None for all.
        out: A folder that the results are stored in, made if need be; None stores nothing.
        memory: Memory budget of a kernel, as in `ntk`.
        parameter_names: What paths the names of safetensors files have, as in `load_params`.
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
    with destination(out) as place_of_results:
        # What does not depend on the model is checked before a checkpoint is read.
        settings = read_settings(
            train, held_out, reduction, loss, descent, memory, optimizer, n_train
        )
        if gradient_kernel:
            settings = with_gradient_kernel(settings)
        snapshots = snapshots_of(run, steps)
        template = Template.of(
            classified(model),
            common=snapshots.model,
            variables=variables,
            x=settings.x,
            parameter_names=parameter_names,
            with_optimizer=optimizer is not None,
        )
        sides = _read_all(snapshots.in_order, template)
        first_snapshot, first = next(sides)
        _require_optimizer_state(first, snapshots.end, template, settings)
        first, _ = with_one_output(first, first, settings)
        shape = require_outputs(first, settings)
        tracker = Tracker.of(first, settings, shape[1:])
        record = record_of_run(first, tracker.model.settings, shape)
        in_order = itertools.chain([(first_snapshot, first)], sides)
        with (
            place_of_results.opened(record) as store,
            _begun(tracker, snapshots.count, store, progress) as work,
        ):
            places = _measured(in_order, tracker, store, place_of_results, work)
            rows = [{**store.finished[place.step], "step": place.step} for place in places]
        eigenvalues = np.stack([place.eigenvalues for place in places])
        outputs = np.stack([place.outputs for place in places])
        return Track.of(record, rows, eigenvalues, outputs, place_of_results.reader())


def _measured(
    sides: Iterable[tuple[Snapshot, Side]],
    tracker: Tracker,
    store: Store,
    place_of_results: Destination,
    work: Work,
) -> list[Place]:
    """Measure and store one checkpoint after the other; all of them, in the order of the steps."""
    places: list[Place] = []
    for snapshot, side in sides:
        work.text = f"tracking, step {snapshot.step}"
        place = tracker.place(snapshot, side, store)
        row = tracker.row(place, places)
        stored = store.finished.get(snapshot.step)
        if stored is None:
            store.write(snapshot.step, row, place.arrays)
        elif row["pairs"] != stored["pairs"] or row.get("from_first") is not stored.get(
            "from_first"
        ):  # it was measured without some of the others
            store.amend(snapshot.step, row)
        if not place_of_results.is_common(snapshot.step):
            break
        places.append(place)
        work.advance()
    else:
        place_of_results.is_common(None)
    places = sorted(places, key=lambda place: place.step)
    # Of checkpoints that came before the first one.
    for place in places[1:]:
        row = store.finished[place.step]
        motion = tracker.from_first(places[0], row, place)
        if motion:
            store.amend(place.step, row | motion)
    return places


@contextlib.contextmanager
def _begun(tracker: Tracker, count: int | None, store: Store, show: bool | None) -> Iterator[Work]:
    """Say what the checkpoints that are not stored will take, and show how far they have come."""
    if show is not False and count is not None and count > len(store.finished):
        tracker.announce(count - len(store.finished), show)
    # Without a number of checkpoints no share of the work can be told.
    with under_way("tracking", steps=count or math.inf, show=show) as work:
        yield work


def _read_all(snapshots: Iterable[Snapshot], template: Template) -> Iterator[tuple[Snapshot, Side]]:
    """Each checkpoint as it comes."""
    is_first = True
    for snapshot in snapshots:
        side = _read(snapshot, template)
        if is_first and side.shares_model:
            # A module is asked only once which collections it reads.
            functional = side.functional
            given = classified(functional)
            template = dataclasses.replace(template, given=given, options=functional)
        is_first = False
        yield snapshot, side


def _read(snapshot: Snapshot, template: Template) -> Side:
    label = f"step {snapshot.step}"
    try:
        return read_side(classified(snapshot.source), template, name=label, label=label)
    except errors.StructureError as error:
        raise errors.StructureError(f"{error} It is the checkpoint of {label}.") from error


def _require_optimizer_state(
    first: Side, last: Snapshot | None, template: Template, settings: Settings
) -> None:
    """Refuse a run in which neither end has the state of an optimizer, where one is given.

    Of checkpoints that are still to come, the first one decides.
    """
    optimizer = settings.optimizer
    if optimizer is None:
        return
    if state_of(first, optimizer) is None:
        end = first if last is None else _read(last, template)
        require_some_state((first, end), (None, state_of(end, optimizer)))
