"""One step of training, as the instruments of a monitor see it."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from ntkdiag.monitor.subject import Subject
from ntkdiag.monitor.sweep import Sweep, sweep

if TYPE_CHECKING:
    from ntkdiag.monitor.optimizer.reading import DescentReading


@dataclasses.dataclass(frozen=True, eq=False)
class Situation:
    """Everything that may be measured at one step; trees have the structure that `f` takes.

    Attributes:
        subject: Function, probes and loss.
        step: Updates made before this one.
        params: The parameters before the update.
        held: Path -> value in training of what `f` holds fixed; empty where it is left as it was.
        gradient: Of the training step, as the optimizer got it; None where it is not at hand.
        update: What the optimizer adds to the parameters; None where it is not at hand.
        reading: What the update tells about the optimizer; None where there is no update rule.
        key: Random key of this step.
        measurements: Measurements made before.
    """

    subject: Subject
    step: Int[Array, ""]
    params: PyTree
    held: Mapping[str, PyTree]
    gradient: PyTree | None
    update: PyTree | None
    reading: "DescentReading | None"
    key: Array
    measurements: Int[Array, ""]

    def f(self, params: PyTree, x: PyTree) -> Float[Array, "n *o"]:
        """The outputs of the model on some examples, with the values in training of what is held."""
        return self.subject.evaluate(params, x, self.held)

    def loss_of(self, outputs: Float[Array, "n *o"], y: PyTree) -> Float[Array, ""]:
        """The loss on some examples of the probe; only where one was named."""
        assert self.subject.loss is not None
        return self.subject.loss(outputs, y)

    @functools.cached_property
    def sweep(self) -> Sweep:
        """The one pass over the probe that the instruments of the economy tier share."""
        return sweep(self)

    @functools.cached_property
    def moved(self) -> PyTree:
        """The parameters after the update; only where there is one."""
        return jax.tree.map(lambda p, u: (p + u).astype(p.dtype), self.params, self.update)

    def random_key(self, name: str) -> Array:
        """A key of this step that no other instrument has."""
        number = sum(ord(letter) * 31**place for place, letter in enumerate(name)) % 2**31
        return jax.random.fold_in(self.key, number)


def blank(tree: PyTree) -> PyTree:
    """Zeros like a tree, in float32 at least."""
    return jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, jnp.promote_types(leaf.dtype, jnp.float32)), tree
    )
