"""Batch normalisation of linen held to given statistics, whatever its model's switches say.

Calls of `BatchNorm` are intercepted while the model runs: the layer is told to use its running
statistics, or to update them with momentum 0, so that they become those of the batch.
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


@contextlib.contextmanager
def running_statistics() -> Iterator[None]:
    """Let every BatchNorm that is called inside use its running statistics."""
    with _intercepted(use_running_average=True, attributes={}, called=set()):
        yield


def statistics_of_batch(
    run: Callable[..., tuple[PyTree, dict[str, PyTree]]], variables: dict[str, PyTree], x: PyTree
) -> dict[str, PyTree]:
    """The collections that a training step on `x` writes, with the statistics it normalises with.

    `run` is `(variables, x, kwargs) -> (outputs, written collections)` in train mode.
    """
    called: set[LayerPath] = set()
    # With momentum 0 the running statistics become those of the batch.
    with _intercepted(use_running_average=False, attributes={"momentum": 0.0}, called=called):
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
    *, use_running_average: bool, attributes: dict[str, float | None], called: set[LayerPath]
) -> Iterator[None]:
    """Call every BatchNorm with this switch and these attributes, and note its path in `called`."""
    # The switch is given as an argument; Flax refuses it twice, so the attribute has to be None.
    attributes = {"use_running_average": None, **attributes}

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
        before = {name: getattr(norm, name) for name in attributes}
        # The layer is a clone that lives as long as this call of the model; only its public
        # setattr is frozen.
        _set_attributes(norm, attributes)
        try:
            # Of the positional arguments only x: the other one is the switch.
            return next_call(args[0], **{**kwargs, "use_running_average": use_running_average})
        finally:
            _set_attributes(norm, before)

    with nn.intercept_methods(call):
        yield


def _set_attributes(norm: nn.BatchNorm, attributes: Mapping[str, PyTree]) -> None:
    """Set attributes of a layer, which Flax lets nobody do."""
    for name, value in attributes.items():
        object.__setattr__(norm, name, value)
