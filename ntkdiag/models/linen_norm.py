"""Linen: batch normalization held to its running statistics, and dropout without effect.

Calls of layers are intercepted while the model runs, whatever its switches say. Layers with dropout
are called with a rate of 0, and `BatchNorm` without an axis of devices: the batch at hand is the
whole batch.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping

from flax import linen as nn
from jaxtyping import PyTree

# The attributes of layers that neither drop nor wait for other devices.
_BY_ITSELF: dict[type[nn.Module], dict[str, PyTree]] = {
    nn.Dropout: {"rate": 0.0},
    nn.MultiHeadDotProductAttention: {"dropout_rate": 0.0},
    nn.BatchNorm: {"axis_name": None},
}


@contextlib.contextmanager
def running_statistics() -> Iterator[None]:
    """Let every BatchNorm that is called inside use its running statistics."""

    def call(
        next_call: Callable[..., PyTree],
        args: tuple[PyTree, ...],
        kwargs: dict[str, PyTree],
        context: nn.module.InterceptorContext,
    ) -> PyTree:
        norm = context.module
        if not isinstance(norm, nn.BatchNorm) or context.method_name != "__call__":
            return next_call(*args, **kwargs)
        # The switch is given as an argument; Flax refuses it twice: the attribute has to be None.
        with _changed(norm, {"use_running_average": None}):
            # Of the positional arguments only x: the other one is the switch.
            return next_call(args[0], **{**kwargs, "use_running_average": True})

    with nn.intercept_methods(call):
        yield


@contextlib.contextmanager
def training_by_itself() -> Iterator[None]:
    """Let dropout drop nothing, and BatchNorm take no other device's batch, where called inside."""

    def call(
        next_call: Callable[..., PyTree],
        args: tuple[PyTree, ...],
        kwargs: dict[str, PyTree],
        context: nn.module.InterceptorContext,
    ) -> PyTree:
        layer = context.module
        attributes = {}
        for kind, changes in _BY_ITSELF.items():
            if isinstance(layer, kind):
                attributes |= changes
        with _changed(layer, attributes):
            return next_call(*args, **kwargs)

    with nn.intercept_methods(call):
        yield


@contextlib.contextmanager
def _changed(layer: nn.Module, attributes: Mapping[str, PyTree]) -> Iterator[None]:
    """Give a layer other attributes for one call, which Flax does not allow."""
    before = {name: getattr(layer, name) for name in attributes}
    # The layer is a clone that lives as long as this call of the model; only its public setattr is
    # frozen.
    for name, value in attributes.items():
        object.__setattr__(layer, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            object.__setattr__(layer, name, value)
