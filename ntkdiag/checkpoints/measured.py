"""Everything measured of one side by itself."""

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ntkdiag._compat import compiler_options
from ntkdiag.adapters import leaves_by_path
from ntkdiag.analysis import alignment, critical_learning_rate, label_power, spectrum, stability_margin
from ntkdiag.analysis.spectrum import Spectrum
from ntkdiag.checkpoints.leaf_kernels import leaf_kernels
from ntkdiag.checkpoints.settings import Settings
from ntkdiag.checkpoints.sides import Side
from ntkdiag.checkpoints.targets import mean_loss
from ntkdiag.kernels import Kernel, ntk


@dataclasses.dataclass(frozen=True, eq=False)
class Measured:
    """One side of a comparison.

    Attributes:
        label: Name in tables.
        path: Checkpoint path as given; None for values in memory.
        step: Step number, where the checkpoint has one.
        fixed_state: Where the arrays that are not parameters come from.
        params_sha256: SHA-256 of the parameters: path, dtype, shape and bytes of every leaf.
        kernel: The empirical NTK on the probe.
        spectrum: Its eigenvalues with their noise floor.
        outputs: `[N C]` model outputs.
        leaf_kernels: Path -> `[n n]`, the kernel of each leaf traced over outputs.
        alignment: Centred kernel-target alignment; None without labels.
        label_power: `[k]` cumulative label power C(k), kernel and labels centred; None without labels.
        loss: Mean loss on the probe; None without labels.
        accuracy: Share of examples whose largest output is the label; None unless labels are classes.
        critical_learning_rate: Where the quadratic model of the loss starts to diverge; None if reduced.
        margin: learning rate / critical learning rate; None without a learning rate or if reduced.
    """

    label: str
    path: str | None
    step: int | None
    fixed_state: str
    params_sha256: str
    kernel: Kernel
    spectrum: Spectrum
    outputs: np.ndarray
    leaf_kernels: dict[str, np.ndarray]
    alignment: float | None = None
    label_power: np.ndarray | None = None
    loss: float | None = None
    accuracy: float | None = None
    critical_learning_rate: float | None = None
    margin: float | None = None

    @property
    def trace(self) -> float:
        """Sum of the eigenvalues of the kernel in its convention."""
        return float(np.trace(np.asarray(self.kernel.matrix, np.float64)))


def measure_side(
    side: Side, settings: Settings, outputs: np.ndarray, targets: np.ndarray | None, classes: np.ndarray | None
) -> Measured:
    """Measure one side.

    Cost: one kernel, two eigendecompositions (N C)^3 with labels, one more reduced kernel for its parts by leaf.

    Args:
        side: The side.
        settings: Probe and conventions.
        outputs: `[N C]` outputs of the side on the probe.
        targets: `[N C]`, or None.
        classes: `[N]`, or None.

    Returns:
        The measurements.
    """
    f, params = side.functional
    kernel = ntk(f, params, settings.x, outputs=settings.outputs, memory=settings.memory)
    measured = Measured(
        label=side.label,
        path=side.path,
        step=side.step,
        fixed_state=side.fixed_state,
        params_sha256=fingerprint(params),
        kernel=kernel,
        spectrum=spectrum(kernel),
        outputs=outputs,
        leaf_kernels=leaf_kernels(f, params, settings.x, settings.memory),
        **_stability(kernel, outputs, settings),
    )
    return (
        measured
        if targets is None
        else dataclasses.replace(measured, **_labelled(measured, settings, targets, classes))
    )


def evaluate(f: Callable[..., Any], params: Any, x: Any) -> np.ndarray:
    """Outputs on the probe as `[N C]` in float64."""
    outputs = jax.jit(f, compiler_options=compiler_options(reduces=True))(params, x)
    return np.asarray(outputs, np.float64).reshape(outputs.shape[0], -1)


def fingerprint(params: Any) -> str:
    """SHA-256 of parameters, to recognise them in another report."""
    digest = hashlib.sha256()
    for path, leaf in leaves_by_path(params).items():
        array = np.asarray(leaf)
        digest.update(f"{path}:{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _stability(kernel: Kernel, outputs: np.ndarray, settings: Settings) -> dict[str, Any]:
    reduced = kernel.convention.outputs != "full" and kernel.convention.n_outputs > 1
    if reduced:  # its largest eigenvalue is too small, the learning rate would be unsafe
        return {}
    logits = {} if settings.loss == "mse" else {"logits": outputs}
    options = {"loss": settings.loss, "momentum": settings.momentum, **logits}
    rates = {"critical_learning_rate": float(critical_learning_rate(kernel, **options))}
    if settings.learning_rate is not None:
        rates["margin"] = float(stability_margin(kernel, settings.learning_rate, **options))
    return rates


def _labelled(
    measured: Measured, settings: Settings, targets: np.ndarray, classes: np.ndarray | None
) -> dict[str, Any]:
    right = None if classes is None else float(np.mean(measured.outputs.argmax(axis=1) == classes))
    return {
        "alignment": float(alignment(measured.kernel, targets)),
        "label_power": np.asarray(label_power(measured.kernel, targets, centred=True)),
        "loss": mean_loss(measured.outputs, targets, settings.loss),
        "accuracy": right,
    }
