"""What is measured of one checkpoint of a run by itself.

One kernel, with the share that every leaf of the parameters has in its trace; its spectrum and
leading modes; outputs, loss and accuracy; alignment; stability.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, PyTree

from ntkdiag._jax import compiler_options
from ntkdiag.analysis.alignment import Alignment
from ntkdiag.analysis.stability import critical_rate_and_margin
from ntkdiag.comparison.held_out import HeldOutProbe
from ntkdiag.comparison.label_fit import (
    ProbeLabels,
    averaged_over_outputs,
    fit_alignment,
    fit_outputs,
)
from ntkdiag.comparison.leaf_traces import LeafTraces, shares_of_leaves
from ntkdiag.comparison.modes_overlap import N_MODES
from ntkdiag.comparison.optimizer_margin import OptimizerMargins, Stability
from ntkdiag.comparison.settings import Settings
from ntkdiag.descent import Descent
from ntkdiag.engine.ntk import ntk
from ntkdiag.kernel.decomposition import spectrum
from ntkdiag.kernel.kernel import Kernel
from ntkdiag.kernel.spectrum import Spectrum
from ntkdiag.models.paths import leaves_by_path
from ntkdiag.optimizer.saved_state import OptimizerState
from ntkdiag.scalars import nan_if_unknown


@dataclasses.dataclass(frozen=True, eq=False)
class TrackedModel:
    """The function that all checkpoints of a run share, with probes and settings.

    Attributes:
        f: `f(params, x, **kwargs)`, one object for the whole run: it is compiled once.
        settings: Probes, reduction, loss, update rule.
        labels: Labels of the probe of the kernels; None without.
        held_out: Held-out examples beside those of `train`; None where one probe is all there is.
        outputs_of_one: Shape of the outputs of one example.
        roundoff: Unit roundoff of the coarsest dtype that f computes in.
    """

    f: Callable[..., PyTree]
    settings: Settings
    labels: ProbeLabels | None
    held_out: HeldOutProbe | None
    outputs_of_one: tuple[int, ...]
    roundoff: float

    @property
    def x(self) -> PyTree:
        """The probe of the kernels."""
        return self.settings.x

    def outputs(
        self, params: PyTree, kwargs: Mapping[str, PyTree], x: PyTree
    ) -> Float[np.ndarray, "n *o"]:
        """Outputs in float64."""
        return np.asarray(self._evaluate(params, x, **kwargs), np.float64)

    @functools.cached_property
    def leaf_traces(self) -> LeafTraces:
        """Traces of the kernels of the leaves."""
        return LeafTraces(self.f, math.prod(self.outputs_of_one), self.settings.memory)

    @functools.cached_property
    def _evaluate(self) -> Callable[..., Array]:
        # XLA on CPU compiles some float32 reductions wrongly by default: these options are checked.
        return jax.jit(self.f, compiler_options=compiler_options(reduces=True))

    @functools.cached_property
    def optimizer_margins(self) -> OptimizerMargins | None:
        """Margins by the optimizer's state; None where no optimizer is given."""
        if self.settings.optimizers is None:
            return None
        return OptimizerMargins(self.f, self.settings, self.settings.optimizers[0])


@dataclasses.dataclass(frozen=True, eq=False)
class CheckpointNumbers:
    """One checkpoint by itself.

    Attributes:
        row: Numbers by name, as JSON has them.
        kernel: The kernel on the probe.
        eigenvalues: `[k]` of the kernel, descending.
        modes: `[k m]` its leading eigenvectors, in columns.
        outputs: `[n *o]` outputs on the probe.
    """

    row: dict[str, Any]
    kernel: Kernel
    eigenvalues: Float[np.ndarray, " k"]
    modes: Float[np.ndarray, "k m"]
    outputs: Float[np.ndarray, "n *o"]

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays by name, as they are stored."""
        return {
            "kernel": np.asarray(self.kernel.array),
            "eigenvalues": self.eigenvalues,
            "modes": self.modes,
            "outputs": self.outputs,
        }


def measure_checkpoint(
    model: TrackedModel,
    params: PyTree,
    kwargs: Mapping[str, PyTree],
    optimizer_state: OptimizerState | None = None,
) -> CheckpointNumbers:
    """Measure one checkpoint; its parameters, what else the function takes, the optimizer's state.

    Cost: one kernel, and its blocks of examples with themselves by leaf; one eigendecomposition
    (N C)^3, with another loss than the squared error a second one; one reduced kernel of the
    held-out examples.
    """
    settings = model.settings
    outputs = model.outputs(params, kwargs, model.x)
    kernel = ntk(
        model.f,
        params,
        model.x,
        reduction=settings.reduction,
        memory=settings.memory,
        **kwargs,
    )
    traces = model.leaf_traces(params, model.x, **kwargs)
    decomposed = spectrum(kernel, vectors=True)
    row: dict[str, Any] = {
        "trace": float(np.trace(np.asarray(kernel.matrix, np.float64))),
        "norm": float(np.linalg.norm(np.asarray(kernel.matrix, np.float64))),
        "rank": int(decomposed.rank),
        "noise_floor": float(decomposed.noise_floor),
        "spectrum_status": decomposed.status,
        "participation_ratio": float(decomposed.participation_ratio),
        "entropy_rank": float(decomposed.entropy_rank),
        "leaf_shares": shares_of_leaves(traces, params),
    }
    if model.labels is not None:
        fit = fit_outputs(outputs, model.labels, settings.loss)
        row |= {"loss": nan_if_unknown(fit.loss), "accuracy": nan_if_unknown(fit.accuracy)}
        trained_on = settings.probes.train is not None
        alignment = fit_alignment(kernel, model.labels.flat_targets, trained_on=trained_on)
        row |= _alignment_numbers(alignment)
    if model.optimizer_margins is None:
        row |= _stability(model, decomposed, outputs)
    else:
        found = model.optimizer_margins.at(params, kwargs, outputs, optimizer_state, model.roundoff)
        row |= stability_numbers(found)
    if model.held_out is not None:
        row |= _held_out_numbers(model, model.held_out, params, kwargs)
        row |= _alignment_gap(model, kernel, row["held_out_alignment_above"])
    vectors = np.asarray(decomposed.vectors)
    return CheckpointNumbers(
        row={name: _known(value) for name, value in row.items()},
        # On the host: there will be one for each checkpoint.
        kernel=dataclasses.replace(kernel, array=np.asarray(kernel.array), leaves=None),
        eigenvalues=np.asarray(decomposed.eigenvalues),
        modes=vectors[:, :N_MODES],
        outputs=outputs,
    )


def stability_numbers(stability: Stability) -> dict[str, Any]:
    """The stability of one optimizer's next step by the names that rows have for it."""
    return {
        "critical_learning_rate": stability.critical_learning_rate,
        "margin": stability.margin,
        "learning_rate": stability.learning_rate,
        "update_norm": stability.update_norm,
        "margin_status": stability.status,
    }


def leaf_names(params: PyTree) -> list[str]:
    """The leaves that shares are of."""
    return list(leaves_by_path(params))


def _stability(
    model: TrackedModel, decomposed: Spectrum, outputs: Float[np.ndarray, "n *o"]
) -> dict[str, float]:
    """Critical learning rate and margin of the full kernel of examples that are trained on."""
    settings = model.settings
    convention = decomposed.convention
    assert convention is not None  # that of a `Kernel`
    is_reduced = convention.reduction != "full" and convention.n_outputs > 1
    if settings.loss is None or settings.probes.train is None or is_reduced:
        return {}
    descent = settings.descent or Descent()
    rate, margin = critical_rate_and_margin(
        decomposed, descent, loss=settings.loss, outputs=outputs, y=settings.y
    )
    numbers = {"critical_learning_rate": float(rate)}
    if descent.learning_rate is not None:
        numbers["margin"] = float(margin)
    return numbers


def _held_out_numbers(
    model: TrackedModel, probe: HeldOutProbe, params: PyTree, kwargs: Mapping[str, PyTree]
) -> dict[str, float]:
    """Loss, accuracy and alignment of held-out examples, and what those of `train` have more."""
    settings = model.settings
    outputs = model.outputs(params, kwargs, probe.x)
    fit = fit_outputs(outputs, probe.labels, settings.loss)
    kernel = ntk(
        model.f, params, probe.x, reduction=probe.reduction, memory=settings.memory, **kwargs
    )
    alignment = fit_alignment(
        averaged_over_outputs(kernel), probe.labels.flat_targets, trained_on=False
    )
    numbers = {"loss": nan_if_unknown(fit.loss), "accuracy": nan_if_unknown(fit.accuracy)}
    numbers |= _alignment_numbers(alignment)
    return {f"held_out_{name}": value for name, value in numbers.items()}


def _alignment_gap(model: TrackedModel, kernel: Kernel, held_out: float) -> dict[str, float]:
    """What the alignment of examples trained on has more than that of held-out ones.

    Both of kernels averaged over outputs: alignments of two reductions do not compare.
    """
    if model.labels is None:
        return {}
    averaged = averaged_over_outputs(kernel)
    alignment = fit_alignment(averaged, model.labels.flat_targets, trained_on=True)
    return {"alignment_gap": float(alignment.above) - held_out}


def _alignment_numbers(alignment: Alignment) -> dict[str, float]:
    """An alignment beside its chance level."""
    return {
        "alignment": float(alignment.value),
        "alignment_chance": float(alignment.chance),
        "alignment_standard_deviation": float(alignment.standard_deviation),
        "alignment_above": float(alignment.above),
    }


def _known(value: Any) -> Any:
    """NaN for infinity, which JSON does not have either."""
    return math.nan if isinstance(value, float) and math.isinf(value) else value
