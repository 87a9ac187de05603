"""One checkpoint of a run after the other: what is stored is read, what is not is measured.

The function of the first checkpoint, with running statistics as arguments, is that of all. A stored
checkpoint has to be the one that comes: of the same parameters, outputs and loss.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.analysis import drift
from ntkdiag.comparison.fixed_arrays_change import (
    change_of_fixed_arrays,
    numbers_of_drift,
    start_of,
)
from ntkdiag.comparison.load import (
    Side,
    state_of,
)
from ntkdiag.comparison.restore import same_leaves, structure_error
from ntkdiag.comparison.snapshots import Snapshot
from ntkdiag.comparison.stored_checkpoint import convention_of, require_row, shapes_of_arrays
from ntkdiag.comparison.track_store import Store
from ntkdiag.kernel.kernel import Kernel
from ntkdiag.measuring.checkpoint_pairs import Pairs, Place
from ntkdiag.measuring.forecast import announce_forecast
from ntkdiag.measuring.kernel_regression import fit_outputs
from ntkdiag.measuring.measure import fingerprint, measure
from ntkdiag.measuring.probed_function import ProbedFunction
from ntkdiag.measuring.settings import Settings
from ntkdiag.measuring.stated_margin import PendingStability
from ntkdiag.measuring.training_margin import TrainingMargins
from ntkdiag.models.functional import Apply, Functional
from ntkdiag.models.in_training import Following
from ntkdiag.models.paths import differences, leaves_by_path
from ntkdiag.optimizer.saved_state import OptimizerState

# Outputs of one function, by two programs or on two devices, differ by less than this share of the
# largest, or so many times the roundoff of the model where that is coarse.
SAME = 5e-3
SAME_IN_ROUNDOFF = 8.0


@dataclasses.dataclass(frozen=True, eq=False)
class Tracker:
    """What all checkpoints of a run have in common."""

    model: ProbedFunction  # the function of all of them
    pairs: Pairs  # measures two of them
    first: Side  # the first checkpoint, which the others have to be like
    following: Following  # makes arguments of what the model holds fixed

    @staticmethod
    def of(first: Side, settings: Settings, outputs_of_one: tuple[int, ...]) -> "Tracker":
        """Make the function of the first checkpoint that of all."""
        functional = first.functional
        following = Following(functional)
        f = functional.apply
        if following.followed(functional.fixed):
            f = Apply(following.function, functional.library, functional.mode)
        kwargs = _arguments(following, functional)
        model = ProbedFunction.of(f, functional.params, kwargs, settings, outputs_of_one)
        return Tracker(model, Pairs(model), first, following)

    def announce(self, n_new: int, show: bool | None) -> None:
        """Say how long so many new checkpoints take, where that is long."""
        first = self.first.functional
        announce_forecast(
            self.model,
            first.params,
            _arguments(self.following, first),
            work=f"tracking {_counted(n_new)}",
            n_checkpoints=n_new,
            show=show,
        )

    def place(self, snapshot: Snapshot, side: Side, store: Store) -> Place:
        """A checkpoint with what is measured of it by itself, now or before."""
        lines = differences(self.first.functional.params, side.functional.params)
        lines += differences(self._held(self.first), self._held(side))
        # Those of the model stand in for what no checkpoint holds; else steps would be mixed.
        lines += [f"{path}: missing" for path in side.lacking if path not in self.first.lacking]
        lines += [f"{path}: unexpected" for path in self.first.lacking if path not in side.lacking]
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
            measured = measure(
                self.model,
                params,
                kwargs,
                side,
                sha256=sha256,
                in_training=self._in_training(side),
                whole=False,
            )
            of_one = self.model.outputs_of_one
            return Place.of(snapshot.step, params, kwargs, measured, of_one)
        if stored.get("params_sha256") != sha256:
            raise _other_run(snapshot, "other parameters at the same step")
        outputs = self.model.outputs(params, kwargs, self.model.x)
        is_full = self.model.settings.reduction == "full"
        shapes = shapes_of_arrays(outputs.shape, is_full=is_full)
        _require_stored(snapshot, stored, arrays, shapes)
        place = Place(
            snapshot.step,
            params,
            kwargs,
            dict(stored),
            kernel=Kernel(arrays["kernel"], convention_of(stored, snapshot.step)),
            eigenvalues=arrays["eigenvalues"],
            modes=arrays["modes"],
            outputs=arrays["outputs"],
        )
        # Neither a model nor a loss of the user can be told by its name.
        if not self._are_equal(outputs, place.outputs):
            raise _other_run(snapshot, "another model, with other outputs for the same parameters")
        if not self._has_loss_of(place):
            raise _other_run(snapshot, "another loss, with another value at the same outputs")
        if not self._has_optimizer_of(place, side):
            raise _other_run(snapshot, "another optimizer, with another update at the same state")
        return place

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

    def _has_loss_of(self, place: Place) -> bool:
        """Whether the loss of stored outputs is the one that is stored with them."""
        model = self.model
        if model.labels is None or model.settings.loss is None:
            return True
        loss = fit_outputs(place.outputs, model.labels, model.settings.loss).get("loss")
        stored = place.row.get("loss", math.nan)
        return loss is None or bool(np.isclose(loss, stored, rtol=1e-5, equal_nan=True))

    @functools.cached_property
    def _margins(self) -> TrainingMargins | None:
        """Margins of the network as it is trained; None where the kernel tells them."""
        settings = self.model.settings
        return TrainingMargins.of(
            self.first.functional, settings, settings.optimizer, self.model.outputs_of_one
        )

    def _optimizer_state(self, side: Side) -> OptimizerState | None:
        """The state of a checkpoint's optimizer; None where there is none, or no optimizer."""
        optimizer = self.model.settings.optimizer
        return None if optimizer is None else state_of(side, optimizer)

    def _in_training(self, side: Side) -> PendingStability | None:
        """The stability of a checkpoint's next step; None where its kernel tells it."""
        if self._margins is None:
            return None
        return self._margins.begin(side.functional, self._optimizer_state(side))

    def _has_optimizer_of(self, place: Place, side: Side) -> bool:
        """Whether the next update is of the size that is stored."""
        state = self._optimizer_state(side)
        if self._margins is None or state is None:
            return True
        norm = self._margins.update_norm(side.functional, state)
        stored = place.row.get("update_norm", math.nan)
        tolerance = max(SAME, SAME_IN_ROUNDOFF * self.model.roundoff)
        return bool(np.isclose(norm, stored, rtol=tolerance, equal_nan=True))

    def row(self, place: Place, before: list[Place]) -> dict[str, Any]:
        """All numbers of a checkpoint: by itself, and beside each one before it."""
        row = dict(place.row)
        pairs = {name: list(values) for name, values in row.get("pairs", {"step": []}).items()}
        missing = [earlier for earlier in before if earlier.step not in pairs["step"]]
        numbers = {"step": [earlier.step for earlier in missing]}
        for name, values in (numbers | self.pairs.between(missing, place)).items():
            pairs.setdefault(name, []).extend(values)
        row |= {"pairs": pairs}
        if before:
            row |= self.from_first(min(before, key=lambda earlier: earlier.step), row, place)
        return row

    def from_first(self, first: Place, row: Mapping[str, Any], place: Place) -> dict[str, Any]:
        """What the parameters did since the first checkpoint, with the fixed arrays of this one.

        An entry "from_first" of a row; nothing where both have the same fixed arrays, or the row
        has it already.
        """
        known = row.get("from_first", {}).get("step") == first.step
        if known or first.step >= place.step:
            return {}
        held, of_first = (at.kwargs.get("held", {}) for at in (place, first))
        if same_leaves(dict(held), dict(of_first)):
            return {}
        start = start_of(self.model, first.params, place.kwargs)
        moved = drift(start.kernel, place.kernel)
        n = len(place.outputs)
        before, after = (at.outputs.reshape(n, -1) for at in (first, place))
        change = change_of_fixed_arrays(start, first.kernel, before, after)
        del change["fixed_arrays_drift"]
        numbers = start.numbers | change
        motion = numbers_of_drift(moved)
        del motion["drift_distance"]  # that of the pair stands in the matrix
        return {"from_first": {"step": first.step} | motion | numbers}

    def _held(self, side: Side) -> dict[str, PyTree]:
        """What a checkpoint holds beside the parameters, as far as outputs depend on it."""
        return self.following.followed(side.functional.fixed)


def _counted(n: int) -> str:
    return "1 checkpoint" if n == 1 else f"{n} checkpoints"


def _arguments(following: Following, functional: Functional) -> dict[str, PyTree]:
    """What the function of a run takes beside parameters and examples."""
    held = following.followed(functional.fixed)
    return {"held": following.as_arguments(held)} if held else {}


def _other_run(snapshot: Snapshot, got: str) -> errors.InvalidInputError:
    """What is stored is of something else."""
    return errors.InvalidInputError(
        expected=f"the checkpoint of step {snapshot.step} as it was measured before",
        got=got,
        do="Choose another folder out=, or remove this one.",
    )


def _require_stored(
    snapshot: Snapshot,
    row: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    shapes: Mapping[str, tuple[int, ...]],
) -> None:
    """Refuse what was stored of a checkpoint of another model, or is damaged."""
    for key, shape in shapes.items():
        array = arrays.get(key)
        if array is None or array.dtype.kind != "f" or array.shape != shape:
            raise _other_run(snapshot, f"a step without {key} of such a model")
    require_row(row, f"step {snapshot.step}")
