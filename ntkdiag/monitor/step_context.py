"""One step of training, as the instruments of a monitor see it.

The function that is trained is linearized once on the probe, and all instruments share that:

    outputs            f(theta)                       one forward pass
    push(v)            J v                            two
    pull(c)            J^T c                          two
    residuals          r = dL / df
    loss_gradient      J^T r
    curve(w)           (d^2 L / df^2) w               none
    predicted_change   J dtheta, dtheta the update

J is the Jacobian of the outputs on the whole probe: where examples interact, as in batch
normalisation, these are the derivatives of training.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from ntkdiag import _jax
from ntkdiag.losses import CrossEntropy, Loss
from ntkdiag.monitor.instruments.random_signs import random_signs, seed_of
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.probe_layout import ProbeLayout
from ntkdiag.optimizer.optimizer_rule import ArrayReading

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, eq=False)
class StepContext:
    """Everything that may be measured at one step; trees have the structure that `f` takes."""

    # The function that is trained, `f(params, x)`, with outputs `[n ...]`.
    f: Callable[[PyTree, PyTree], Float[Array, "n *o"]]
    x: PyTree  # the examples of the probe
    y: PyTree  # their labels as the loss reads them; None without
    loss: Loss | None  # the loss that is trained; None where none was named
    is_joint: bool  # whether examples interact in f
    step: Int[Array, ""] | int  # updates made before this one
    params: PyTree  # the parameters before the update
    gradient: PyTree  # of the training step, as the optimizer got it; None where it is not at hand
    update: PyTree  # what the optimizer adds to the parameters; None where it is not at hand
    # Reads from the update what the optimizer does; see `reading`.
    read: Callable[[], ArrayReading | None]
    # Path -> value in training of what the model holds fixed; empty where it is not known.
    held: Mapping[str, PyTree]
    measurements: Int[Array, ""] | int  # measurements made before
    seed: Int[Array, ""] | int  # of the random numbers of this step
    # What the kernel tier measures: the model as it is evaluated, and held-out examples.
    probe: Probe | None = None
    layout: ProbeLayout | None = None  # shapes of its kernel
    n_train: int | None = None  # examples of the whole training set; None where it is not known
    _shared: dict[Callable, Any] = dataclasses.field(default_factory=dict, init=False, repr=False)

    def once(self, compute: Callable[["StepContext"], T]) -> T:
        """What a function makes of this context, computed once for all who ask for it."""
        if compute not in self._shared:
            self._shared[compute] = compute(self)
        return self._shared[compute]

    def evaluate(self, params: PyTree, x: PyTree) -> Float[Array, "n *o"]:
        """The outputs on some examples, in float32 at least."""
        outputs = self.f(params, x)
        return outputs.astype(_jax.at_least_float32(outputs.dtype))

    @functools.cached_property
    def reading(self) -> ArrayReading | None:
        """What the optimizer does with a gradient; None where there is no update rule."""
        return self.read()

    @property
    def n_examples(self) -> int:
        """Examples of the probe, N."""
        return jax.tree.leaves(self.x)[0].shape[0]

    @property
    def outputs(self) -> Float[Array, "n *o"]:
        """f(theta) on the probe."""
        return self._linearized[0]

    def push(self, tangent: PyTree) -> Float[Array, "n *o"]:
        """J v: how the outputs change along a direction of the parameters."""
        return self._linearized[1](as_parameters(tangent, self.params))

    def pull(self, cotangent: Float[Array, "n *o"]) -> PyTree:
        """J^T c: the gradient of c . f, like the parameters."""
        [gradient] = self._transposed(cotangent)
        return gradient

    @functools.cached_property
    def _linearized(self) -> tuple[Array, Callable[[PyTree], Array]]:
        return jax.linearize(lambda params: self.evaluate(params, self.x), self.params)

    @functools.cached_property
    def _transposed(self) -> Callable[[Array], tuple[PyTree]]:
        return jax.linear_transpose(self._linearized[1], self.params)

    @property
    def residuals(self) -> Float[Array, "n *o"]:
        """r = dL / df; only where a loss was named."""
        return self._loss_linearized[0]

    def curve(self, outputs_tangent: Float[Array, "n *o"]) -> Float[Array, "n *o"]:
        """(d^2 L / df^2) w; only where a loss was named."""
        return self._loss_linearized[1](outputs_tangent)

    def without_constants(self, outputs_tangent: Float[Array, "n *o"]) -> Float[Array, "n *o"]:
        """A change of the outputs without what does not change the loss."""
        if not isinstance(self.loss, CrossEntropy):
            return outputs_tangent
        outputs = self.outputs
        likeliest = jax.nn.one_hot(outputs.argmax(axis=-1), outputs.shape[-1], dtype=outputs.dtype)
        return outputs_tangent - (likeliest * outputs_tangent).sum(axis=-1, keepdims=True)

    @functools.cached_property
    def _loss_linearized(self) -> tuple[Array, Callable[[Array], Array]]:
        return jax.linearize(jax.grad(self.loss_of), self.outputs)

    def loss_of(self, outputs: Float[Array, "n *o"]) -> Float[Array, ""]:
        """The loss of some outputs of the probe."""
        assert self.loss is not None
        return self.loss(outputs, self.y)

    @functools.cached_property
    def loss_gradient(self) -> PyTree:
        """dL / dtheta on the probe, J^T r."""
        return self.pull(self.residuals)

    @functools.cached_property
    def predicted_change(self) -> Float[Array, "n *o"]:
        """J dtheta: the change of the outputs by the update, to first order."""
        return self.push(self.update)

    def moved(self) -> PyTree:
        """The parameters after the update, in their own dtype as in training."""

        def move(param: Array, update: Array) -> Array:
            return (param + update).astype(param.dtype)

        return jax.tree.map(move, self.params, self.update)

    def random_signs(self, name: str, like: Array, part: Array | int = 0) -> Array:
        """Random signs of this step that no other instrument has; others for every part."""
        seed = seed_of(name, self.seed) + jnp.asarray(part).astype(jnp.uint32)
        return random_signs(like.shape, like.dtype, seed)


def as_parameters(tree: PyTree, params: PyTree) -> PyTree:
    """A tree with the dtypes of the parameters, as derivatives of f want it."""
    return jax.tree.map(lambda leaf, param: leaf.astype(param.dtype), tree, params)


def inner_product(a: PyTree, b: PyTree) -> Float[Array, ""]:
    """<a, b> over all leaves, in float32 at least."""
    products = jax.tree.map(_product, a, b)
    return sum(jax.tree.leaves(products), start=jnp.zeros(()))


def squared_norm(tree: PyTree) -> Float[Array, ""]:
    """||a||^2 over all leaves, in float32 at least."""
    return inner_product(tree, tree)


def _product(a: Array, b: Array) -> Array:
    dtype = _jax.at_least_float32(jnp.result_type(a, b))
    return jnp.vdot(a.astype(dtype), b.astype(dtype))
