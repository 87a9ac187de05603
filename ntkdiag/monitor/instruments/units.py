"""What units do: which are dead or dormant, how heavy the tails of activations are, attention.

What a layer gives is the model's to say, by a function of the same arguments as the one that is
trained: `capture_intermediates` of linen, `sow` of NNX, a filtered module of Equinox.
"""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ntkdiag import _jax, errors
from ntkdiag.estimate import Estimate
from ntkdiag.models.paths import leaves_by_path
from ntkdiag.monitor.instruments.instrument import Estimates, Instrument
from ntkdiag.monitor.probe_layout import ProbeLayout
from ntkdiag.monitor.step_context import StepContext
from ntkdiag.scalars import require_positive

Activations = Callable[[PyTree, PyTree], PyTree]


@dataclasses.dataclass(frozen=True)
class Units(Instrument):
    """Dead and dormant units, and kurtosis, of activations that a model offers; attention likewise.

    Of each array a `[n ... U]` that `activations(params, x)` returns, over the n examples of the
    probe and the axes between:

    - `dead_units/NAME`: the share of its U units that are 0 everywhere.
    - `dormant_units/NAME`: the share with mean |a_u| of at most `dormant` times the mean over all
      units; dead ones among them (Sokar et al. 2023, arXiv 2302.12902).
    - `kurtosis/NAME`: E (a - mean)^4 / var^2 of all its numbers: 3 of a Gaussian.

    Of each array of logits `[... t s]` that `attention(params, x)` returns:

    - `attention_logit/NAME`: the largest.
    - `attention_entropy/NAME`: -sum_s p log p of softmax, the mean over rows, in nats: 0 where
      each token attends to one other. Masked entries, far below the rest, add nothing.

    NAME is the path in the tree that the function returns. `dead_units` and `dormant_units` are
    shares of all units. In no tier: `instruments=("economy", "spectral", Units(activations))`.

    Cost: one forward pass for each of the two functions, F n. Memory: what they return.

    Attributes:
        activations: From parameters and inputs, as f takes them, to a tree of arrays.
        attention: Likewise to logits of attention, before the softmax.
        dormant: Largest share of the mean that is dormant.

    Raises:
        InvalidInputError: Neither function is there, or one cannot be called; or `dormant` is not
            positive.
    """

    activations: Activations | None = None
    attention: Activations | None = None
    dormant: float = 0.025
    name: ClassVar[str] = "units"

    @errors.public
    def __post_init__(self) -> None:
        require_positive(self.dormant, "dormant")
        functions = [each for each in (self.activations, self.attention) if each is not None]
        if not functions or not all(map(callable, functions)):
            raise errors.InvalidInputError(
                argument="Units(activations, attention=None)",
                expected="functions of (params, x) that return arrays, one at least",
                got=", ".join(type(each).__name__ for each in functions) or "none",
                do="Return what layers give: docs/monitor.md has it for each library.",
            )

    def forwards(self, layout: ProbeLayout) -> float:
        """A forward pass of each function."""
        return float((self.activations is not None) + (self.attention is not None))

    def measure(self, context: StepContext, memory: PyTree) -> tuple[Estimates, PyTree]:
        """The numbers of every array."""
        numbers: dict[str, Array] = {}
        if self.activations is not None:
            arrays = _arrays(self.activations(context.params, context.x))
            dead = {name: _sizes(array) == 0.0 for name, array in arrays.items()}
            dormant = {name: self._are_dormant(array) for name, array in arrays.items()}
            numbers |= {f"kurtosis/{name}": kurtosis(array) for name, array in arrays.items()}
            numbers |= _shares("dead_units", dead) | _shares("dormant_units", dormant)
        if self.attention is not None:
            for name, logits in _arrays(self.attention(context.params, context.x)).items():
                numbers[f"attention_logit/{name}"] = logits.max()
                numbers[f"attention_entropy/{name}"] = _entropy(logits)
        return {name: Estimate.exact(number) for name, number in numbers.items()}, memory

    def _are_dormant(self, array: Float[Array, "... U"]) -> Array:
        """Which units are dormant."""
        sizes = _sizes(array)
        return sizes <= self.dormant * sizes.mean()


def _arrays(tree: PyTree) -> dict[str, Array]:
    """The arrays of real numbers in a tree by their paths, in float32 at least."""
    arrays = {}
    for path, leaf in leaves_by_path(tree).items():
        if jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.ndim > 0:
            arrays[path] = jnp.asarray(leaf, _jax.at_least_float32(leaf.dtype))
    return arrays


def _sizes(array: Float[Array, "... U"]) -> Float[Array, " U"]:
    """mean |a| of each unit."""
    return jnp.abs(array).reshape(-1, array.shape[-1]).mean(axis=0)


def _shares(quantity: str, flags: dict[str, Array]) -> dict[str, Array]:
    """The share of units in each layer for which something is true, and in all of them."""
    shares = {f"{quantity}/{name}": of.mean() for name, of in flags.items()}
    if flags:
        shares[quantity] = jnp.concatenate(list(flags.values())).mean()
    return shares


def kurtosis(array: Array) -> Array:
    """E (a - mean)^4 / var^2; NaN of a constant."""
    centred = array - array.mean()
    return (centred**4).mean() / jnp.square((centred**2).mean())


def _entropy(logits: Float[Array, "... s"]) -> Array:
    """The mean over rows of the entropy of softmax, in nats."""
    logs = jax.nn.log_softmax(logits, axis=-1)
    weights = jnp.exp(logs)
    return -jnp.where(weights > 0.0, weights * logs, 0.0).sum(axis=-1).mean()
