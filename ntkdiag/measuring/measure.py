"""One measurement of one set of parameters, for `compare`, `track` and whoever has a kernel.

1. Outputs, and the kernel on the probe, in one reduction; its spectrum with the noise floor.
2. The part of every leaf of the parameters: its kernel, or its trace alone.
3. Whether examples are still told apart, and the margin of stability.
4. Beside labels: loss, accuracy, alignment and, where all is asked for, label power and
   leave-one-out; on held-out examples, where there are some.
"""

import functools
import hashlib
import math
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, PyTree

from ntkdiag import display
from ntkdiag.analysis.noise_scale import FEWEST_EXAMPLES, noise_scale, self_influence
from ntkdiag.engine import ntk
from ntkdiag.gradients import gradient_kernel
from ntkdiag.kernel.kernel import Kernel
from ntkdiag.kernel.kernel_argument import spectrum
from ntkdiag.kernel.spectrum import Spectrum, require_decomposable
from ntkdiag.matrix_free.operator import NTKOperator
from ntkdiag.measuring.degeneracy import condition, traced_over_outputs
from ntkdiag.measuring.kernel_regression import (
    doubts_of_labels,
    fit_alignment,
    fit_kernel,
    fit_outputs,
    numbers_of_alignment,
)
from ntkdiag.measuring.labels_of_probes import HeldOutProbe
from ntkdiag.measuring.leaf_parts import shares_of_leaves
from ntkdiag.measuring.measured import Measured
from ntkdiag.measuring.probed_function import ProbedFunction
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
    decomposed = spectrum(kernel)
    numbers = _of_spectrum(kernel, decomposed)
    numbers |= condition(settings, outputs, kernel, traced, function.roundoff)
    # The loss takes the outputs in their own shape, whose axes tell classes from positions.
    if in_training is not None:
        stability = in_training()
    else:
        products = functools.partial(NTKOperator, f, params, x, **kwargs)
        stability = stated_stability(decomposed, outputs, settings, products)
    numbers |= {} if stability is None else stability.numbers
    arrays = {"leaf_shares": np.array(shares_of_leaves(traces, params))}
    for more_numbers, more_arrays in (
        _of_gradients(function, params, kwargs),
        _beside_labels(function, kernel, outputs, whole=whole),
    ):
        numbers |= more_numbers
        arrays |= more_arrays
    held_out_kernel = None
    if function.held_out is not None:
        held_out_kernel, more_numbers, more_arrays = _held_out(
            function, function.held_out, params, kwargs, whole=whole
        )
        numbers |= more_numbers
        arrays |= more_arrays
        if {"train_alignment_above", "held_out_alignment_above"} <= numbers.keys():
            of_train, of_held_out = (
                numbers[f"{name}_alignment_above"] for name in ("train", "held_out")
            )
            numbers["alignment_gap"] = of_train - of_held_out
    return Measured(
        label=of.label,
        path=None if of.path is None else display.printable(of.path),
        step=of.step,
        fixed_state=of.fixed_state,
        params_sha256=sha256 or fingerprint(params),
        kernel=kernel,
        spectrum=decomposed,
        outputs=outputs.reshape(outputs.shape[0], -1),  # [n ...] -> [n o]
        numbers=numbers,
        arrays=arrays,
        leaf_kernels=of_leaves,
        held_out_kernel=held_out_kernel,
        margin_status="ok" if stability is None else stability.status,
    )


def _of_spectrum(kernel: Kernel, decomposed: Spectrum) -> dict[str, int | float]:
    """What a kernel and its eigenvalues tell by themselves."""
    matrix = np.asarray(kernel.matrix, np.float64)
    return {
        "rank": int(decomposed.rank),
        "unresolved_eigenvalues": decomposed.size - int(decomposed.rank),
        "noise_floor": float(decomposed.noise_floor),
        "trace": float(np.trace(matrix)),
        "norm": float(np.linalg.norm(matrix)),
        "participation_ratio": float(decomposed.participation_ratio),
        "entropy_rank": float(decomposed.entropy_rank),
    }


def _of_gradients(
    function: ProbedFunction, params: PyTree, kwargs: Mapping[str, PyTree]
) -> tuple[dict[str, int | float], dict[str, np.ndarray]]:
    """The squared gradient of every example, and the noise scale, where they are asked for."""
    settings = function.settings
    if not settings.gradient_kernel:
        return {}, {}
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
    numbers = {}
    if G.n_examples >= FEWEST_EXAMPLES:
        noise = noise_scale(G)
        numbers["noise_scale"] = float(noise.value)
        numbers["noise_scale_lower"] = float(noise.lower)
        numbers["noise_scale_upper"] = float(noise.upper)
    return numbers, {"self_influence": np.asarray(self_influence(G), float)}


def _beside_labels(
    function: ProbedFunction, kernel: Kernel, outputs: Float[np.ndarray, "n *o"], *, whole: bool
) -> tuple[dict[str, int | float], dict[str, np.ndarray]]:
    """Outputs and kernel beside the labels of the probe; nothing without labels."""
    settings, labels, held_out = function.settings, function.labels, function.held_out
    if labels is None:
        return {}, {}
    numbers, arrays = fit_outputs(outputs, labels, settings.loss), {}
    targets = labels.flat_targets
    if targets is None:
        return numbers, arrays
    doubts = doubts_of_labels(kernel, targets)
    if doubts is not None:
        arrays["label_doubts"] = doubts
    if held_out is None:
        trained_on = settings.probes.train is not None
        of_kernel = fit_kernel(kernel, targets, trained_on=trained_on, whole=whole)
        return numbers | of_kernel[0], arrays | of_kernel[1]
    # Beside held-out examples, alignments are of kernels that are reduced alike.
    aligned = fit_alignment(held_out.reduced_alike(kernel), targets, trained_on=True)
    return numbers | numbers_of_alignment(aligned, "train_alignment"), arrays


def _held_out(
    function: ProbedFunction,
    held_out: HeldOutProbe,
    params: PyTree,
    kwargs: Mapping[str, PyTree],
    *,
    whole: bool,
) -> tuple[Kernel, dict[str, int | float], dict[str, np.ndarray]]:
    """The kernel of the held-out examples, and what outputs and kernel are beside their labels."""
    settings, labels = function.settings, held_out.labels
    outputs = function.outputs(params, kwargs, held_out.x)
    numbers = fit_outputs(outputs, labels, settings.loss, "held_out_")
    f, reduction = function.f, held_out.reduction
    kernel = ntk(f, params, held_out.x, reduction=reduction, memory=settings.memory, **kwargs)
    if labels.flat_targets is None:
        return kernel, numbers, {}
    of_kernel = fit_kernel(
        kernel, labels.flat_targets, trained_on=False, prefix="held_out_", whole=whole
    )
    return kernel, numbers | of_kernel[0], of_kernel[1]


def _require_decomposable(function: ProbedFunction, *, whole: bool) -> None:
    """Refuse a kernel of too many rows before any work; "auto" is full for small kernels alone."""
    settings, labels = function.settings, function.labels
    n = settings.n_examples
    rows = n * math.prod(function.outputs_of_one) if settings.reduction == "full" else n
    # Its modes are laid beside labels only where there are no held-out examples for that.
    has_targets = labels is not None and labels.targets is not None
    vectors = whole and has_targets and function.held_out is None
    require_decomposable(rows, vectors=vectors)


def fingerprint(params: PyTree) -> str:
    """SHA-256 of parameters, to recognize them in another report."""
    digest = hashlib.sha256()
    for path, leaf in leaves_by_path(params).items():
        array = np.asarray(leaf)
        digest.update(f"{path}:{array.dtype}{array.shape}".encode(errors="surrogatepass"))
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
