"""Linen: batch normalization held to given statistics, and dropout without effect.

Calls of `BatchNorm` are intercepted while the model runs, whatever its switches say: the layer is
told to use its running statistics, or to update them with momentum 0, so that they become those of
the batch. Layers with dropout are called with a rate of 0, and `BatchNorm` without an axis of
devices: the batch at hand is the whole batch.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import jax
from flax import linen as nn
from jaxtyping import PyTree

from ntkdiag.models.mode import require_batch_norm

# The names that lead to a layer from the top of its model.
LayerPath: TypeAlias = tuple[str, ...]
# The attributes of layers that neither drop nor wait for other devices.
_BY_ITSELF: dict[type[nn.Module], dict[str, PyTree]] = {
    nn.Dropout: {"rate": 0.0},
    nn.MultiHeadDotProductAttention: {"dropout_rate": 0.0},
    nn.BatchNorm: {"axis_name": None},
}


@contextlib.contextmanager
def running_statistics() -> Iterator[None]:
    """Let every BatchNorm that is called inside use its running statistics."""
    with _intercepted(use_running_average=True, attributes={}, called=set()):
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


def statistics_of_batch(
    run: Callable[..., tuple[PyTree, dict[str, PyTree]]], variables: dict[str, PyTree], x: PyTree
) -> dict[str, PyTree]:
    """The collections with the statistics that a training step on `x` normalizes with."""
    called: set[LayerPath] = set()
    # With momentum 0 the running statistics become those of the batch. A layer that uses running
    # ones in training, too, keeps them.
    attributes = {"momentum": 0.0, "axis_name": None}
    with _intercepted(use_running_average=None, attributes=attributes, called=called):
        _, written = run(variables, x, {})
    require_batch_norm(bool(called))
    collections = {}
    for name, tree in variables.items():
        if name in written:
            collections[name] = _with_updates_at(called, tree, written[name], path=())
    return collections


def _with_updates_at(
    layers: set[LayerPath], tree: PyTree, written: PyTree, path: LayerPath
) -> PyTree:
    """Take what was written by the given layers and by nothing else."""
    if path in layers:
        # Fixed statistics have no gradient, also where they are computed inside one.
        return jax.tree.map(jax.lax.stop_gradient, written)
    if not isinstance(tree, Mapping):
        return tree
    subtrees = {}
    for key, subtree in tree.items():
        subtrees[key] = _with_updates_at(layers, subtree, written[key], (*path, key))
    return subtrees


@contextlib.contextmanager
def _intercepted(
    *, use_running_average: bool | None, attributes: dict[str, PyTree], called: set[LayerPath]
) -> Iterator[None]:
    """Call every BatchNorm with these attributes and, unless None, this switch; note its path."""

    def call(
        next_call: Callable[..., PyTree],
        args: tuple[PyTree, ...],
        kwargs: dict[str, PyTree],
        context: nn.module.InterceptorContext,
    ) -> PyTree:
        norm = context.module
        if not isinstance(norm, nn.BatchNorm) or context.method_name != "__call__":
            return next_call(*args, **kwargs)
        called.add(norm.path)
        if use_running_average is None:
            with _changed(norm, attributes):
                return next_call(*args, **kwargs)
        # The switch is given as an argument; Flax refuses it twice: the attribute has to be None.
        with _changed(norm, {**attributes, "use_running_average": None}):
            # Of the positional arguments only x: the other one is the switch.
            return next_call(args[0], **{**kwargs, "use_running_average": use_running_average})

    with nn.intercept_methods(call):
        yield


@contextlib.contextmanager
def _changed(layer: nn.Module, attributes: Mapping[str, PyTree]) -> Iterator[None]:
    """Give a layer other attributes for one call, which Flax lets nobody do."""
    before = {name: getattr(layer, name) for name in attributes}
    # The layer is a clone that lives as long as this call of the model; only its public setattr is
    # frozen.
    _set_attributes(layer, attributes)
    try:
        yield
    finally:
        _set_attributes(layer, before)


def _set_attributes(layer: nn.Module, attributes: Mapping[str, PyTree]) -> None:
    """Set attributes of a layer past its public setattr."""
    for name, value in attributes.items():
        object.__setattr__(layer, name, value)
