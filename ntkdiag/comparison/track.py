"""All checkpoints of a run, one probe: how the kernel and what it predicts went through training.

1. Read the settings, and the first checkpoint: its function, with running statistics as arguments,
   is that of the whole run, and compiled once.
2. One after the other, as they come: what is stored already is read; what is not is measured by
   itself, and then beside every checkpoint before it. Pairs that an earlier call left out are made
   up for.
3. Each is stored as soon as it is measured: its arrays first, then its line.
"""

import dataclasses
import functools
import itertools
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import jax
import numpy as np
from jaxtyping import PyTree

from ntkdiag import display, errors
from ntkdiag.checkpoints.named_arrays import ParameterNames
from ntkdiag.comparison.arrivals import Arrivals, FollowLike, arrivals_of
from ntkdiag.comparison.checkpoint_numbers import (
    CheckpointNumbers,
    TrackedModel,
    leaf_names,
    measure_checkpoint,
)
from ntkdiag.comparison.checkpoint_pairs import Pairs, Place
from ntkdiag.comparison.compared_outputs import require_outputs, with_one_output
from ntkdiag.comparison.label_fit import fit_outputs
from ntkdiag.comparison.labels_of_probes import read_held_out, read_labels
from ntkdiag.comparison.measured import fingerprint
from ntkdiag.comparison.optimizer_margin import require_some_state, state_of
from ntkdiag.comparison.placing import Model, Template, structure_error
from ntkdiag.comparison.settings import OptimizerLike, Settings, read_settings
from ntkdiag.comparison.sides import Side, read_side
from ntkdiag.comparison.snapshots import RunSource, Snapshot, StepsLike
from ntkdiag.comparison.stored_probe import store_probe
from ntkdiag.comparison.tracked import Track
from ntkdiag.comparison.versions import installed_versions
from ntkdiag.descent import DescentLike
from ntkdiag.engine.calls.call import Memory
from ntkdiag.engine.independence import roundoff_of
from ntkdiag.kernel.convention import Convention
from ntkdiag.kernel.digest import digest
from ntkdiag.kernel.kernel import Kernel
from ntkdiag.kernel.reduction import automatic
from ntkdiag.losses.loss_argument import LossLike
from ntkdiag.models.following import Following
from ntkdiag.models.functional import Apply, Functional
from ntkdiag.models.paths import describe, differences, leaves_by_path
from ntkdiag.optimizer.saved_state import OptimizerState, optimizer_in_words
from ntkdiag.probe_batch import Pair, ProbeBatch
from ntkdiag.progress import under_way
from ntkdiag.runs.run_reader import RunReader, require_run
from ntkdiag.runs.run_writer import RunWriter

# Outputs of one function, by two programs or on two devices, differ by less than this share of the
# largest, or so many times the roundoff of the model where that is coarse.
SAME = 5e-3
SAME_IN_ROUNDOFF = 8.0
# Axes of the stored arrays, beside the steps.
_DIMS = {"eigenvalues": ["mode"], "modes": ["row", "mode_kept"], "leaf_shares": ["leaf"]}
_DIMS_OF_KERNEL = ["example", "example_2"]
_DIMS_OF_FULL_KERNEL = ["example", "row_output", "example_2", "row_output_2"]


@errors.public
def track(
    run: RunSource,
    *,
    model: Model = None,
    variables: PyTree = None,
    train: Pair | None = None,
    held_out: Pair | None = None,
    reduction: str = "auto",
    loss: LossLike | None = None,
    descent: DescentLike | None = None,
    optimizer: OptimizerLike | None = None,
    steps: StepsLike | None = None,
    last: int | None = None,
    follow: FollowLike = False,
    patience: float | int | None = None,
    out: str | os.PathLike[str] | None = None,
    memory: Memory | None = None,
    parameter_names: ParameterNames | None = None,
    progress: bool | None = None,
) -> Track:
    """Follow the kernel through all checkpoints of a run, on a probe.

        run = ntkdiag.track("run/checkpoints", model=model, train=(x, y), loss="mse", out="run/ntk")

    Of each checkpoint: spectrum, ranks, trace and the share of every leaf in it, loss, accuracy,
    alignment, stability. Of each pair: kernel distance, overlap of the leading modes, and e1 of the
    network linearized at one for the outputs of the other, both ways.

    With `out`, each checkpoint is stored as soon as it is measured, and found there the next time:
    a call that was interrupted goes on where it was, and one after more training measures what is
    new. A folder of another model, probe or setting is refused, and so is a checkpoint that is not
    the one that was measured. A second process is refused while one measures.

    With `follow` it waits for new checkpoints of a training that is going on, and measures each as
    soon as it is finished. Ctrl-C ends it, and returns what there is.

    Outputs, structures and probes are as in `compare`. All parameters and kernels are held in the
    memory of the host at once: every checkpoint is linearized for every other. Of a generator
    nothing else is held.

    Cost: a kernel for each checkpoint, with its eigendecomposition (N C)^3; T (T - 1) forward
    derivatives of the probe for T checkpoints.

    Source: Fort et al. 2020 (arXiv 2010.15110) for distances through training and for networks
    linearized on the way; Chizat et al. 2019 (1812.07956) for e1.

    Args:
        run: A root of numbered checkpoints, such as that of a CheckpointManager; a list of what
            `compare` takes as one side: paths, parameters, train states, models; a dictionary from
            steps to these; or a generator of these, or of pairs (step, checkpoint), which is asked
            for one after the other.
        model: What gives parameters their meaning, as in `compare`.
        variables: Variables of a linen module, as in `compare`.
        train: Examples of the training set with their labels, (x, y), as in `compare`.
        held_out: Examples that are not trained on, with their labels. At least one of the two.
        reduction: Reduction of the kernels: "auto" is "full" up to 2048 rows N C, else "mean".
        loss: The loss that is trained, as in `compare`; None leaves out loss and stability.
        descent: How it is trained, for the margin: a `Descent`, or a learning rate.
        optimizer: The Optax optimizer it is trained with, in the place of `descent`: the margin of
            each checkpoint is that of the next step from the state that lies beside its parameters,
            as in `compare`.
        steps: Which checkpoints: a schedule such as `LogSpaced()`, or the steps; None for all. A
            generator, or a training that is followed, ends when all that are named have come.
        last: The last so many of these; not of a generator, and not with `follow`.
        follow: Whether to wait for new checkpoints in the root of a CheckpointManager, which may be
            empty at first; or a function without arguments, which is asked every second whether to
            go on.
        patience: With `follow`, seconds without a new checkpoint after which it ends; None for no
            limit.
        out: A folder that the results are stored in, made if need be; None stores nothing.
        memory: Memory budget of a kernel, as in `ntk`.
        parameter_names: What paths the names of safetensors files have, as in `load_params`.
        progress: Whether to show how far it has come, as in `compare`.

    Returns:
        The checkpoints with all their numbers.

    Raises:
        CheckpointError: A path cannot be read; see `load_params`. Or none came.
        StructureError: A checkpoint differs from the first one, or a state is not that of the
            optimizer; all differences are listed.
        InvalidInputError: An argument is out of range; parameters are NaN; model and probe do not
            fit; models are of several functions; neither the first nor the last checkpoint has the
            state of an optimizer where one is given; or `out` holds something else, or is being
            written to.
    """
    # What does not depend on the model is checked before a checkpoint is read.
    settings = read_settings(train, held_out, reduction, loss, descent, memory, optimizer)
    arrivals = arrivals_of(run, steps, last, follow, patience)
    template = Template.of(
        model,
        common=arrivals.model,
        variables=variables,
        x=settings.x,
        parameter_names=parameter_names,
        with_optimizer=optimizer is not None,
    )
    sides = _read_all(arrivals, template)
    first_snapshot, first = _require_first(next(sides, None), run)
    _require_optimizer_state(first, arrivals.end, template, settings)
    first, _ = with_one_output(first, first, settings)
    shape = require_outputs(first, settings)
    tracker = _Tracker.of(first, settings, shape[1:])
    record = _record(first, tracker.model.settings, shape)
    if out is not None:
        store_probe(out, tracker.model.settings.probes.of_kernel, record["probes"])
    with (
        _store(out, record) as store,
        # Without a number of checkpoints no share of the work can be told.
        under_way("tracking", steps=arrivals.count or math.inf, show=progress) as work,
    ):
        places: list[Place] = []
        try:
            for snapshot, side in itertools.chain([(first_snapshot, first)], sides):
                place = tracker.place(snapshot, side, store)
                row = tracker.row(place, places)
                stored = store.finished.get(snapshot.step)
                if stored is None:
                    store.write(snapshot.step, row, place.numbers.arrays)
                elif row["pairs"] != stored["pairs"]:  # it was measured without some of the others
                    store.amend(snapshot.step, row)
                places.append(place)
                if arrivals.count is None:
                    work.text = f"tracking, step {place.step}"
                work.advance()
        except KeyboardInterrupt:
            # The way to end what is followed; what was under way is not stored.
            if arrivals.root is None or not places:
                raise
        places.sort(key=lambda place: place.step)
        rows = [{**store.finished[place.step], "step": place.step} for place in places]
    eigenvalues = np.stack([place.numbers.eigenvalues for place in places])
    outputs = np.stack([place.numbers.outputs for place in places])
    reader = None if out is None else RunReader(require_run(out))
    return Track.of(record, rows, eigenvalues, outputs, reader)


class _Unstored:
    """Keeps numbers for this call alone; arrays stay with their places."""

    def __init__(self) -> None:
        self.finished: dict[int, dict[str, Any]] = {}

    def write(self, step: int, row: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Keep the numbers."""
        self.finished[step] = dict(row)

    def amend(self, step: int, row: Mapping[str, Any]) -> None:
        """Keep other numbers."""
        self.finished[step] = dict(row)

    def read(self, step: int) -> dict[str, np.ndarray]:
        """Nothing is finished before it is measured."""
        raise KeyError(step)

    def __enter__(self) -> "_Unstored":
        return self

    def __exit__(self, *exception: object) -> None:
        """Nothing is held open."""


# Where finished checkpoints are.
Store: TypeAlias = RunWriter | _Unstored


def _store(out: str | os.PathLike[str] | None, record: Mapping[str, Any]) -> Store:
    return _Unstored() if out is None else RunWriter.open(out, record)


@dataclasses.dataclass(frozen=True, eq=False)
class _Tracker:
    """What all checkpoints of a run have in common.

    Attributes:
        model: The function of all of them.
        pairs: Measures two of them.
        first: The first checkpoint, which the others have to be like.
        following: Makes arguments of what the model holds fixed.
    """

    model: TrackedModel
    pairs: Pairs
    first: Side
    following: Following

    @staticmethod
    def of(first: Side, settings: Settings, outputs_of_one: tuple[int, ...]) -> "_Tracker":
        """Make the function of the first checkpoint that of all."""
        functional = first.functional
        _require_plain_statistics(functional)
        following = Following(functional)
        f = functional.apply
        if following.followed(functional.fixed):
            output = first.output or None
            f = Apply(following.function, functional.library, functional.mode, output)
        labels = read_labels(settings.probes.of_kernel, settings, outputs_of_one)
        held_out = read_held_out(settings, outputs_of_one)
        if settings.reduction == "auto":
            chosen = automatic(settings.n_examples, math.prod(outputs_of_one))
            settings = dataclasses.replace(settings, reduction=chosen)
        of_first = functools.partial(f, **_arguments(following, functional))
        roundoff = roundoff_of(of_first, functional.params, settings.x)
        model = TrackedModel(f, settings, labels, held_out, outputs_of_one, roundoff)
        return _Tracker(model, Pairs(model), first, following)

    def place(self, snapshot: Snapshot, side: Side, store: Store) -> Place:
        """A checkpoint with what is measured of it by itself, now or before."""
        lines = differences(self.first.functional.params, side.functional.params)
        lines += differences(self._held(self.first), self._held(side))
        if lines:
            raise structure_error([f"{side.label}: {line}" for line in lines])
        # On the host: the parameters of a whole run are many.
        params = jax.tree.map(np.asarray, side.functional.params)
        held = self._held(side)
        kwargs = _arguments(self.following, side.functional)
        sha256 = fingerprint({"params": params, "held": held})
        stored = store.finished.get(snapshot.step)
        arrays = None if stored is None else store.read(snapshot.step)
        if stored is None or arrays is None:  # new, or damaged
            self._require_one_function(side, params, kwargs)
            state = self._optimizer_state(side)
            numbers = measure_checkpoint(self.model, params, kwargs, state)
            numbers.row["params_sha256"] = sha256
            numbers.row["convention"] = numbers.kernel.convention.to_dict()
            return Place(snapshot.step, params, kwargs, numbers)
        if stored["params_sha256"] != sha256:
            raise _other_run(snapshot, "other parameters at the same step")
        numbers = _stored_numbers(stored, arrays)
        # Neither a model nor a loss of the user can be told by its name.
        if not self._are_equal(self.model.outputs(params, kwargs, self.model.x), numbers.outputs):
            raise _other_run(snapshot, "another model, with other outputs for the same parameters")
        if not self._has_loss_of(numbers):
            raise _other_run(snapshot, "another loss, with another value at the same outputs")
        if not self._has_optimizer_of(numbers, side, params, kwargs):
            raise _other_run(snapshot, "another optimizer, with another update at the same state")
        return Place(snapshot.step, params, kwargs, numbers)

    def _require_one_function(
        self, side: Side, params: PyTree, kwargs: Mapping[str, PyTree]
    ) -> None:
        """Refuse a model whose function is not that of the first one."""
        if side.shares_model or side.functional.apply is self.first.functional.apply:
            return
        returned = leaves_by_path(side.functional(side.functional.params, self.model.x))
        own = np.asarray(returned[self.first.output])
        if not self._are_equal(own, self.model.outputs(params, kwargs, self.model.x)):
            raise errors.InvalidInputError(
                expected="models of one function",
                got=f"other outputs of the model of {side.label} than the function of "
                f"{self.first.label} has at its parameters",
                do="Compare them by twos: compare(a, b).",
            )

    def _are_equal(self, a: np.ndarray, b: np.ndarray) -> bool:
        """Whether two outputs are the same up to rounding, of another program or device, too."""
        tolerance = max(SAME, SAME_IN_ROUNDOFF * self.model.roundoff) * np.abs(b).max(initial=0.0)
        return bool(np.abs(np.asarray(a, np.float64) - b).max(initial=0.0) <= tolerance)

    def _has_loss_of(self, numbers: CheckpointNumbers) -> bool:
        """Whether the loss of stored outputs is the one that is stored with them."""
        model = self.model
        if model.labels is None or model.settings.loss is None:
            return True
        loss = fit_outputs(numbers.outputs, model.labels, model.settings.loss).loss
        stored = numbers.row["loss"]
        return loss is None or bool(np.isclose(loss, stored, rtol=1e-5, equal_nan=True))

    def _optimizer_state(self, side: Side) -> OptimizerState | None:
        """The state of a checkpoint's optimizer; None where there is none, or no optimizer."""
        optimizers = self.model.settings.optimizers
        return None if optimizers is None else state_of(side, optimizers[0])

    def _has_optimizer_of(
        self, numbers: CheckpointNumbers, side: Side, params: PyTree, kwargs: Mapping[str, PyTree]
    ) -> bool:
        """Whether the next update is of the size that is stored."""
        margins, state = self.model.optimizer_margins, self._optimizer_state(side)
        if margins is None or state is None:
            return True
        step = margins.next_step(params, kwargs, numbers.outputs.shape, state)
        stored = numbers.row["update_norm"]
        tolerance = max(SAME, SAME_IN_ROUNDOFF * self.model.roundoff)
        return bool(np.isclose(step.update_norm, stored, rtol=tolerance, equal_nan=True))

    def row(self, place: Place, before: list[Place]) -> dict[str, Any]:
        """All numbers of a checkpoint: by itself, and beside each one before it."""
        row = dict(place.numbers.row)
        pairs = {name: list(values) for name, values in row.get("pairs", {"step": []}).items()}
        missing = [earlier for earlier in before if earlier.step not in pairs["step"]]
        numbers = {"step": [earlier.step for earlier in missing]}
        for name, values in (numbers | self.pairs.between(missing, place)).items():
            pairs.setdefault(name, []).extend(values)
        return row | {"pairs": pairs}

    def _held(self, side: Side) -> dict[str, PyTree]:
        """What a checkpoint holds beside the parameters, as far as outputs depend on it."""
        return self.following.followed(side.functional.fixed)


def _read_all(arrivals: Arrivals, template: Template) -> Iterator[tuple[Snapshot, Side]]:
    """Each checkpoint as it comes; one that was removed before it could be read is left out."""
    is_first = True
    for snapshot in arrivals.snapshots:
        try:
            side = _read(snapshot, template)
        except errors.CheckpointError:
            if arrivals.is_gone(snapshot):
                continue
            raise
        if is_first and side.shares_model:
            # A module is asked only once which collections it reads.
            functional = side.functional
            template = dataclasses.replace(template, model=functional, options=functional)
        is_first = False
        yield snapshot, side


def _require_first(first: tuple[Snapshot, Side] | None, run: RunSource) -> tuple[Snapshot, Side]:
    """The first checkpoint; refused where none has come."""
    if first is None:
        raise errors.CheckpointError(
            expected=f"a finished checkpoint in {os.fspath(run)!r}",
            got="none until the end of patience=, or of follow=",
            do="Wait longer, or check that training saves there.",
        )
    return first


def _read(snapshot: Snapshot, template: Template) -> Side:
    label = f"step {snapshot.step}"
    try:
        return read_side(snapshot.source, template, name=label, label=label)
    except errors.StructureError as error:
        raise errors.StructureError(f"{error} It is the checkpoint of {label}.") from error


def _require_optimizer_state(
    first: Side, last: Snapshot | None, template: Template, settings: Settings
) -> None:
    """Refuse a run in which neither end has the state of an optimizer, where one is given.

    Of checkpoints that are still to come, the first one decides.
    """
    if settings.optimizers is None:
        return
    [optimizer, _] = settings.optimizers
    if state_of(first, optimizer) is None:
        end = first if last is None else _read(last, template)
        require_some_state((first, end), (None, state_of(end, optimizer)))


def _arguments(following: Following, functional: Functional) -> dict[str, PyTree]:
    """What the function of a run takes beside parameters and examples."""
    held = following.followed(functional.fixed)
    return {"held": following.as_arguments(held)} if held else {}


def _require_plain_statistics(functional: Functional) -> None:
    """Refuse statistics of a batch, which are computed where a Functional is made."""
    if functional.mode == "train, fixed statistics":
        raise errors.InvalidInputError(
            expected='a model in mode="eval", with the running statistics of each checkpoint, or '
            'in mode="train"',
            got="statistics of a batch at the parameters of the first checkpoint",
            do="Leave out statistics=.",
        )


def _other_run(snapshot: Snapshot, got: str) -> errors.InvalidInputError:
    """What is stored is of something else."""
    return errors.InvalidInputError(
        expected=f"the checkpoint of step {snapshot.step} as it was measured before",
        got=got,
        do="Choose another folder out=, or remove this one.",
    )


def _stored_numbers(row: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> CheckpointNumbers:
    kernel = Kernel(arrays["kernel"], Convention(**row["convention"]))
    return CheckpointNumbers(
        dict(row), kernel, arrays["eigenvalues"], arrays["modes"], arrays["outputs"]
    )


def _record(first: Side, settings: Settings, shape: tuple[int, ...]) -> dict[str, Any]:
    """What the numbers of a run mean: they go on only where all of this is the same."""
    functional = first.functional
    leaves = leaves_by_path(functional.params)
    is_full = settings.reduction == "full"
    positions = [f"position_{axis}" for axis in range(len(shape) - 2)]
    dims = {
        **_DIMS,
        "kernel": _DIMS_OF_FULL_KERNEL if is_full else _DIMS_OF_KERNEL,
        "outputs": ["example", *positions, "output"][: len(shape)],
    }
    content = {
        "format": "ntkdiag run 1",
        "source": "track",
        "model": {"library": functional.library, "mode": functional.mode},
        "parameters": {path: describe(leaf) for path, leaf in leaves.items()},
        "outputs": list(shape[1:]),
        "reduction": settings.reduction,
        "loss": None if settings.loss is None else settings.loss.describe(shape),
        "descent": None if settings.descent is None else repr(settings.descent),
        **_optimizer_entry(functional, settings),
        "probes": [_described(probe) for probe in _probes(settings)],
        "dims": dims,
        "coordinates": {"leaf": leaf_names(functional.params)},
        "versions": installed_versions(),
    }
    return display.plain(content)


def _optimizer_entry(functional: Functional, settings: Settings) -> dict[str, str]:
    """The optimizer in words; no entry without, as runs that were begun before have none."""
    if settings.optimizers is None:
        return {}
    return {"optimizer": optimizer_in_words(settings.optimizers[0], functional.params)}


def _probes(settings: Settings) -> Iterable[ProbeBatch]:
    probes = (settings.probes.train, settings.probes.held_out)
    return [probe for probe in probes if probe is not None]


def _described(probe: ProbeBatch) -> dict[str, Any]:
    return {
        "name": probe.name,
        "examples": probe.n_examples,
        "x": probe.digest,
        "y": None if probe.y is None else digest(probe.y),
    }
