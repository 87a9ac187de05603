"""Everything measured of one side by itself."""

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, PyTree

from ntkdiag._jax import compiler_options
from ntkdiag.analysis import alignment
from ntkdiag.analysis.alignment import label_power
from ntkdiag.analysis.stability import critical_learning_rate, stability_margin
from ntkdiag.comparison.leaf_kernels import leaf_kernels
from ntkdiag.comparison.settings import Settings
from ntkdiag.comparison.sides import Side
from ntkdiag.descent import Descent
from ntkdiag.engine.ntk import ntk
from ntkdiag.kernel.decomposition import spectrum
from ntkdiag.kernel.kernel import Kernel
from ntkdiag.kernel.spectrum import Spectrum
from ntkdiag.kernel.working_precision import keeps_float64
from ntkdiag.models.paths import leaves_by_path


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
        loss: Loss on the probe; None without labels, or where no loss was named.
        accuracy: Share of examples whose largest output is the label; None unless labels are classes.
        critical_learning_rate: Where the quadratic model of the loss starts to diverge; None if the kernel is
            reduced, or no loss was named.
        margin: learning rate / critical learning rate; None without a learning rate, too.
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
    side: Side,
    settings: Settings,
    outputs: Float[np.ndarray, "n *o"],
    targets: Float[np.ndarray, "n o"] | None,
    classes: Int[np.ndarray, " n"] | None,
) -> Measured:
    """Measure one side, from its outputs on the probe, and targets and class numbers where there are labels.

    Cost: one kernel, two eigendecompositions (N C)^3 with labels, one more reduced kernel for its parts by leaf.
    """
    f, params = side.functional
    kernel = ntk(f, params, settings.x, reduction=settings.reduction, memory=settings.memory)
    flat = outputs.reshape(outputs.shape[0], -1)
    measured = Measured(
        label=side.label,
        path=side.path,
        step=side.step,
        fixed_state=side.fixed_state,
        params_sha256=fingerprint(params),
        kernel=kernel,
        spectrum=spectrum(kernel),
        outputs=flat,
        leaf_kernels=leaf_kernels(f, params, settings.x, settings.memory),
        **_stability(kernel, outputs, settings),
    )
    if targets is None:
        return measured
    accuracy = None
    if classes is not None:
        accuracy = float(np.mean(flat.argmax(axis=1) == classes))
    loss = None
    if settings.loss is not None:
        loss = float(_loss(outputs, settings))
    return dataclasses.replace(
        measured,
        alignment=float(alignment(kernel, targets)),
        label_power=np.asarray(label_power(kernel, targets, centred=True)),
        loss=loss,
        accuracy=accuracy,
    )


def evaluate(f: Callable[..., Any], params: PyTree, x: PyTree) -> Float[np.ndarray, "n *o"]:
    """Outputs on the probe in float64."""
    outputs = jax.jit(f, compiler_options=compiler_options(reduces=True))(params, x)
    return np.asarray(outputs, np.float64)


def class_numbers(targets: Float[np.ndarray, "n o"]) -> Int[np.ndarray, " n"] | None:
    """`[n]`, where targets `[n o]` are one-hot rows; None where they are not."""
    several = targets.shape[1] > 1
    if several and np.isin(targets, (0, 1)).all() and (targets.sum(axis=1) == 1).all():
        return targets.argmax(axis=1)
    return None


def fingerprint(params: PyTree) -> str:
    """SHA-256 of parameters, to recognise them in another report."""
    digest = hashlib.sha256()
    for path, leaf in leaves_by_path(params).items():
        array = np.asarray(leaf)
        digest.update(f"{path}:{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


@keeps_float64
def _loss(outputs: Float[np.ndarray, "n *o"], settings: Settings) -> Float[jax.Array, ""]:
    """The loss on the probe, in float64 like the outputs."""
    assert settings.loss is not None
    y = settings.loss.read(settings.y, outputs.shape)
    return settings.loss(jnp.asarray(outputs), y)


def _stability(
    kernel: Kernel, outputs: Float[np.ndarray, "n *o"], settings: Settings
) -> dict[str, Any]:
    """Critical learning rate and margin, as far as loss, update rule and kernel allow."""
    is_reduced = kernel.convention.reduction != "full" and kernel.convention.n_outputs > 1
    # The largest eigenvalue of a reduced kernel is too small: the learning rate would be unsafe.
    if is_reduced or settings.loss is None:
        return {}
    descent = settings.descent or Descent()
    trained = {"loss": settings.loss, "outputs": outputs, "y": settings.y}
    critical = critical_learning_rate(kernel, descent, **trained)
    rates = {"critical_learning_rate": float(critical)}
    if descent.learning_rate is not None:
        rates["margin"] = float(stability_margin(kernel, descent, **trained))
    return rates
