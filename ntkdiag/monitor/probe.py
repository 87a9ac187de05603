"""What a monitor measures: model, probe batch, labels and settings, checked before training starts."""

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ntkdiag import errors
from ntkdiag._compat import open_jaxpr, sub_jaxprs
from ntkdiag.monitor.measure import Loss, measure
from ntkdiag.monitor.measurement import Measurement, unmeasured
from ntkdiag.monitor.parameters import as_parameters_of

FULL_KERNEL_LIMIT = 2048  # rows of the full kernel up to which it is the default
REDUCTIONS = ("full", "mean", "trace", "sum-of-logits")


@dataclasses.dataclass(frozen=True)
class Layout:
    """The static facts about one kernel: what is measured, and in which shape."""

    n_examples: int
    n_outputs: int
    outputs: str
    dtype: Any

    @property
    def size(self) -> int:
        """Rows of the measured kernel."""
        return self.n_examples * (self.n_outputs if self.outputs == "full" else 1)


@dataclasses.dataclass(frozen=True)
class Probe:
    """Everything a measurement needs besides the parameters.

    Attributes:
        call: The public call, for messages.
        f: `f(params, x)`: a Functional or a callable.
        x: Probe examples; every leaf has leading axis N.
        y: Labels: `[N]` integer classes, or `[N C]` or `[N]` targets; None leaves the alignment out.
        top_k: Number of eigenvalues.
        learning_rate: A number, an Optax schedule of the step, or None, which leaves the margin out.
        momentum: Coefficient of momentum, 0 to 1.
        nesterov: Whether the momentum is Nesterov's.
        loss: The loss that is trained: "mse", 0.5 * sum of squares per example, or "cross-entropy"; mean over examples.
        outputs: Reduction of the kernel, or "auto": full up to 2048 rows, else the mean over outputs.
        memory: Memory budget of the kernel, as `ntk` takes it.
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
    outputs: str
    memory: Any

    def __post_init__(self) -> None:
        _check_settings(self)
        object.__setattr__(self, "x", jax.tree.map(_own, self.x))
        object.__setattr__(self, "y", None if self.y is None else _own(self.y))

    def parameters(self, params: Any) -> Any:
        """The parameters in the structure `f` takes them, from the optimizer's own.

        Raises:
            StructureError: When they are not the parameters of `f`.
        """
        return as_parameters_of(self.f, params, call=self.call)

    def require(self, params: Any) -> None:
        """Refuse an update without parameters.

        Raises:
            InvalidInputError: When the optimizer passed none.
        """
        if params is None:
            raise self._error(
                expected="the parameters in update(updates, state, params)",
                got="params=None",
                do="Pass them: tx.update(grads, opt_state, params).",
            )

    def layout(self, params: Any) -> Layout:
        """Shapes and reduction of the kernel; nothing is computed.

        Args:
            params: Parameters in the structure `f` takes.

        Returns:
            The layout.

        Raises:
            InvalidInputError: When model, probe, labels and settings do not fit together.
        """
        output = self._output_shape(params)
        n_examples, n_outputs = output.shape[0], int(np.prod(output.shape[1:]))
        outputs = self.outputs
        if outputs == "auto":
            outputs = "full" if n_examples * n_outputs <= FULL_KERNEL_LIMIT else "mean"
        dtype = jnp.promote_types(output.dtype, jnp.float32)
        layout = Layout(n_examples, n_outputs, outputs, dtype)
        self._check(layout)
        return layout

    def labels(self, layout: Layout) -> Any:
        """Labels as `[N C]` floats, classes as one-hot rows; None without labels."""
        if self.y is None:
            return None
        if self._are_classes(layout):
            return jax.nn.one_hot(jnp.asarray(self.y), layout.n_outputs, dtype=layout.dtype)
        return jnp.asarray(self.y, layout.dtype).reshape(layout.n_examples, layout.n_outputs)

    def blank(self, layout: Layout) -> tuple[Measurement, jax.Array]:
        """The measurement and the reference kernel `[K K]` before the first measurement, all NaN."""
        return unmeasured(self.top_k, layout.dtype), jnp.full((layout.size, layout.size), jnp.nan, layout.dtype)

    def measure(self, params: Any, kernel0: jax.Array, *, step: Any, first: Any, learning_rate: Any = None):
        """`measure` on this probe.

        Args:
            params: Parameters in the structure `f` takes.
            kernel0: The kernel drift is measured from.
            step: The step.
            first: True when no kernel has been measured yet.
            learning_rate: Replaces the probe's own.

        Returns:
            The measurement and the new reference kernel.
        """
        layout = self.layout(params)
        rate = self.learning_rate if learning_rate is None else learning_rate
        return measure(
            self.f,
            params,
            jax.tree.map(jnp.asarray, self.x),
            self.labels(layout),
            kernel0,
            step=step,
            first=first,
            top_k=self.top_k,
            outputs=layout.outputs,
            loss=self.loss,
            learning_rate=rate(step) if callable(rate) else rate,
            momentum=self.momentum,
            nesterov=self.nesterov,
            memory=self.memory,
        )

    def reduces(self, params: Any) -> bool:
        """Whether `f` contains a reduction, as normalisation layers do; see `warn_if_untrusted_jit`."""
        return _has_reduction(jax.make_jaxpr(self.f)(params, self.x))

    def digest(self) -> str | None:
        """SHA-256 of the probe examples, to tell two probes apart; None for examples that are being traced."""
        digest = hashlib.sha256()
        for leaf in jax.tree.leaves(self.x):
            if isinstance(leaf, Tracer):
                return None
            array = np.asarray(leaf)
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def _are_classes(self, layout: Layout) -> bool:
        return self.y.ndim == 1 and layout.n_outputs > 1 and np.issubdtype(self.y.dtype, np.integer)

    def _output_shape(self, params: Any) -> Any:
        try:
            output = jax.eval_shape(self.f, params, self.x)
        except Exception as error:
            raise self._error(
                expected="f(params, x) to run on the probe",
                got=f"{type(error).__name__}: {error}",
                do="Check the shape of x and that params are those f takes.",
            ) from error
        leaves = jax.tree.leaves(output)
        n_examples = jax.tree.leaves(self.x)[0].shape[0]
        if len(leaves) != 1 or leaves[0].ndim < 1 or leaves[0].shape[0] != n_examples:
            raise self._error(
                expected=f"f(params, x) to return one array with the {n_examples} examples of x on its leading axis",
                got=", ".join(str(leaf.shape) for leaf in leaves) or "nothing",
                do="Wrap f so that it returns the outputs to diagnose.",
            )
        return leaves[0]

    def _check(self, layout: Layout) -> None:
        n, c = layout.n_examples, layout.n_outputs
        if self.top_k > layout.size:
            raise self._error(
                expected=f"top_k of at most {layout.size}, the rows of the {layout.outputs} kernel",
                got=f"top_k={self.top_k}",
                do="Lower top_k or use a larger probe.",
            )
        if self.loss == "cross-entropy" and c < 2:
            raise self._error(
                expected='at least two logits per example for loss="cross-entropy"',
                got=f"{c} output",
                do="A single logit has no softmax: let f return the logits of both classes.",
            )
        if self.y is not None and not self._are_classes(layout) and (self.y.shape[:1] != (n,) or self.y.size != n * c):
            raise self._error(
                expected=f"y of shape ({n}, {c}), or ({n},) integer classes",
                got=f"{self.y.dtype} of shape {self.y.shape}",
                do="y holds one label per probe example.",
            )
        if self.y is not None and self._are_classes(layout) and self.y.shape != (n,):
            raise self._error(
                expected=f"one label for each of the {n} examples of x",
                got=f"{self.y.shape[0]} labels",
                do="x and y are the same examples in the same order.",
            )

    def _error(self, **parts: str) -> errors.InvalidInputError:
        return errors.InvalidInputError(errors.message(self.call, **parts))


def _has_reduction(jaxpr: Any) -> bool:
    equations = open_jaxpr(jaxpr)[0].eqns
    return any(
        equation.primitive.name.startswith("reduce_") or any(map(_has_reduction, sub_jaxprs(equation)))
        for equation in equations
    )


def _own(leaf: Any) -> Any:
    # A host copy: it can be neither donated nor changed by the training loop, and follows the parameters' devices.
    if isinstance(leaf, Tracer) or jnp.issubdtype(jnp.asarray(leaf).dtype, jax.dtypes.extended):
        return leaf
    return np.array(leaf)


def _check_settings(probe: Probe) -> None:
    leaves = jax.tree.leaves(probe.x)
    sizes = {np.shape(leaf)[:1] for leaf in leaves}
    checks = (
        (callable(probe.f), "f to be a Functional or a callable f(params, x)", f"a {type(probe.f).__name__}"),
        (
            len(sizes) == 1 and sizes != {()} and sizes != {(0,)},
            "x of one or more examples, on the leading axis of every leaf",
            f"shapes {[np.shape(leaf) for leaf in leaves]}",
        ),
        (isinstance(probe.top_k, int) and probe.top_k >= 1, "top_k of at least 1", f"top_k={probe.top_k!r}"),
        (0 <= probe.momentum < 1, "momentum from 0 to below 1", f"momentum={probe.momentum!r}"),
        (probe.loss in ("mse", "cross-entropy"), 'loss "mse" or "cross-entropy"', f"loss={probe.loss!r}"),
        (
            probe.outputs in ("auto", *REDUCTIONS),
            f"outputs to be one of {('auto', *REDUCTIONS)}",
            f"outputs={probe.outputs!r}",
        ),
    )
    for right, expected, got in checks:
        if not right:
            raise errors.InvalidInputError(
                errors.message(probe.call, expected=expected, got=got, do="See docs/monitor.md for the arguments.")
            )
