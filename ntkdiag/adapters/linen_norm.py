"""Batch normalisation of linen held to given statistics, whatever the switches of the model around it say."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from ntkdiag.adapters.mode import require_normalisation


@contextlib.contextmanager
def running() -> Iterator[None]:
    """Let every BatchNorm that is called inside use its running statistics, also where its model trains."""
    with _calls(use_running_average=True, attributes={"use_running_average": None}, seen=[]):
        yield


def of_batch(run: Callable[..., tuple[Any, Any]], variables: dict[str, Any], x: Any) -> dict[str, Any]:
    """Compute the statistics that a training step on `x` would normalise with.

    Args:
        run: `(variables, x, kwargs) -> (outputs, updated collections)` in train mode.
        variables: All collections.
        x: The batch.

    Returns:
        The collections that were written, with the statistics of the batch in place of the running ones.
    """
    seen: list[tuple[str, ...]] = []
    # With momentum 0 the running statistics become those of the batch.
    with _calls(use_running_average=False, attributes={"use_running_average": None, "momentum": 0.0}, seen=seen):
        _, written = run(variables, x, {})
    require_normalisation(bool(seen), call="functionalize(module, variables, statistics=x)")
    rest = {name: tree for name, tree in variables.items() if name in written}
    return {name: _placed(tree, written[name], seen) for name, tree in rest.items()}


def _placed(tree: Any, updated: Any, seen: list[tuple[str, ...]], path: tuple[str, ...] = ()) -> Any:
    """Take the updates of the normalisation layers and of nothing else."""
    if path in seen:
        return jax.tree.map(jax.lax.stop_gradient, updated)
    if not isinstance(tree, Mapping):
        return tree
    return {key: _placed(value, updated[key], seen, (*path, key)) for key, value in tree.items()}


@contextlib.contextmanager
def _calls(*, use_running_average: bool, attributes: dict[str, Any], seen: list[tuple[str, ...]]) -> Iterator[None]:
    from flax import linen as nn

    def call(next_call: Callable[..., Any], args: tuple, kwargs: dict, context: Any) -> Any:
        norm = context.module
        if not isinstance(norm, nn.BatchNorm) or context.method_name != "__call__":
            return next_call(*args, **kwargs)
        seen.append(norm.path)
        own = {name: getattr(norm, name) for name in attributes}
        # The layer is a clone that lives as long as this call of the model; only its public setattr is frozen.
        for name, value in attributes.items():
            object.__setattr__(norm, name, value)
        try:
            return next_call(args[0], **{**kwargs, "use_running_average": use_running_average})
        finally:
            for name, value in own.items():
                object.__setattr__(norm, name, value)

    with nn.intercept_methods(call):
        yield
