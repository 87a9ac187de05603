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
from ntkdiag.analysis.noise_scale import FEWEST_EXAMPLES, noise_scale
from ntkdiag.analysis.self_influence import self_influence
from ntkdiag.comparison.degeneracy import condition, traced_over_outputs
from ntkdiag.comparison.held_out import HeldOutProbe
from ntkdiag.comparison.kernel_regression import (
    ProbeLabels,
    fit_alignment,
    fit_outputs,
)
from ntkdiag.comparison.leaf_traces import LeafTraces, shares_of_leaves
from ntkdiag.comparison.modes_overlap import leading_modes
from ntkdiag.comparison.settings import Settings
from ntkdiag.comparison.stated_margin import Stability, stated_stability
from ntkdiag.engine.ntk import ntk
from ntkdiag.gradients import gradient_kernel
from ntkdiag.kernel.decomposition import spectrum
from ntkdiag.kernel.kernel import Kernel
from ntkdiag.kernel.reduction import reduction_of_leaves
from ntkdiag.matrix_free.operator import NTKOperator
from ntkdiag.models.paths import leaves_by_path
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
        reduction = reduction_of_leaves(self.settings.reduction)
        n_outputs = math.prod(self.outputs_of_one)
        return LeafTraces(self.f, n_outputs, self.settings.memory, reduction)

    @functools.cached_property
    def _evaluate(self) -> Callable[..., Array]:
        # XLA on CPU compiles some float32 reductions wrongly by default: these options are checked.
        return jax.jit(self.f, compiler_options=compiler_options(reduces=True))


@dataclasses.dataclass(frozen=True, eq=False)
class CheckpointNumbers:
    """One checkpoint by itself.

    Attributes:
        row: Numbers by name, as JSON has them.
        kernel: The kernel on the probe.
        eigenvalues: `[k]` of the kernel, descending.
        modes: `[k m]` leading eigenvectors of the centred kernel, in columns; zeros where there is
            none that is resolved.
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
    of_optimizer: Stability | None = None,
) -> CheckpointNumbers:
    """Measure one checkpoint; its parameters, what else the function takes, its optimizer.

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
    decomposed = spectrum(kernel)
    row: dict[str, Any] = {
        "trace": float(np.trace(np.asarray(kernel.matrix, np.float64))),
        "norm": float(np.linalg.norm(np.asarray(kernel.matrix, np.float64))),
        "rank": int(decomposed.rank),
        "noise_floor": float(decomposed.noise_floor),
        "spectrum_status": decomposed.status,
        "participation_ratio": float(decomposed.participation_ratio),
        "entropy_rank": float(decomposed.entropy_rank),
        "leaf_shares": shares_of_leaves(traces, params),
        **_condition_numbers(model, outputs, kernel),
    }
    if model.labels is not None:
        fit = fit_outputs(outputs, model.labels, settings.loss)
        row |= {"loss": nan_if_unknown(fit.loss), "accuracy": nan_if_unknown(fit.accuracy)}
        row |= _alignment_of_probe(model, kernel)
    stability = of_optimizer or stated_stability(
        decomposed,
        outputs,
        settings,
        functools.partial(NTKOperator, model.f, params, model.x, **kwargs),
    )
    if stability is not None:
        row |= stability_numbers(stability)
    if settings.gradient_kernel:
        row |= _gradient_numbers(model, params, kwargs)
    if model.held_out is not None:
        row |= _held_out_numbers(model, model.held_out, params, kwargs)
        above = "train_alignment_above", "held_out_alignment_above"
        if row.keys() >= set(above):
            row["alignment_gap"] = row[above[0]] - row[above[1]]
    return CheckpointNumbers(
        row={name: _known(value) for name, value in row.items()},
        # On the host: there will be one for each checkpoint.
        kernel=dataclasses.replace(kernel, array=np.asarray(kernel.array), leaves=None),
        eigenvalues=np.asarray(decomposed.eigenvalues),
        modes=leading_modes(kernel.array, float(decomposed.noise_floor)),
        outputs=outputs,
    )


def _condition_numbers(
    model: TrackedModel, outputs: Float[np.ndarray, "n *o"], kernel: Kernel
) -> dict[str, Any]:
    """Whether examples are still told apart, 1 for yes, and what that rests on."""
    found = condition(model.settings, outputs, kernel, traced_over_outputs(kernel), model.roundoff)
    return {
        "dead": int(found.dead),
        "equal_outputs": int(found.equal),
        "output_spread": found.spread,
        "constant_loss": nan_if_unknown(found.constant_loss),
    }


def stability_numbers(stability: Stability) -> dict[str, Any]:
    """The stability at a checkpoint by the names that rows have for it."""
    numbers: dict[str, Any] = {"critical_learning_rate": stability.critical_learning_rate}
    if stability.margin is not None:
        numbers["margin"] = stability.margin
        numbers["learning_rate"] = stability.learning_rate
    if stability.interval is not None:
        numbers["margin_lower"], numbers["margin_upper"] = stability.interval
    if stability.update_norm is not None:
        numbers["update_norm"] = stability.update_norm
        numbers["margin_status"] = stability.status
    return numbers


def _gradient_numbers(
    model: TrackedModel, params: PyTree, kwargs: Mapping[str, PyTree]
) -> dict[str, Any]:
    """The noise scale, and the squared gradient of every example."""
    settings = model.settings
    assert settings.loss is not None  # `with_gradient_kernel` refuses a run without
    G = gradient_kernel(
        model.f,
        params,
        settings.x,
        settings.y,
        loss=settings.loss,
        memory=settings.memory,
        **kwargs,
    )
    numbers: dict[str, Any] = {"self_influence": np.asarray(self_influence(G), float).tolist()}
    if G.n_examples >= FEWEST_EXAMPLES:
        noise = noise_scale(G)
        numbers["noise_scale"] = float(noise.value)
        numbers["noise_scale_lower"] = float(noise.lower)
        numbers["noise_scale_upper"] = float(noise.upper)
    return numbers


def leaf_names(params: PyTree) -> list[str]:
    """The leaves that shares are of."""
    return list(leaves_by_path(params))


def _held_out_numbers(
    model: TrackedModel, probe: HeldOutProbe, params: PyTree, kwargs: Mapping[str, PyTree]
) -> dict[str, float]:
    """Loss, accuracy and alignment of held-out examples, and what those of `train` have more."""
    settings = model.settings
    outputs = model.outputs(params, kwargs, probe.x)
    fit = fit_outputs(outputs, probe.labels, settings.loss)
    numbers = {"loss": nan_if_unknown(fit.loss), "accuracy": nan_if_unknown(fit.accuracy)}
    targets = probe.labels.flat_targets
    if targets is not None:
        kernel = ntk(
            model.f, params, probe.x, reduction=probe.reduction, memory=settings.memory, **kwargs
        )
        alignment = fit_alignment(kernel, targets, trained_on=False)
        numbers |= _alignment_numbers(alignment)
    return {f"held_out_{name}": value for name, value in numbers.items()}


def _alignment_of_probe(model: TrackedModel, kernel: Kernel) -> dict[str, float]:
    """The alignment of the probe that the kernel is of.

    Beside held-out examples it is that of `train`, of a kernel reduced as theirs is.
    """
    assert model.labels is not None
    targets = model.labels.flat_targets
    if targets is None:
        return {}
    if model.held_out is not None:
        alignment = fit_alignment(model.held_out.reduced_alike(kernel), targets, trained_on=True)
        return {f"train_{name}": value for name, value in _alignment_numbers(alignment).items()}
    trained_on = model.settings.probes.train is not None
    return _alignment_numbers(fit_alignment(kernel, targets, trained_on=trained_on))


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
