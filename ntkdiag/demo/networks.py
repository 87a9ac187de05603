"""One small convolutional network of 6,090 parameters in three libraries.

Images [8 8 1] -> conv 16 -> pool [4 4 16] -> conv 32 -> pool [2 2 32] -> dense [10]. Each function
makes the model as a user of that library would write it, and says what that user would save.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, Float, PyTree

from ntkdiag.models import functionalize
from ntkdiag.models.functional import Functional

LIBRARIES: tuple[str, ...] = ("linen", "equinox", "nnx")
WIDTHS = (16, 32)


@dataclasses.dataclass(frozen=True)
class DemoModel:
    """A model of one library with what the demo needs around it.

    Attributes:
        model: The library's own object, as one would hand it to `compare`.
        functional: The same as `f(params, x)`.
        saved: Parameters -> the tree one would save with Orbax in this library.
    """

    model: Any  # a linen module, an NNX model or an Equinox module
    functional: Functional
    saved: Callable[[PyTree], PyTree]


def build(library: str, seed: int) -> DemoModel:
    """Initialise the network.

    Args:
        library: ``"linen"``, ``"equinox"`` or ``"nnx"``.
        seed: Of the initialisation.

    Returns:
        The model.
    """
    builders = {"linen": _linen, "equinox": _equinox, "nnx": _nnx}
    return builders[library](seed)


def _linen(seed: int) -> DemoModel:
    from flax import linen as nn

    class DigitsNet(nn.Module):
        @nn.compact
        def __call__(self, x: Float[Array, "n 8 8 1"]) -> Float[Array, "n 10"]:
            for width in WIDTHS:
                x = nn.avg_pool(nn.relu(nn.Conv(width, (3, 3))(x)), (2, 2), (2, 2))
            return nn.Dense(10)(x.reshape(x.shape[0], -1))

    module = DigitsNet()
    variables = module.init(jax.random.key(seed), jax.numpy.zeros((1, 8, 8, 1)))
    functional = functionalize(module, variables)
    return DemoModel(module, functional, functional.restore)


def _nnx(seed: int) -> DemoModel:
    from flax import nnx

    class DigitsNet(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            first, second = WIDTHS
            self.convs = nnx.List(
                [nnx.Conv(1, first, (3, 3), rngs=rngs), nnx.Conv(first, second, (3, 3), rngs=rngs)]
            )
            # After two poolings, 2 x 2 positions are left of 8 x 8.
            self.head = nnx.Linear(2 * 2 * second, 10, rngs=rngs)

        def __call__(self, x: Float[Array, "n 8 8 1"]) -> Float[Array, "n 10"]:
            for conv in self.convs:
                x = nnx.avg_pool(nnx.relu(conv(x)), (2, 2), (2, 2))
            return self.head(x.reshape(x.shape[0], -1))

    model = DigitsNet(nnx.Rngs(seed))
    functional = functionalize(model)

    def as_saved(params: PyTree) -> PyTree:
        """The arrays of the model in dictionaries, which Orbax reads back without the class."""
        return nnx.to_pure_dict(nnx.state(functional.restore(params)))

    return DemoModel(model, functional, as_saved)


def _equinox(seed: int) -> DemoModel:
    import equinox as eqx

    class DigitsNet(eqx.Module):
        convs: list
        pool: eqx.nn.AvgPool2d
        head: eqx.nn.Linear

        def __init__(self, key: Array):
            first, second = WIDTHS
            key_first, key_second, key_head = jax.random.split(key, 3)
            self.convs = [
                eqx.nn.Conv2d(1, first, 3, padding=1, key=key_first),
                eqx.nn.Conv2d(first, second, 3, padding=1, key=key_second),
            ]
            self.pool = eqx.nn.AvgPool2d(2, 2)
            # After two poolings, 2 x 2 positions are left of 8 x 8.
            self.head = eqx.nn.Linear(2 * 2 * second, 10, key=key_head)

        def __call__(self, x: Float[Array, "8 8 1"]) -> Float[Array, "10"]:
            x = x.transpose(2, 0, 1)  # one example, channels last -> channels first
            for conv in self.convs:
                x = self.pool(jax.nn.relu(conv(x)))
            return self.head(x.ravel())

    model = DigitsNet(jax.random.key(seed))
    functional = functionalize(model)

    def as_saved(params: PyTree) -> PyTree:
        """The module with its floating arrays alone: functions cannot be saved."""
        return eqx.filter(functional.restore(params), eqx.is_inexact_array)

    return DemoModel(model, functional, as_saved)
