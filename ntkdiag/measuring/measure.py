"""One measurement of one set of parameters, for `compare`, `track` and whoever has a kernel.

1. Outputs, and the kernel on the probe, in one reduction; its spectrum with the noise floor.
2. The part of every leaf of the parameters: its kernel, or its trace alone.
3. Whether examples are still told apart, and the margin of stability.
4. Beside labels: loss, accuracy, alignment and, where all is asked for, label power and
   leave-one-out; on held-out examples, where there are some.
"""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, PyTree

from ntkdiag import display
from ntkdiag.analysis.noise_scale import FEWEST_EXAMPLES, noise_scale
from ntkdiag.analysis.self_influence import self_influence
from ntkdiag.engine import ntk
from ntkdiag.gradients import gradient_kernel
from ntkdiag.kernel.decomposition import spectrum
from ntkdiag.kernel.kernel import Kernel
from ntkdiag.kernel.spectrum import require_decomposable
from ntkdiag.matrix_free.operator import NTKOperator
from ntkdiag.measuring.degeneracy import condition, traced_over_outputs
from ntkdiag.measuring.kernel_regression import (
    KernelFit,
    doubts_of_labels,
    fit_alignment,
    fit_kernel,
    fit_outputs,
)
from ntkdiag.measuring.labels_of_probes import HeldOutProbe, ProbeLabels
from ntkdiag.measuring.leaf_parts import shares_of_leaves
from ntkdiag.measuring.measured import HeldOut, Measured
from ntkdiag.measuring.probed_function import ProbedFunction
from ntkdiag.measuring.settings import Settings
from ntkdiag.measuring.stated_margin import PendingStability, stated_stability
from ntkdiag.models.paths import leaves_by_path


@runtime_checkable
class Named(Protocol):
    """What is measured, as tables name it: a side of a comparison."""

    @property
    def label(self) -> str:
        """Its name."""
        ...

    @property
    def path(self) -> str | None:
        """Where it lies; None for values in memory."""
        ...

    @property
    def step(self) -> int | None:
        """Its step, where it has one."""
        ...

    @property
    def fixed_state(self) -> str:
        """Where the arrays that are not parameters come from."""
        ...


def measure(
    function: ProbedFunction,
    params: PyTree,
    kwargs: Mapping[str, PyTree],
    of: Named,
    *,
    sha256: str | None = None,
    in_training: PendingStability | None = None,
    whole: bool = True,
) -> Measured:
    """Measure one set of parameters; `kwargs` is what else the function takes."""
    settings, f, x = function.settings, function.f, function.x
    _require_decomposable(function, whole=whole)
    outputs = function.outputs(params, kwargs, x)
    kernel = ntk(f, params, x, reduction=settings.reduction, memory=settings.memory, **kwargs)
    if whole:
        of_leaves = function.leaf_kernels(params, kwargs)
        traced = sum(of_leaves.values(), np.zeros((len(outputs), len(outputs))))
        traces = {path: np.trace(part) for path, part in of_leaves.items()}
    else:
        of_leaves = {}
        traced = traced_over_outputs(kernel)
        traces = function.leaf_traces(params, kwargs)
    measured = _measure_kernel(
        kernel,
        outputs,
        settings,
        of,
        sha256=sha256 or fingerprint(params),
        traced=traced,
        roundoff=function.roundoff,
        in_training=in_training,
        products=functools.partial(NTKOperator, f, params, x, **kwargs),
    )
    shares = shares_of_leaves(traces, params)
    measured = dataclasses.replace(measured, leaf_kernels=of_leaves, leaf_shares=shares)
    if settings.gradient_kernel:
        measured = _with_gradients(measured, function, params, kwargs)
    labels, held_out = function.labels, function.held_out
    if labels is not None and labels.flat_targets is not None:
        doubts = doubts_of_labels(kernel, labels.flat_targets)
        measured = dataclasses.replace(measured, label_doubts=doubts)
    if held_out is None:
        if labels is None:
            return measured
        return _beside_labels(measured, outputs, labels, settings, whole=whole)
    if labels is not None:
        measured = _with_output_fit(measured, outputs, labels, settings)
    return _beside_held_out(measured, function, held_out, params, kwargs, whole=whole)


def _measure_kernel(
    kernel: Kernel,
    outputs: Float[np.ndarray, "n *o"],
    settings: Settings,
    of: Named,
    *,
    sha256: str,
    traced: Float[np.ndarray, "n n"] | None,
    roundoff: float,
    in_training: PendingStability | None = None,
    products: Callable[[], NTKOperator] | None = None,
) -> Measured:
    """What a kernel and the outputs beside it tell without labels."""
    decomposed = spectrum(kernel)
    # The loss takes the outputs in their own shape, whose axes tell classes from positions.
    if in_training is not None:
        stability = in_training()
    else:
        stability = stated_stability(decomposed, outputs, settings, products)
    measured = Measured(
        label=of.label,
        path=None if of.path is None else display.printable(of.path),
        step=of.step,
        fixed_state=of.fixed_state,
        params_sha256=sha256,
        kernel=kernel,
        spectrum=decomposed,
        outputs=outputs.reshape(outputs.shape[0], -1),  # [n ...] -> [n o]
        leaf_kernels={},
        condition=condition(settings, outputs, kernel, traced, roundoff),
    )
    if stability is None:
        return measured
    return dataclasses.replace(
        measured,
        critical_learning_rate=stability.critical_learning_rate,
        margin=stability.margin,
        learning_rate=stability.learning_rate,
        margin_interval=stability.interval,
        margin_status=stability.status,
        update_norm=stability.update_norm,
    )


def _beside_labels(
    measured: Measured,
    outputs: Float[np.ndarray, "n *o"],
    labels: ProbeLabels,
    settings: Settings,
    *,
    whole: bool = True,
) -> Measured:
    """The measurement completed by that of outputs and kernel beside the labels of the probe."""
    measured = _with_output_fit(measured, outputs, labels, settings)
    if labels.flat_targets is None:
        return measured
    trained_on = settings.probes.train is not None
    fit = fit_kernel(measured.kernel, labels.flat_targets, trained_on=trained_on, whole=whole)
    return _with_kernel_fit(measured, fit)


def _require_decomposable(function: ProbedFunction, *, whole: bool) -> None:
    """Refuse a kernel of too many rows before any work; "auto" is full for small kernels alone."""
    settings, labels = function.settings, function.labels
    n = settings.n_examples
    rows = n * math.prod(function.outputs_of_one) if settings.reduction == "full" else n
    # Its modes are laid beside labels only where there are no held-out examples for that.
    has_targets = labels is not None and labels.targets is not None
    vectors = whole and has_targets and function.held_out is None
    require_decomposable(rows, vectors=vectors)


def _with_output_fit(
    measured: Measured, outputs: Float[np.ndarray, "n *o"], labels: ProbeLabels, settings: Settings
) -> Measured:
    """The measurement with loss and accuracy."""
    fit = fit_outputs(outputs, labels, settings.loss)
    return dataclasses.replace(measured, loss=fit.loss, accuracy=fit.accuracy)


def _beside_held_out(
    measured: Measured,
    function: ProbedFunction,
    held_out: HeldOutProbe,
    params: PyTree,
    kwargs: Mapping[str, PyTree],
    *,
    whole: bool,
) -> Measured:
    """The measurement completed by that on held-out examples."""
    settings, labels = function.settings, function.labels
    outputs = function.outputs(params, kwargs, held_out.x)
    of_outputs = fit_outputs(outputs, held_out.labels, settings.loss)
    f, reduction = function.f, held_out.reduction
    kernel = ntk(f, params, held_out.x, reduction=reduction, memory=settings.memory, **kwargs)
    alignment_of_train = None
    if labels is not None and labels.flat_targets is not None:
        kernel_of_train = held_out.reduced_alike(measured.kernel)
        alignment_of_train = fit_alignment(kernel_of_train, labels.flat_targets, trained_on=True)
    on_held_out = HeldOut(
        kernel=kernel,
        outputs=outputs.reshape(outputs.shape[0], -1),  # [n ...] -> [n o]
        loss=of_outputs.loss,
        accuracy=of_outputs.accuracy,
        alignment_of_train=alignment_of_train,
    )
    measured = dataclasses.replace(measured, held_out=on_held_out)
    targets = held_out.labels.flat_targets
    if targets is None:
        return measured
    return _with_kernel_fit(measured, fit_kernel(kernel, targets, trained_on=False, whole=whole))


def _with_kernel_fit(measured: Measured, fit: KernelFit) -> Measured:
    """The measurement with what a kernel beside its labels tells."""
    return dataclasses.replace(
        measured,
        alignment=fit.alignment,
        label_power=fit.label_power,
        leave_one_out=fit.leave_one_out,
    )


def _with_gradients(
    measured: Measured, function: ProbedFunction, params: PyTree, kwargs: Mapping[str, PyTree]
) -> Measured:
    """The measurement with the squared gradient of every example, and the noise scale."""
    settings = function.settings
    assert settings.loss is not None  # `with_gradient_kernel` refuses settings without
    G = gradient_kernel(
        function.f,
        params,
        settings.x,
        settings.y,
        loss=settings.loss,
        memory=settings.memory,
        **kwargs,
    )
    return dataclasses.replace(
        measured,
        self_influence=np.asarray(self_influence(G), float),
        noise_scale=noise_scale(G) if G.n_examples >= FEWEST_EXAMPLES else None,
    )


def fingerprint(params: PyTree) -> str:
    """SHA-256 of parameters, to recognize them in another report."""
    digest = hashlib.sha256()
    for path, leaf in leaves_by_path(params).items():
        array = np.asarray(leaf)
        digest.update(f"{path}:{array.dtype}{array.shape}".encode(errors="surrogatepass"))
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
