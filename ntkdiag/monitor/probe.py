"""What a monitor measures: model, probe batch, labels and settings."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import PyTree

from ntkdiag import _jax, errors
from ntkdiag._jax import open_jaxpr, sub_jaxprs
from ntkdiag.descent import Descent, DescentLike, as_descent
from ntkdiag.kernel.digest import digest as digest_of
from ntkdiag.kernel.reduction import automatic
from ntkdiag.losses import Loss
from ntkdiag.losses.loss_argument import LossLike, as_loss
from ntkdiag.models.functional import Functional
from ntkdiag.monitor.checks import check_fit, check_settings, require_independent, require_outputs
from ntkdiag.monitor.measure import measure
from ntkdiag.monitor.measurement import Measurement, unmeasured
from ntkdiag.monitor.optimizer_parameters import as_parameters_of
from ntkdiag.monitor.probe_layout import ProbeLayout


@dataclasses.dataclass(frozen=True, eq=False)
class Probe:
    """Everything a measurement needs besides the parameters.

    Attributes:
        f: A Functional, or a callable `f(params, x)`.
        x: Probe examples; every leaf has leading axis N.
        y: Labels; None leaves the alignment out.
        top_k: Number of eigenvalues.
        descent: The update rule that is trained with; None leaves the margin out.
        loss: The loss that is trained; None leaves all stability numbers out.
        reduction: Reduction of the kernel, or "auto": full up to 2048 rows, else the mean over outputs.
        memory: Memory budget of the kernel, as `ntk` takes it.
        digest: SHA-256 of the probe examples, to tell two probes apart; None for examples that are being traced.
    """

    f: Callable[..., Any]
    x: PyTree
    y: Any
    top_k: int
    descent: Descent | None
    loss: Loss | None
    reduction: str
    memory: int | float | str | None
    digest: str | None = None
    _verified: bool = dataclasses.field(init=False, default=False)

    @staticmethod
    def of(
        f: Callable[..., Any],
        x: PyTree,
        y: Any,
        *,
        top_k: int,
        descent: DescentLike | None,
        loss: LossLike | None,
        reduction: str,
        memory: int | float | str | None,
    ) -> "Probe":
        """Check the arguments of `watch` and `Monitor`, and copy the examples to the host."""
        rule = None if descent is None else as_descent(descent)
        trained = as_loss(loss)
        check_settings(f, x, top_k, rule, reduction, memory)
        labels = None if y is None else np.array(y)
        examples = jax.tree.map(_host_copy, x)
        fingerprint = _fingerprint(examples)
        probe = Probe(f, examples, labels, top_k, rule, trained, reduction, memory, fingerprint)
        if isinstance(f, Functional):
            probe.layout(f.params)
            probe.verify(f.params)
        return probe

    @property
    def mark(self) -> np.ndarray:
        """The beginning of the digest, as two integers; 0 for examples that are being traced."""
        if self.digest is None:
            return np.zeros(2, np.int32)
        return np.frombuffer(bytes.fromhex(self.digest[:16]), np.int32)

    def parameters(self, params: Any) -> tuple[Any, Any]:
        """The optimizer's parameters in the structure `f` takes; see `as_parameters_of`."""
        if params is None:
            raise errors.InvalidInputError(
                expected="the parameters at every update",
                got="params=None",
                do="Pass them on: tx.update(updates, state, params).",
            )
        return as_parameters_of(self.f, params)

    def layout(self, params: PyTree) -> ProbeLayout:
        """Shapes and reduction of the kernel, once settings and labels fit it; nothing is computed."""
        outputs = require_outputs(self.f, params, self.x)
        reduction = self.reduction
        if reduction == "auto":
            reduction = automatic(outputs.shape[0], math.prod(outputs.shape[1:]))
        dtype = _jax.at_least_float32(outputs.dtype)
        layout = ProbeLayout(tuple(outputs.shape), reduction, dtype)
        check_fit(layout, self.top_k, self.loss, self.y)
        return layout

    def verify(self, params: PyTree) -> None:
        """Check once, at the first parameters that are not traced, that examples do not interact."""
        traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((params, self.x)))
        if traced or self._verified:
            return
        require_independent(self.f, params, self.x)
        object.__setattr__(self, "_verified", True)

    def blank(self, layout: ProbeLayout) -> tuple[Measurement, jax.Array]:
        """The measurement, all NaN, and the reference kernel `[K K]` before the first measurement.

        The kernel is 0, for wrappers that choose between states by arithmetic, as `optax.contrib.sam`: 0 * NaN is NaN.
        """
        kernel0 = jnp.zeros((layout.size, layout.size), layout.dtype)
        return unmeasured(self.top_k, layout.dtype), kernel0

    def measure(
        self,
        params: PyTree,
        layout: ProbeLayout,
        kernel0: jax.Array,
        *,
        step: Any,
        first: Any,
        unmoved: Any,
        descent: Descent | None,
    ) -> tuple[Measurement, jax.Array]:
        """`measure` on this probe, for an update rule whose schedule is evaluated at the step."""
        return measure(
            self.f.apply if isinstance(self.f, Functional) else self.f,
            params,
            jax.tree.map(jnp.asarray, self.x),
            self.y,
            kernel0,
            step=step,
            first=first,
            unmoved=unmoved,
            top_k=self.top_k,
            shape=layout.output_shape,
            reduction=layout.reduction,
            loss=self.loss,
            descent=None if descent is None else descent.at(step),
            memory=self.memory,
        )

    def reduces(self, params: PyTree) -> bool:
        """Whether `f` contains a reduction, as normalisation layers do; see `warn_if_untrusted_jit`."""
        return _has_reduction(jax.make_jaxpr(self.f)(params, self.x))


def _host_copy(leaf: Any) -> Any:
    """A copy that can be neither donated nor changed by the training loop, and follows the parameters' devices."""
    is_random_key = jnp.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.extended)
    if isinstance(leaf, Tracer) or is_random_key:
        return leaf
    return np.array(leaf)


def _fingerprint(x: PyTree) -> str | None:
    """SHA-256 of the examples; None while they are being traced."""
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(x)):
        return None
    # A chain may be built inside a trace, as inject_hyperparams does.
    with jax.ensure_compile_time_eval():
        return digest_of(jax.tree.map(jnp.asarray, x))


def _has_reduction(jaxpr: Any) -> bool:
    """Whether a jaxpr, or one nested in it, reduces."""
    for equation in open_jaxpr(jaxpr)[0].eqns:
        if equation.primitive.name.startswith("reduce_"):
            return True
        if any(map(_has_reduction, sub_jaxprs(equation))):
            return True
    return False
