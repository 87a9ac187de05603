"""What the numbers of a comparison mean, and what to know before trusting them."""

import sys
from typing import Any

import jax
import numpy as np

from ntkdiag.checkpoints.measured import Measured
from ntkdiag.checkpoints.settings import Settings
from ntkdiag.checkpoints.sides import Side
from ntkdiag.checkpoints.versions import installed_versions
from ntkdiag.kernels import Kernel

FEW_EXAMPLES = 256
_LOSSES = {
    "mse": "1/2 squared error, summed over outputs, mean over examples",
    "cross_entropy": "softmax cross-entropy, mean over examples",
}


def facts(a: Side, b: Side, settings: Settings, n_outputs: int, kernel: Kernel) -> dict[str, Any]:
    """Conventions of a comparison, in the order a reader wants them.

    Args:
        a: Side A.
        b: Side B.
        settings: Probe and conventions.
        n_outputs: C.
        kernel: One of the kernels.

    Returns:
        Name -> text or number.
    """
    leaves = jax.tree.leaves(a.functional.params)
    return {
        "model": f"{a.functional.library} {a.functional.name}".strip(),
        "parameters": sum(int(np.prod(leaf.shape)) for leaf in leaves),
        "parameter_dtype": ", ".join(sorted({str(leaf.dtype) for leaf in leaves})),
        "mode": a.functional.mode,
        "fixed_state_a": a.fixed_state,
        "fixed_state_b": b.fixed_state,
        "n_examples": settings.n_examples,
        "n_outputs": n_outputs,
        "probe_sha256": settings.probe,
        "kernel": _reduction(kernel),
        "kernel_dtype": str(kernel.dtype),
        "loss": _LOSSES[settings.loss] if settings.y is not None or settings.learning_rate else "not used",
        "learning_rate": settings.learning_rate,
        "momentum": settings.momentum,
        "backend": jax.default_backend(),
        "versions": ", ".join(installed_versions(_relevant())),
    }


def notes(a: Side, b: Side, settings: Settings, measured_a: Measured, measured_b: Measured) -> tuple[str, ...]:
    """What a reader has to know: reductions, narrowed dtypes, damaged spectra, small probes.

    Args:
        a: Side A.
        b: Side B.
        settings: Probe and conventions.
        measured_a: Measurements of A.
        measured_b: Measurements of B.

    Returns:
        Sentences.
    """
    said = []
    computed = {str(leaf.dtype) for leaf in jax.tree.leaves(a.functional.params)}
    if "float64" in {*a.saved_dtypes, *b.saved_dtypes} and "float64" not in computed:
        said.append(
            "Parameters saved as float64 were computed in float32: switch on jax_enable_x64 to use them as saved."
        )
    if settings.outputs != "full" and measured_a.kernel.convention.n_outputs > 1:
        rows = settings.n_examples * measured_a.kernel.convention.n_outputs
        said.append(
            f"Kernels are reduced over outputs ({settings.outputs}): their largest eigenvalue is not that of the full "
            "kernel, so no learning rate or margin is given; drift and alignment are those of the reduced kernel. "
            f'outputs="full" takes {rows:,} rows.'
        )
    elif settings.n_examples < FEW_EXAMPLES:
        said.append(
            f"With {settings.n_examples} probe examples the largest eigenvalue per example is estimated too high; the "
            "critical learning rate errs on the safe side."
        )
    for side in (measured_a, measured_b):
        if side.spectrum.status != "ok":
            said.append(f"The spectrum of {side.label} is {side.spectrum.status}: do not rely on its numbers.")
    if settings.y is None:
        said.append(
            "No labels were given: alignment, label power, loss and accuracy are left out, and RICH cannot be found."
        )
    return tuple(said)


def _reduction(kernel: Kernel) -> str:
    side = kernel.matrix.shape[0]
    name = {
        "full": "full kernel J Jᵀ",
        "mean": "mean over outputs, Σ_c Θ_cc / C",
        "trace": "trace over outputs, Σ_c Θ_cc",
        "sum-of-logits": "kernel of the summed outputs Σ_c f_c / √C",
    }[kernel.convention.outputs]
    return f"{name}, {side} × {side}"


def _relevant() -> tuple[str, ...]:
    return ("jax", *(name for name in ("flax", "equinox") if name in sys.modules), "orbax-checkpoint")
