"""One small convolutional network in three libraries: conv 16, pool, conv 32, pool, dense 10; 6,090 parameters."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

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

    model: Any
    functional: Functional
    saved: Callable[[Any], Any]


def build(library: str, seed: int) -> DemoModel:
    """Initialise the network.

    Args:
        library: ``"linen"``, ``"equinox"`` or ``"nnx"``.
        seed: Of the initialisation.

    Returns:
        The model.
    """
    return {"linen": _linen, "equinox": _equinox, "nnx": _nnx}[library](seed)


def _linen(seed: int) -> DemoModel:
    from flax import linen as nn

    class DigitsNet(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
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
            self.convs = nnx.List(
                [
                    nnx.Conv(i, o, (3, 3), rngs=rngs)
                    for i, o in zip((1, *WIDTHS), WIDTHS, strict=False)
                ]
            )
            self.head = nnx.Linear(4 * WIDTHS[-1], 10, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            for conv in self.convs:
                x = nnx.avg_pool(nnx.relu(conv(x)), (2, 2), (2, 2))
            return self.head(x.reshape(x.shape[0], -1))

    model = DigitsNet(nnx.Rngs(seed))
    functional = functionalize(model)
    return DemoModel(
        model, functional, lambda params: nnx.to_pure_dict(nnx.state(functional.restore(params)))
    )


def _equinox(seed: int) -> DemoModel:
    import equinox as eqx

    class DigitsNet(eqx.Module):
        convs: list
        pool: eqx.nn.AvgPool2d
        head: eqx.nn.Linear

        def __init__(self, key: Any):
            keys = jax.random.split(key, 3)
            shapes = zip((1, *WIDTHS), WIDTHS, keys, strict=False)
            self.convs = [eqx.nn.Conv2d(i, o, 3, padding=1, key=key) for i, o, key in shapes]
            self.pool = eqx.nn.AvgPool2d(2, 2)
            self.head = eqx.nn.Linear(4 * WIDTHS[-1], 10, key=keys[2])

        def __call__(self, x: Any) -> Any:
            x = x.transpose(2, 0, 1)  # one example, channels last -> channels first
            for conv in self.convs:
                x = self.pool(jax.nn.relu(conv(x)))
            return self.head(x.ravel())

    model = DigitsNet(jax.random.key(seed))
    functional = functionalize(model)
    return DemoModel(
        model,
        functional,
        lambda params: eqx.filter(functional.restore(params), eqx.is_inexact_array),
    )
