"""What measures the checkpoints of one call, and what lies between them, for `compare` and `track`.

1. The function of the first checkpoint, with running statistics as arguments, is that of all, and
   compiled once. A model that brings another function is refused.
2. A checkpoint is measured by itself, or read where it is stored; a stored one has to be the one
   that comes: of the same parameters, outputs and loss.
3. Two of them are measured together: drift, predictions by linearized networks, and what other
   statistics did by themselves.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.analysis import drift
from ntkdiag.comparison.change import Start, change_of_fixed_arrays, numbers_of_drift, start_of
from ntkdiag.comparison.restore import TWO_MODELS, are_equal, structure_error
from ntkdiag.comparison.sides import Side, state_of, with_one_output
from ntkdiag.comparison.store import convention_of
from ntkdiag.engine import plan
from ntkdiag.kernel.kernel import Kernel
from ntkdiag.measuring.fit import fit_outputs
from ntkdiag.measuring.measure import Measured, fingerprint, measure
from ntkdiag.measuring.pairs import Pairs
from ntkdiag.measuring.probed_function import ProbedFunction
from ntkdiag.measuring.settings import Settings
from ntkdiag.measuring.training_margin import TrainingMargins
from ntkdiag.models.functional import Apply
from ntkdiag.models.in_training import Following
from ntkdiag.models.paths import differences, leaves_by_path, repack
from ntkdiag.optimizer.saved_state import OptimizerState
from ntkdiag.progress import announce

# Outputs of one function, by two programs or on two devices, differ by less than this share of the
# largest, or so many times the roundoff of the model where that is coarse.
SAME = 5e-3
SAME_IN_ROUNDOFF = 8.0
WORTH_SAYING = 10.0  # seconds of kernels, from which on a forecast is printed


@dataclasses.dataclass(frozen=True, eq=False)
class Measurer:
    """What all checkpoints of one call have in common, and what measures them."""

    first: Side  # the first checkpoint, which the others have to be like
    function: ProbedFunction  # the function of all of them
    pairs: Pairs  # measures two of them
    following: Following  # makes arguments of what the model holds fixed
    detailed: bool  # whether everything is measured, as of the sides of a comparison

    @staticmethod
    def of(first: Side, settings: Settings, *, detailed: bool) -> "Measurer":
        """Make the function of the first checkpoint that of all; refused unless it fits."""
        # Shapes are known without computing the outputs: refuse here what does not fit.
        first, shape = with_one_output(first, settings)
        functional = first.functional
        following = Following(functional)
        f = functional.apply
        if following.followed(functional.fixed):
            f = Apply(following.function, functional.library, functional.mode)
        kwargs = _arguments(following, first)
        function = ProbedFunction.of(f, functional.params, kwargs, settings, shape[1:])
        return Measurer(first, function, Pairs(function), following, detailed)

    @property
    def settings(self) -> Settings:
        """What is measured, with "auto" decided."""
        return self.function.settings

    def announce(self, work: str, n_checkpoints: int, show: bool | None) -> None:
        """Say what the kernels of so many checkpoints take by the plan of one, where it is long."""
        if show is False or n_checkpoints == 0:
            return
        settings, params = self.settings, self.first.functional.params
        f = functools.partial(self.function.f, **_arguments(self.following, self.first))
        planned = plan(f, params, settings.x, reduction=settings.reduction, memory=settings.memory)
        seconds = n_checkpoints * planned.seconds
        if seconds >= WORTH_SAYING:
            announce(f"{work}: about {seconds / 60.0:.1f} min for the kernels alone", show)

    def require_like_first(self, side: Side) -> None:
        """Refuse a checkpoint whose parameters or fixed arrays are others in structure."""
        lines = differences(self.first.functional.params, side.functional.params)
        lines += differences(self._held(self.first), self._held(side))
        # Those of the model stand in for what no checkpoint holds; else two would be mixed.
        lacking, of_first = side.lacking, self.first.lacking
        lines += [f"{path}: missing" for path in lacking if path not in of_first]
        lines += [f"{path}: unexpected" for path in of_first if path not in lacking]
        if lines:
            are_two_models = not self.first.shares_model and not side.shares_model
            lines = [f"{side.label}: {line}" for line in lines]
            raise structure_error(lines, TWO_MODELS if are_two_models else "")

    def measure(self, side: Side) -> Measured:
        """A checkpoint with all that is measured of it by itself."""
        params, kwargs = self._point(side)
        self._require_one_function(side, params, kwargs)
        in_training = None
        if self._margins is not None:
            in_training = self._margins.begin(side.functional, self._optimizer_state(side))
        return measure(
            self.function,
            params,
            kwargs,
            step=side.step or 0,
            in_training=in_training,
            detailed=self.detailed,
        )

    def stored(
        self, side: Side, row: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> Measured:
        """A checkpoint as it was measured before; refused unless it is the one that comes."""
        params, kwargs = self._point(side)
        sha256 = fingerprint({"params": params, **kwargs})
        if row.get("params_sha256") != sha256:
            raise _other_run(side, "other parameters at the same step")
        outputs = self.function.outputs(params, kwargs, self.settings.x)
        measured = Measured(
            step=side.step or 0,
            params=params,
            kwargs=kwargs,
            params_sha256=sha256,
            kernel=Kernel(arrays["kernel"], convention_of(row)),
            eigenvalues=arrays["eigenvalues"],
            outputs=arrays["outputs"],
            numbers=row,
            arrays={"modes": arrays["modes"]},
        )
        # A name does not identify a model or a loss of the user.
        if not self._are_equal(outputs, measured.outputs):
            raise _other_run(side, "another model, with other outputs for the same parameters")
        if not self._has_loss_of(measured):
            raise _other_run(side, "another loss, with another value at the same outputs")
        if not self._has_optimizer_of(measured, side):
            raise _other_run(side, "another optimizer, with another update at the same state")
        return measured

    def row(
        self, now: Measured, before: Sequence[Measured], stored: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """All numbers of a checkpoint: by itself, and beside each one before it."""
        row = dict(now.row if stored is None else stored)
        pairs = {name: list(values) for name, values in row.get("pairs", {"step": []}).items()}
        missing = [earlier for earlier in before if earlier.step not in pairs["step"]]
        numbers = {"step": [earlier.step for earlier in missing]}
        for name, values in (numbers | self.pairs.between(missing, now)).items():
            pairs.setdefault(name, []).extend(values)
        row |= {"pairs": pairs}
        if before:
            row = self.with_start(row, min(before, key=lambda earlier: earlier.step), now)
        return row

    def with_start(self, row: dict[str, Any], first: Measured, now: Measured) -> dict[str, Any]:
        """The row with what the parameters did since the first checkpoint, as "from_first".

        As it is where it has that already, or both have the same fixed arrays.
        """
        if row.get("from_first", {}).get("step") == first.step or first.step > now.step:
            return row
        start = self.start(first, now)
        if start is None:
            return row
        change = change_of_fixed_arrays(start, first, now)
        del change["fixed_arrays_drift"]
        moved = numbers_of_drift(drift(start.kernel, now.kernel))
        del moved["drift_distance"]  # that of the pair stands in the matrix
        return {**row, "from_first": {"step": first.step} | moved | start.numbers | change}

    def start(self, first: Measured, now: Measured) -> Start | None:
        """The first parameters with the fixed arrays of a checkpoint; None where none differ."""
        if not self.differing(first, now):
            return None
        return start_of(self.function, first.params, now.kwargs)

    def differing(self, first: Measured, now: Measured) -> tuple[str, ...]:
        """Paths of the fixed arrays that are not the same at two checkpoints."""
        before, after = (of.kwargs.get("held", {}) for of in (first, now))
        return tuple(path for path in after if not are_equal(before[path], after[path]))

    def _point(self, side: Side) -> tuple[PyTree, dict[str, PyTree]]:
        params = repack(side.functional.params, self.first.functional.params)
        if not self.detailed:  # on the host: those of a whole run are many
            params = jax.tree.map(np.asarray, params)
        return params, _arguments(self.following, side)

    def _require_one_function(
        self, side: Side, params: PyTree, kwargs: Mapping[str, PyTree]
    ) -> None:
        """Refuse a model whose function is not that of the first one."""
        if side.shares_model or side.functional.apply is self.first.functional.apply:
            return
        x = self.settings.x
        returned = leaves_by_path(side.functional(side.functional.params, x))
        outputs = np.asarray(returned[self.first.output])
        if not self._are_equal(outputs, self.function.outputs(params, kwargs, x)):
            raise errors.InvalidInputError(
                expected="models of one function",
                got=f"a model of {side.label} whose outputs differ from those of the function of "
                f"{self.first.label} at the same parameters",
                do=TWO_MODELS,
            )

    def _are_equal(self, a: np.ndarray, b: np.ndarray) -> bool:
        """Whether two outputs are the same up to rounding, of another program or device, too."""
        tolerance = self._tolerance * np.abs(b).max(initial=0.0)
        return bool(np.abs(np.asarray(a, np.float64) - b).max(initial=0.0) <= tolerance)

    @property
    def _tolerance(self) -> float:
        return max(SAME, SAME_IN_ROUNDOFF * self.function.roundoff)

    def _has_loss_of(self, measured: Measured) -> bool:
        """Whether the loss of stored outputs is the one that is stored with them."""
        labels, loss = self.function.labels, self.settings.loss
        if labels is None or loss is None:
            return True
        found = fit_outputs(measured.outputs, labels, loss).get("loss")
        stored = measured.numbers.get("loss", math.nan)
        return found is None or bool(np.isclose(found, stored, rtol=1e-5, equal_nan=True))

    @functools.cached_property
    def _margins(self) -> TrainingMargins | None:
        """Margins of the network as it is trained; None where the kernel tells them."""
        outputs_of_one = self.function.outputs_of_one
        return TrainingMargins.of(self.first.functional, self.settings, outputs_of_one)

    def _optimizer_state(self, side: Side) -> OptimizerState | None:
        optimizer = self.settings.optimizer
        return None if optimizer is None else state_of(side, optimizer)

    def _has_optimizer_of(self, measured: Measured, side: Side) -> bool:
        """Whether the next update is of the size that is stored."""
        state = self._optimizer_state(side)
        if self._margins is None or state is None:
            return True
        norm = self._margins.update_norm(side.functional, state)
        stored = measured.numbers.get("update_norm", math.nan)
        return bool(np.isclose(norm, stored, rtol=self._tolerance, equal_nan=True))

    def _held(self, side: Side) -> dict[str, PyTree]:
        """What a checkpoint holds beside the parameters, as far as outputs depend on it."""
        return self.following.followed(side.functional.fixed)


def _arguments(following: Following, side: Side) -> dict[str, PyTree]:
    """What the function of all checkpoints takes beside parameters and examples."""
    held = following.followed(side.functional.fixed)
    return {"held": following.as_arguments(held)} if held else {}


def _other_run(side: Side, got: str) -> errors.InvalidInputError:
    """What is stored is of something else."""
    return errors.InvalidInputError(
        expected=f"the checkpoint of {side.label} as it was measured before",
        got=got,
        do="Choose another folder out=, or remove this one.",
    )
