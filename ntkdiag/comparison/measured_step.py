"""A step of a run directory measured like any other side, as far as kernel and outputs allow."""

import numpy as np
from jaxtyping import Float

from ntkdiag.comparison.condition import condition
from ntkdiag.comparison.label_fit import ProbeLabels
from ntkdiag.comparison.measured import Measured, beside_labels, stated_stability, with_stability
from ntkdiag.comparison.settings import Settings
from ntkdiag.comparison.stored_step import StoredStep
from ntkdiag.kernel.decomposition import spectrum
from ntkdiag.kernel.kernel import Kernel


def measure_step(step: StoredStep, settings: Settings, labels: ProbeLabels | None) -> Measured:
    """Measure a stored step.

    Cost: one eigendecomposition (N C)^3, a second one with labels.
    """
    kernel_spectrum = spectrum(step.kernel)
    stability = stated_stability(None, kernel_spectrum, step.outputs, settings)
    convention = step.kernel.convention
    measured = Measured(
        label=step.label,
        path=step.path,
        step=step.step,
        fixed_state=step.fixed_state,
        params_sha256=step.row["params_sha256"],
        kernel=step.kernel,
        spectrum=kernel_spectrum,
        outputs=step.outputs.reshape(len(step.outputs), -1),  # [n ...] -> [n o]
        leaf_kernels={},
        condition=condition(
            settings,
            step.outputs,
            step.kernel,
            _traced_over_outputs(step.kernel),
            convention.coarsest(step.kernel.dtype),
        ),
    )
    measured = with_stability(measured, stability)
    return measured if labels is None else beside_labels(measured, step.outputs, labels, settings)


def _traced_over_outputs(kernel: Kernel) -> Float[np.ndarray, "n n"] | None:
    """sum_c Theta_cc of a kernel; None where its reduction does not tell it."""
    array = np.asarray(kernel.array, np.float64)
    if kernel.convention.reduction == "full":
        return np.einsum("nomo->nm", array)
    if kernel.convention.reduction == "mean":
        return array * kernel.convention.n_outputs
    return array if kernel.convention.reduction == "trace" else None
