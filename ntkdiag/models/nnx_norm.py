"""NNX: batch normalization held to given statistics, and dropout without effect.

The running statistics become those of a batch in one training step with momentum 0, whose new
values are copied. To hold them, every layer gets a class that ignores its switch: a model may set
the switch again while it runs.
"""

from collections.abc import Callable

from flax import nnx
from jaxtyping import PyTree

from ntkdiag.models.mode import require_batch_norm, unswitchable


def hold_statistics(copy: nnx.Module) -> None:
    """Let every BatchNorm of a copy use its running statistics, whatever switches say."""
    # The class is exchanged: the model may set the switch again while it runs.
    for norm in _batch_norms(copy):
        object.__setattr__(norm, "__class__", unswitchable(type(norm), "use_running_average", 1))


def fix_statistics(copy: nnx.Module, run: Callable[[nnx.Module], PyTree]) -> None:
    """Put the statistics with which `run` would normalize in place of those of a copy."""
    norms = _batch_norms(copy)
    require_batch_norm(bool(norms))
    updated = nnx.clone(copy)
    updated_norms = _batch_norms(updated)
    # new = momentum * old + (1 - momentum) * (of the batch)
    for norm in updated_norms:
        norm.momentum = 0.0  # the running statistics become those of the batch
        norm.axis_name = None  # of this batch, not of those of other devices too
    run(updated)
    for norm, updated_norm in zip(norms, updated_norms, strict=True):
        norm.mean.set_value(updated_norm.mean.get_value())
        norm.var.set_value(updated_norm.var.get_value())


def train_by_itself(copy: nnx.Module) -> None:
    """Let dropout drop nothing, and BatchNorm of a copy take no other device's batch."""
    for norm in _batch_norms(copy):
        norm.axis_name = None
    for _, module in nnx.iter_modules(copy):
        if isinstance(module, nnx.Dropout):
            module.rate = 0.0
        elif isinstance(module, nnx.MultiHeadAttention):
            module.dropout_rate = 0.0


def _batch_norms(model: nnx.Module) -> list[nnx.BatchNorm]:
    """The layers of batch normalization in a model, in the order of its graph."""
    return [module for _, module in nnx.iter_modules(model) if isinstance(module, nnx.BatchNorm)]
