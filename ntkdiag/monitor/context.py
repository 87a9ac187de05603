"""What the instruments share: the derivatives of a model at a point, each computed once.

An instrument names the vectors that it wants multiplied, and reads its numbers from the products.
"""

import dataclasses
import functools
import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree, UInt32

from ntkdiag.estimate import Estimate
from ntkdiag.jaxtools import jaxprs
from ntkdiag.jaxtools.precision import at_least_float32
from ntkdiag.losses import CrossEntropy
from ntkdiag.monitor.point import Point, arrays_by_path, rearranged
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.products import Job, Products
from ntkdiag.optimizer.response import Response, Trial

Estimates: TypeAlias = dict[str, Estimate]
# Rows like the outputs that an instrument keeps for the next measurement; zeros before the first.
Rows: TypeAlias = Float[Array, "r n *o"]


@dataclasses.dataclass(frozen=True, eq=False)
class Context:
    """A point as the instruments see it; trees have the structure that `f` takes."""

    f: Callable[[PyTree, PyTree], Float[Array, "n *o"]]  # the function that is trained
    params: PyTree
    x: PyTree  # the examples of the probe
    y: PyTree  # their labels as the loss reads them; None without
    step: Int[Array, ""] | int  # updates made before this point
    is_first: Bool[Array, ""]  # whether there was no measurement before
    probe: Probe  # what is measured
    _point: Point

    @staticmethod
    def of(
        probe: Probe, point: Point, step: Int[Array, ""] | int, is_first: Bool[Array, ""]
    ) -> "Context":
        """The context of a point."""
        # A derivative of a whole training step must not include the diagnostics.
        point = jax.tree.map(
            lambda leaf: jax.lax.stop_gradient(leaf) if hasattr(leaf, "dtype") else leaf, point
        )
        now = jnp.asarray(step, jnp.int32)
        if probe.f is None:  # parameters stand by path
            params = arrays_by_path(point.gradient if point.params is None else point.params)
            if point.params is None:
                params = {path: jnp.full_like(leaf, jnp.nan) for path, leaf in params.items()}
            nothing: Any = None
            return Context(nothing, params, None, None, now, is_first, probe, point)
        matched = probe.match(point)
        f = probe.function(matched.held)
        x, y = jax.tree.map(jnp.asarray, (probe.x, probe.y))
        if probe.loss is not None and y is not None:
            y = probe.loss.read(y, jax.eval_shape(f, matched.params, x).shape)
        return Context(f, matched.params, x, y, now, is_first, probe, point)

    def of_held_out(self) -> "Context":
        """The same point on the held-out examples of the probe, of which nothing is kept."""
        return Context.of(self.probe.of_alignment(), self._point, self.step, jnp.asarray(True))

    def evaluate(self, params: PyTree, x: PyTree) -> Float[Array, "n *o"]:
        """The outputs on some examples, in float32 at least."""
        outputs = self.f(params, x)
        return outputs.astype(at_least_float32(outputs.dtype))

    @property
    def n_examples(self) -> int:
        """Examples of the probe, N."""
        return self.probe.n_examples

    # The model.

    @property
    def outputs(self) -> Float[Array, "n *o"]:
        """f(theta) on the probe."""
        return self._derivatives[0]

    def push(self, tangent: PyTree) -> Float[Array, "n *o"]:
        """J p: how the outputs change along a direction of the parameters."""
        # Derivatives of f want the dtypes of its parameters.
        cast = jax.tree.map(lambda leaf, param: leaf.astype(param.dtype), tangent, self.params)
        return self._derivatives[1](cast)

    def pull(self, cotangent: Float[Array, "n *o"]) -> PyTree:
        """J^T c: the gradient of c . f, like the parameters."""
        return self._derivatives[2](cotangent)

    @functools.cached_property
    def _derivatives(self) -> tuple[Array, Callable[[PyTree], Array], Callable[[Array], PyTree]]:
        """Outputs, push and pull."""

        def evaluate(params: PyTree) -> Array:
            return self.evaluate(params, self.x)

        try:
            outputs, push = jax.linearize(evaluate, self.params)
            # In a trace what has no such rule is an error only once it is compiled.
            if jaxprs.contains(jax.make_jaxpr(push)(self.params), "custom_lin"):
                return _by_pull_alone(evaluate, self.params)
            transposed = jax.linear_transpose(push, self.params)
        except Exception:  # of `jax.custom_vjp`, or of a primitive that has no such rule
            return _by_pull_alone(evaluate, self.params)
        return outputs, push, lambda cotangent: transposed(cotangent)[0]

    # The loss.

    @property
    def residuals(self) -> Float[Array, "n *o"]:
        """r = dL / df; only where a loss was named."""
        return self._loss_derivatives[0]

    def curve(self, outputs_tangent: Float[Array, "n *o"]) -> Float[Array, "n *o"]:
        """(d^2 L / df^2) w; only where a loss was named."""
        return self._loss_derivatives[1](outputs_tangent)

    @functools.cached_property
    def _loss_derivatives(self) -> tuple[Array, Callable[[Array], Array]]:
        return jax.linearize(jax.grad(self.loss_of), self.outputs)

    def loss_of(self, outputs: Float[Array, "n *o"]) -> Float[Array, ""]:
        """The loss of some outputs of the probe."""
        assert self.probe.loss is not None
        return self.probe.loss(outputs, self.y)

    def without_constants(self, outputs_tangent: Float[Array, "n *o"]) -> Float[Array, "n *o"]:
        """A change of the outputs without what does not change the loss."""
        if not isinstance(self.probe.loss, CrossEntropy):
            return outputs_tangent
        outputs = self.outputs
        likeliest = jax.nn.one_hot(outputs.argmax(axis=-1), outputs.shape[-1], dtype=outputs.dtype)
        return outputs_tangent - (likeliest * outputs_tangent).sum(axis=-1, keepdims=True)

    # The optimizer.

    @functools.cached_property
    def gradient(self) -> PyTree:
        """The gradient that the optimizer got; that of the probe where none is at hand, or None."""
        if self._point.gradient is not None:
            return self._as_params(self._point.gradient)
        return self.pull(self.residuals) if self.probe.has_loss else None

    @property
    def has_gradient_of_training(self) -> bool:
        """Whether the gradient is one that the optimizer got, and not that of the probe."""
        return self._point.gradient is not None

    @functools.cached_property
    def _trial(self) -> Trial | None:
        """The step that the optimizer would make at this point."""
        point, optimizer = self._point, self.probe.optimizer
        if optimizer is None or point.opt_state is None or self.gradient is None:
            return None
        gradient = point.gradient
        if gradient is None:
            gradient = rearranged(self.gradient, point.params, self.params)
        return Trial(
            optimizer,
            point.opt_state,
            point.params,
            gradient,
            step=self.step,
            extra_args=point.extra_args,
        )

    @property
    def update(self) -> PyTree:
        """What the optimizer would add to the parameters; None where that is not known."""
        return None if self._trial is None else self._as_params(self._trial.updates)

    @property
    def response(self) -> Response | None:
        """What the optimizer makes of a gradient, but for E; None where that is not known."""
        return None if self._trial is None else self._trial.response

    def response_by_parameter(self) -> PyTree:
        """E, like the parameters, computed again at every call."""
        assert self._trial is not None
        return self._as_params(self._trial.by_parameter())

    @property
    def batch_loss(self) -> Float[Array, ""]:
        """The loss that was passed to the optimizer as `value=`; NaN if it is not a number."""
        value: Any = self._point.extra_args.get("value")
        if not hasattr(value, "dtype") or jnp.size(value) != 1:
            return jnp.asarray(jnp.nan, jnp.float32)
        return jnp.asarray(value).reshape(()).astype(jnp.float32)

    def _as_params(self, tree: PyTree) -> PyTree:
        """A tree of the optimizer in the structure of the parameters; zeros for what is missing."""
        if self.probe.f is not None:
            return rearranged(tree, self.params, self.params)
        arrays = arrays_by_path(tree)
        return {path: arrays.get(path, jnp.zeros(())) for path in self.params}

    def random_signs(self, name: str, shape: tuple[int, ...]) -> Array:
        """Random signs of a name, the same at every step.

        JAX's own generator makes programs that take XLA a second to compile. Here the numbers 0, 1,
        ... are mixed by Murmur's finalizer (Appleby 2011, MurmurHash3).
        """
        numbers = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
        seed = jnp.uint32(zlib.crc32(name.encode())) + jnp.uint32(0x9E3779B9)
        bit = _mixed(numbers ^ _mixed(seed)) >> 31
        return 1 - 2 * bit.astype(self.outputs.dtype)


class Instrument:
    """A named measurement; traced by JAX."""

    name: ClassVar[str]

    def lack(self, probe: Probe) -> str | None:
        """Why it cannot measure a probe, as a part of a sentence; None where it can."""
        return None

    def n_rows(self, probe: Probe) -> int:
        """Rows that it keeps from one measurement to the next."""
        return 0

    def jobs(self, context: Context, rows: Rows) -> Sequence[Job]:
        """The vectors that it wants multiplied."""
        return ()

    def read(
        self, context: Context, products: Sequence[Products], rows: Rows
    ) -> tuple[Estimates, Rows]:
        """Its numbers, from the products of its jobs, and the rows that it keeps."""
        return self.numbers(context), rows

    def numbers(self, context: Context) -> Estimates:
        """The numbers of an instrument without jobs; one that has jobs overrides `read` instead."""
        raise NotImplementedError


def _mixed(numbers: UInt32[Array, "*s"]) -> UInt32[Array, "*s"]:
    """Every bit of each number as a mixture of all of its bits."""
    numbers = (numbers ^ (numbers >> 16)) * jnp.uint32(0x85EBCA6B)
    numbers = (numbers ^ (numbers >> 13)) * jnp.uint32(0xC2B2AE35)
    return numbers ^ (numbers >> 16)


def _by_pull_alone(
    f: Callable[[PyTree], Array], params: PyTree
) -> tuple[Array, Callable[[PyTree], Array], Callable[[Array], PyTree]]:
    """The same of a function without a forward derivative: J p is the transpose of c -> J^T c."""
    outputs, back = jax.vjp(f, params)
    blank = jnp.zeros_like(outputs)

    def pull(cotangent: Array) -> PyTree:
        return back(cotangent)[0]

    def push(tangent: PyTree) -> Array:
        _, forward = jax.vjp(pull, blank)
        return forward(tangent)[0]

    return outputs, push, pull
