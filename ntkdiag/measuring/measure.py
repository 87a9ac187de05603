"""One measurement of one set of parameters, for `compare`, `track` and `Monitor`.

1. Outputs, and the kernel on the probe, in one reduction; its spectrum with the noise floor.
2. Every parameter leaf's part of the kernel, or the trace of that part alone.
3. Whether examples are still distinguished, and the margin of stability.
4. If asked for, the squared gradient of every example, and the noise scale.
5. With labels: loss, accuracy, alignment and, in detail, label power and leave-one-out; on held-out
   examples, if there are any.
"""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, PyTree

from ntkdiag.analysis.alignment import alignment
from ntkdiag.analysis.degenerate import centre_kernel
from ntkdiag.analysis.drift import unit_kernels
from ntkdiag.analysis.noise_scale import FEWEST_EXAMPLES, noise_scale, self_influence
from ntkdiag.engine import ntk
from ntkdiag.gradients import gradient_kernel
from ntkdiag.kernel.kernel import Kernel
from ntkdiag.kernel.kernel_argument import spectrum
from ntkdiag.kernel.spectrum import Spectrum, require_decomposable
from ntkdiag.matrix_free.operator import NTKOperator
from ntkdiag.measuring.degeneracy import condition, traced_over_outputs
from ntkdiag.measuring.fit import (
    Numbers,
    doubts_of_labels,
    fit_kernel,
    fit_outputs,
    numbers_of_alignment,
)
from ntkdiag.measuring.probed_function import (
    HeldOutProbe,
    ProbedFunction,
    averaged_over_outputs,
    shares_of_leaves,
)
from ntkdiag.measuring.stated_margin import PendingStability, stated_stability
from ntkdiag.models.paths import leaves_by_path

# Eigenvectors of each kernel that are compared. Kernels are centred over examples: the largest
# modes of a kernel as it comes are the constants of the outputs, which any two networks share.
N_MODES = 10


@dataclasses.dataclass(frozen=True, eq=False)
class Measured:
    """One set of parameters on the probes: a side of a comparison, or a checkpoint of a run."""

    step: int  # step number; 0 where the checkpoint has none
    params: PyTree  # theta
    kwargs: Mapping[str, PyTree]  # what else the function takes, such as running statistics
    params_sha256: str  # SHA-256 of both: path, dtype, shape and bytes of every leaf
    kernel: Kernel  # the empirical NTK on the probe
    eigenvalues: Float[np.ndarray, " k"]  # `[k]` of the kernel, descending
    outputs: Float[np.ndarray, "n *o"]  # `[n *o]` outputs on the probe
    # Every scalar that was asked for, by its name in `ntkdiag.quantities`.
    numbers: Mapping[str, Any]
    # The arrays likewise: leaf_shares `[l]`, in leaf order; label_power `[k]` and
    # label_doubts `[n]` beside labels; self_influence `[n]` where it was asked for.
    arrays: Mapping[str, np.ndarray]
    spectrum_status: str = "ok"  # "ok", or what is wrong with the eigenvalues
    # "ok", also where no margin was asked for; or a sentence on it, or on why there is none.
    margin_status: str = "ok"
    # Path -> `[n n]`, the kernel of each leaf traced over outputs; empty of a checkpoint of a run.
    leaf_kernels: Mapping[str, Float[np.ndarray, "n n"]] = dataclasses.field(default_factory=dict)

    @property
    def flat_outputs(self) -> Float[np.ndarray, "n o"]:
        """The outputs, all of one example in a row."""
        return self.outputs.reshape(len(self.outputs), -1)

    @property
    def row(self) -> dict[str, Any]:
        """The numbers by name, as they are stored and judged."""
        # JSON has no infinity: it is stored as NaN is.
        numbers = {
            name: math.nan if math.isinf(value) else value for name, value in self.numbers.items()
        }
        row = {
            **numbers,
            **{name: array.tolist() for name, array in self.arrays.items()},
            "params_sha256": self.params_sha256,
            "spectrum_status": self.spectrum_status,
            "convention": self.kernel.convention.to_dict(),
        }
        if "update_norm" in numbers or self.margin_status != "ok":
            row["margin_status"] = self.margin_status
        return row

    @property
    def arrays_to_store(self) -> dict[str, np.ndarray]:
        """The arrays of a checkpoint by name, as they are stored."""
        return {
            "kernel": np.asarray(self.kernel.array),
            "eigenvalues": self.eigenvalues,
            "modes": self.modes,
            "outputs": self.outputs,
        }

    @functools.cached_property
    def modes(self) -> Float[np.ndarray, "k m"]:
        """Leading eigenvectors of the centred kernel, in columns; zeros for unresolved ones."""
        if "modes" in self.arrays:  # as they were stored
            return self.arrays["modes"]
        return _leading_modes(self.kernel.array, self.numbers["noise_floor"])

    @functools.cached_property
    def unit_kernels(self) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."]]:
        """The kernel and the centred one at unit length."""
        unit, unit_centred = unit_kernels(self.kernel.array)
        return np.asarray(unit), np.asarray(unit_centred)


def measure(
    function: ProbedFunction,
    params: PyTree,
    kwargs: Mapping[str, PyTree],
    *,
    step: int = 0,
    in_training: PendingStability | None = None,
    detailed: bool = True,
) -> Measured:
    """Measure one set of parameters; `kwargs` is what else the function takes."""
    settings, f, x = function.settings, function.f, function.settings.x
    _require_decomposable(function, detailed=detailed)
    outputs = function.outputs(params, kwargs, x)
    kernel = ntk(f, params, x, reduction=settings.reduction, memory=settings.memory, **kwargs)
    if detailed:
        of_leaves = function.leaf_kernels(params, kwargs)
        traced = sum(of_leaves.values(), np.zeros((len(outputs), len(outputs))))
        traces = {path: np.trace(part) for path, part in of_leaves.items()}
    else:
        of_leaves = {}
        traced = traced_over_outputs(kernel)
        traces = function.leaf_traces(params, kwargs)
    decomposed = spectrum(kernel)
    found = _of_spectrum(kernel, decomposed)
    found |= condition(settings, outputs, kernel, traced, function.roundoff)
    found["leaf_shares"] = np.array(shares_of_leaves(traces, params))
    if in_training is not None:
        stability = in_training()
    else:
        operator_of = functools.partial(NTKOperator, f, params, x, **kwargs)
        # The loss takes the outputs in their own shape, whose axes tell classes from positions.
        stability = stated_stability(decomposed, outputs, settings, operator_of)
    if stability is not None:
        found |= stability.numbers
    if settings.gradient_kernel:
        found |= _of_gradients(function, params, kwargs)
    found |= _beside_labels(function, kernel, outputs, detailed=detailed)
    if function.held_out is not None:
        found |= _held_out(function, function.held_out, params, kwargs, detailed=detailed)
        if "train_alignment_above" in found and "held_out_alignment_above" in found:
            of_train = float(found["train_alignment_above"])
            found["alignment_gap"] = of_train - float(found["held_out_alignment_above"])
    return Measured(
        step=step,
        params=params,
        kwargs=kwargs,
        params_sha256=fingerprint({"params": params, **kwargs}),
        kernel=dataclasses.replace(kernel, array=np.asarray(kernel.array), leaves=None),
        eigenvalues=np.asarray(decomposed.eigenvalues),
        outputs=outputs,
        numbers={name: v for name, v in found.items() if not isinstance(v, np.ndarray)},
        arrays={name: v for name, v in found.items() if isinstance(v, np.ndarray)},
        spectrum_status=decomposed.status,
        margin_status="ok" if stability is None else stability.status,
        leaf_kernels=of_leaves,
    )


def _of_spectrum(kernel: Kernel, decomposed: Spectrum) -> Numbers:
    """What a kernel and its eigenvalues tell by themselves."""
    matrix = np.asarray(kernel.matrix, np.float64)
    return {
        "rank": int(decomposed.rank),
        "noise_floor": float(decomposed.noise_floor),
        "trace": float(np.trace(matrix)),
        "norm": float(np.linalg.norm(matrix)),
        "participation_ratio": float(decomposed.participation_ratio),
        "entropy_rank": float(decomposed.entropy_rank),
    }


def _of_gradients(
    function: ProbedFunction, params: PyTree, kwargs: Mapping[str, PyTree]
) -> Numbers:
    """The squared gradient of every example, and the noise scale."""
    f, settings = function.f, function.settings
    loss, memory = settings.loss, settings.memory
    assert loss is not None  # `read_settings` refuses the gradient kernel without one
    G = gradient_kernel(f, params, settings.x, settings.y, loss=loss, memory=memory, **kwargs)
    found: Numbers = {"self_influence": np.asarray(self_influence(G), float)}
    if G.n_examples >= FEWEST_EXAMPLES:
        noise = noise_scale(G)
        found["noise_scale"] = float(noise.value)
        found["noise_scale_lower"] = float(noise.lower)
        found["noise_scale_upper"] = float(noise.upper)
    return found


def _beside_labels(
    function: ProbedFunction, kernel: Kernel, outputs: Float[np.ndarray, "n *o"], *, detailed: bool
) -> Numbers:
    """Outputs and kernel against the labels of the probe; nothing without labels."""
    settings, labels, held_out = function.settings, function.labels, function.held_out
    if labels is None:
        return {}
    found = fit_outputs(outputs, labels, settings.loss)
    targets = labels.flat_targets
    if targets is None:
        return found
    doubts = doubts_of_labels(kernel, targets)
    if doubts is not None:
        found["label_doubts"] = doubts
    if held_out is None:
        trained_on = settings.probes.train is not None
        return found | fit_kernel(kernel, targets, trained_on=trained_on, detailed=detailed)
    # Alignments of two reductions are not comparable: both take the held-out one.
    if held_out.reduction == "mean":
        kernel = averaged_over_outputs(kernel)
    aligned = alignment(kernel, targets, trained_on=True)
    return found | numbers_of_alignment(aligned, "train_alignment")


def _held_out(
    function: ProbedFunction,
    held_out: HeldOutProbe,
    params: PyTree,
    kwargs: Mapping[str, PyTree],
    *,
    detailed: bool,
) -> Numbers:
    """Outputs and kernel of the held-out examples against their labels."""
    settings, targets = function.settings, held_out.labels.flat_targets
    outputs = function.outputs(params, kwargs, held_out.x)
    found = fit_outputs(outputs, held_out.labels, settings.loss, "held_out_")
    if targets is None:
        return found
    f, reduction, memory = function.f, held_out.reduction, settings.memory
    kernel = ntk(f, params, held_out.x, reduction=reduction, memory=memory, **kwargs)
    fitted = fit_kernel(kernel, targets, trained_on=False, prefix="held_out_", detailed=detailed)
    return found | fitted


def _require_decomposable(function: ProbedFunction, *, detailed: bool) -> None:
    """Refuse a kernel of too many rows before any work; "auto" takes "full" only for small ones."""
    settings, labels = function.settings, function.labels
    n = settings.n_examples
    rows = n * math.prod(function.outputs_of_one) if settings.reduction == "full" else n
    # Its modes are compared with labels only if there are no held-out examples.
    has_targets = labels is not None and labels.targets is not None
    vectors = detailed and has_targets and function.held_out is None
    require_decomposable(rows, vectors=vectors)


def fingerprint(params: PyTree) -> str:
    """SHA-256 of parameters, to recognize them in another report."""
    digest = hashlib.sha256()
    for path, leaf in leaves_by_path(params).items():
        array = np.asarray(leaf)
        digest.update(f"{path}:{array.dtype}{array.shape}".encode(errors="surrogatepass"))
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _leading_modes(
    kernel: Float[Array | np.ndarray, "..."], noise_floor: float
) -> Float[np.ndarray, "k m"]:
    """The leading eigenvectors of a centred kernel, in columns; zeros for what is not resolved."""
    import scipy.linalg  # here, because it is slow to import

    with jax.enable_x64(True):
        centred = np.asarray(centre_kernel(np.asarray(kernel, np.float64)))
    rows = math.prod(centred.shape[: centred.ndim // 2])
    matrix = centred.reshape(rows, rows)
    if not np.isfinite(matrix).all():
        return np.zeros((rows, min(rows, N_MODES)))
    first = max(0, rows - N_MODES)
    values, vectors = scipy.linalg.eigh(matrix, subset_by_index=(first, rows - 1))
    return np.where(values > noise_floor, vectors, 0.0)[:, ::-1]
