"""A step of a run directory measured like any other side, as far as kernel and outputs allow."""

from ntkdiag.comparison.degeneracy import condition, traced_over_outputs
from ntkdiag.comparison.kernel_regression import ProbeLabels
from ntkdiag.comparison.measured import Measured, beside_labels, with_stability
from ntkdiag.comparison.settings import Settings
from ntkdiag.comparison.stated_margin import stated_stability
from ntkdiag.comparison.stored_step import StoredStep
from ntkdiag.kernel.decomposition import spectrum


def measure_step(step: StoredStep, settings: Settings, labels: ProbeLabels | None) -> Measured:
    """Measure a stored step.

    Cost: one eigendecomposition (N C)^3, a second one with labels.
    """
    kernel_spectrum = spectrum(step.kernel)
    stability = stated_stability(kernel_spectrum, step.outputs, settings)
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
            traced_over_outputs(step.kernel),
            convention.coarsest(step.kernel.dtype),
        ),
    )
    measured = with_stability(measured, stability)
    return measured if labels is None else beside_labels(measured, step.outputs, labels, settings)
