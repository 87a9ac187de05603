"""A step of a run directory measured like any other side, as far as kernel and outputs allow."""

from ntkdiag.comparison.stored_step import StoredStep
from ntkdiag.measuring.degeneracy import traced_over_outputs
from ntkdiag.measuring.labels_of_probes import read_labels
from ntkdiag.measuring.measure import beside_labels, measure_kernel
from ntkdiag.measuring.measured import Measured
from ntkdiag.measuring.settings import Settings


def measure_step(step: StoredStep, settings: Settings) -> Measured:
    """Measure a stored step.

    Cost: one eigendecomposition (N C)^3, a second one with labels.
    """
    labels = read_labels(settings.probes.of_kernel, settings, step.outputs.shape[1:])
    measured = measure_kernel(
        step.kernel,
        step.outputs,
        settings,
        step,
        sha256=step.row["params_sha256"],
        traced=traced_over_outputs(step.kernel),
        roundoff=step.kernel.convention.coarsest(step.kernel.dtype),
    )
    return measured if labels is None else beside_labels(measured, step.outputs, labels, settings)
