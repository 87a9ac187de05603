"""Batch normalisation of NNX held to given statistics, whatever the switches of the model around it say."""

import functools
from collections.abc import Callable
from typing import Any

from ntkdiag.adapters.mode import require_normalisation


def hold(copy: Any) -> None:
    """Let every BatchNorm of a model use its running statistics.

    Args:
        copy: A model that nobody else holds; it is changed.
    """
    for norm in _norms(copy):
        object.__setattr__(norm, "__class__", _running(type(norm)))


def fix_statistics(copy: Any, run: Callable[[Any], Any]) -> None:
    """Put the statistics that a training step would normalise with in place of the running ones.

    Args:
        copy: A model in train mode that nobody else holds; it is changed.
        run: Calls a model on the batch.
    """
    from flax import nnx

    norms = _norms(copy)
    require_normalisation(bool(norms), call="functionalize(model, statistics=x)")
    measured = nnx.clone(copy)
    for norm in _norms(measured):
        norm.momentum = 0.0  # the running statistics become those of the batch
    run(measured)
    for norm, other in zip(norms, _norms(measured), strict=True):
        norm.mean.set_value(other.mean.get_value())
        norm.var.set_value(other.var.get_value())


def _norms(model: Any) -> list[Any]:
    from flax import nnx

    return [module for _, module in nnx.iter_modules(model) if isinstance(module, nnx.BatchNorm)]


@functools.cache
def _running(kind: type) -> type:
    """Make a kind of BatchNorm that cannot be switched; still a subclass, which models may look for."""

    class Running(kind):
        def __call__(self, x: Any, use_running_average: Any = None, *, mask: Any = None) -> Any:
            return super().__call__(x, use_running_average=True, mask=mask)

    return Running
