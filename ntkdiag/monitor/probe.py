"""What a monitor measures: model, probe batch, labels and settings."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ntkdiag import _compat, errors
from ntkdiag._compat import open_jaxpr, sub_jaxprs
from ntkdiag.adapters.functional import Functional
from ntkdiag.analysis.curvature import Loss
from ntkdiag.kernels.probe import digest as digest_of  # so that kernels and records name a probe alike
from ntkdiag.kernels.reduction import automatic
from ntkdiag.monitor.checks import check_fit, check_independent, check_settings, output_shape
from ntkdiag.monitor.measure import measure
from ntkdiag.monitor.measurement import Measurement, unmeasured
from ntkdiag.monitor.parameters import as_parameters_of


@dataclasses.dataclass(frozen=True)
class Layout:
    """The static facts about one kernel.

    Attributes:
        n_examples: Probe examples, N.
        n_outputs: Outputs per example, C.
        n_classes: Length of the last axis of the outputs; 1 where there is none beside the examples.
        outputs: Reduction of the kernel.
        dtype: Of the kernel and all numbers.
    """

    n_examples: int
    n_outputs: int
    n_classes: int
    outputs: str
    dtype: Any

    @property
    def size(self) -> int:
        """Rows of the measured kernel."""
        return self.n_examples * (self.n_outputs if self.outputs == "full" else 1)


@dataclasses.dataclass(frozen=True, eq=False)
class Probe:
    """Everything a measurement needs besides the parameters.

    Attributes:
        call: The public call, for messages.
        f: A Functional, or a callable `f(params, x)`.
        x: Probe examples; every leaf has leading axis N.
        y: Labels: `[N]` integer classes, or `[N C]` targets; None leaves the alignment out.
        top_k: Number of eigenvalues.
        learning_rate: A number, an Optax schedule of the step, or None, which leaves the margin out.
        momentum: Coefficient of momentum.
        nesterov: Whether the momentum is Nesterov's.
        loss: The loss that is trained.
        loss_denominator: What its sum is divided by; None for the mean over examples, see `denominator`.
        weight_decay: Decoupled weight decay, per unit of learning rate.
        outputs: Reduction of the kernel, or "auto": full up to 2048 rows, else the mean over outputs.
        memory: Memory budget of the kernel, as `ntk` takes it.
        digest: SHA-256 of the probe examples, to tell two probes apart; None for examples that are being traced.
    """

    call: str
    f: Callable[..., Any]
    x: Any
    y: Any
    top_k: int
    learning_rate: Any
    momentum: float
    nesterov: bool
    loss: Loss
    loss_denominator: float | None
    weight_decay: float
    outputs: str
    memory: Any
    digest: str | None = dataclasses.field(init=False, default=None)
    _verified: bool = dataclasses.field(init=False, default=False)

    def __post_init__(self) -> None:
        check_settings(self)
        object.__setattr__(self, "x", jax.tree.map(_own, self.x))
        object.__setattr__(self, "y", None if self.y is None else np.array(self.y))
        if not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(self.x)):
            with jax.ensure_compile_time_eval():  # a chain may be built inside a trace, as inject_hyperparams does
                object.__setattr__(self, "digest", digest_of(jax.tree.map(jnp.asarray, self.x)))
        if isinstance(self.f, Functional):
            self.layout(self.f.params)
            self.verify(self.f.params)

    @property
    def mark(self) -> np.ndarray:
        """The beginning of the digest, as two integers; 0 for examples that are being traced."""
        return np.frombuffer(bytes.fromhex(self.digest[:16]), np.int32) if self.digest else np.zeros(2, np.int32)

    def parameters(self, params: Any) -> tuple[Any, Any]:
        """See `as_parameters_of`.

        Raises:
            InvalidInputError: When there are no parameters.
        """
        if params is None:
            raise errors.InvalidInputError(
                errors.message(
                    self.call,
                    expected="the parameters at every update",
                    got="params=None",
                    do="Pass them on: tx.update(updates, state, params).",
                )
            )
        return as_parameters_of(self.f, params, call=self.call)

    def layout(self, params: Any) -> Layout:
        """Shapes and reduction of the kernel; nothing is computed.

        Args:
            params: Parameters in the structure `f` takes.

        Returns:
            The layout.
        """
        output = output_shape(self, params)
        n_examples, n_outputs = output.shape[0], int(np.prod(output.shape[1:]))
        n_classes = output.shape[-1] if len(output.shape) > 1 else 1
        outputs = self.outputs
        if outputs == "auto":
            outputs = automatic(n_examples, n_outputs)
        layout = Layout(n_examples, n_outputs, n_classes, outputs, _compat.at_least_float32(output.dtype))
        check_fit(self, layout)
        return layout

    def verify(self, params: Any) -> None:
        """Check once, at the first parameters that are not traced, that examples do not interact.

        Args:
            params: Parameters in the structure `f` takes.
        """
        traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((params, self.x)))
        if not (traced or self._verified):
            check_independent(self, params)
            object.__setattr__(self, "_verified", True)

    def are_classes(self, layout: Layout) -> bool:
        """Whether the labels are class numbers: one for every example, and for every position of it."""
        positions = layout.n_outputs // layout.n_classes
        one_each = self.y.ndim == 1 if positions == 1 else self.y.size == layout.n_examples * positions
        return one_each and layout.n_classes > 1 and np.issubdtype(self.y.dtype, np.integer)

    def denominator(self, layout: Layout) -> float:
        """What the sum of the loss is divided by: for the softmax there is one loss at every position."""
        if self.loss_denominator is not None:
            return self.loss_denominator
        positions = layout.n_outputs // layout.n_classes if self.loss == "cross_entropy" else 1
        return float(layout.n_examples * positions)

    def blank(self, layout: Layout) -> tuple[Measurement, jax.Array]:
        """The measurement, all NaN, and the reference kernel `[K K]` before the first measurement.

        The kernel is 0, for wrappers that choose between states by arithmetic, as `optax.contrib.sam`: 0 * NaN is NaN.
        """
        return unmeasured(self.top_k, layout.dtype), jnp.zeros((layout.size, layout.size), layout.dtype)

    def measure(
        self, params: Any, layout: Layout, kernel0: jax.Array, *, step: Any, first: Any, unmoved: Any, rate: Any = None
    ) -> tuple[Measurement, jax.Array]:
        """`measure` on this probe.

        Args:
            params: Parameters in the structure `f` takes.
            layout: The layout.
            kernel0: The kernel drift is measured from.
            step: The step.
            first: True when no kernel has been measured yet.
            unmoved: False when `f` holds arrays fixed that have moved.
            rate: A learning rate that replaces the probe's own.

        Returns:
            The measurement and the new reference kernel.
        """
        rate = self.learning_rate if rate is None else rate
        return measure(
            self.f.apply if isinstance(self.f, Functional) else self.f,
            params,
            jax.tree.map(jnp.asarray, self.x),
            self._targets(layout),
            kernel0,
            step=step,
            first=first,
            unmoved=unmoved,
            top_k=self.top_k,
            outputs=layout.outputs,
            loss=self.loss,
            loss_denominator=self.denominator(layout),
            n_classes=layout.n_classes,
            weight_decay=self.weight_decay,
            learning_rate=rate(step) if callable(rate) else rate,
            momentum=self.momentum,
            nesterov=self.nesterov,
            memory=self.memory,
        )

    def reduces(self, params: Any) -> bool:
        """Whether `f` contains a reduction, as normalisation layers do; see `warn_if_untrusted_jit`."""
        return _has_reduction(jax.make_jaxpr(self.f)(params, self.x))

    def _targets(self, layout: Layout) -> Any:
        if self.y is None:
            return None
        if self.are_classes(layout):
            targets = jax.nn.one_hot(jnp.asarray(self.y), layout.n_classes, dtype=layout.dtype)
            return targets.reshape(layout.n_examples, layout.n_outputs)
        return jnp.asarray(self.y, layout.dtype).reshape(layout.n_examples, layout.n_outputs)


def _own(leaf: Any) -> Any:
    # A host copy: it can be neither donated nor changed by the training loop, and follows the parameters' devices.
    if isinstance(leaf, Tracer) or jnp.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.extended):
        return leaf
    return np.array(leaf)


def _has_reduction(jaxpr: Any) -> bool:
    equations = open_jaxpr(jaxpr)[0].eqns
    return any(
        equation.primitive.name.startswith("reduce_") or any(map(_has_reduction, sub_jaxprs(equation)))
        for equation in equations
    )
