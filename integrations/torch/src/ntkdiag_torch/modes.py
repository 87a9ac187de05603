"""The mode of a module, and the statistics that a training step would normalise with."""

from collections.abc import Callable
from typing import Any

import torch

from ntkdiag import errors
from ntkdiag.models.mode import Mode, require_batch_norm

# What drops at random while training, each with the name of its probability.
_DROPOUT = {
    torch.nn.modules.dropout._DropoutNd: "p",
    torch.nn.MultiheadAttention: "dropout",
    torch.nn.RNNBase: "dropout",
}


def switch(copy: torch.nn.Module, mode: Mode) -> torch.nn.Module:
    """Switch a copy of a module, which nobody else holds, to evaluation or training."""
    copy.train(mode.trains)
    if mode.name == "eval":
        return copy
    dropping = []
    for path, module in copy.named_modules():
        for kind, probability in _DROPOUT.items():
            if isinstance(module, kind) and getattr(module, probability) > 0:
                dropping.append(path or type(module).__name__)
                setattr(module, probability, 0.0)
    if mode.name == "dropout" or (dropping and not mode.without_dropout):
        raise errors.InvalidInputError(
            expected='mode="eval", or mode="train" of a module without dropout: PyTorch draws '
            "masks from a generator that is no argument of the module",
            got=f"mode={mode.name!r} and {', '.join(dropping[:8]) or 'no dropout'}",
            do='Leave mode= out, or set the probabilities to 0 in a copy for mode="train".',
        )
    if mode.statistics is not None:
        require_batch_norm(bool(batch_norms(copy)))
    return copy


def batch_norms(module: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The layers of batch normalisation with running statistics, by name."""
    norms = {}
    for name, layer in module.named_modules():
        is_norm = isinstance(layer, torch.nn.modules.batchnorm._BatchNorm)
        if is_norm and layer.running_mean is not None:
            norms[name] = layer
    return norms


def collecting_statistics(module: torch.nn.Module) -> Callable[..., dict[str, torch.Tensor]]:
    """A call of a module in train mode that returns the statistics of its batch, by buffer."""

    def forward(
        tensors: dict[str, Any], args: tuple, kwargs: dict[str, Any]
    ) -> dict[str, torch.Tensor]:
        statistics: dict[str, torch.Tensor] = {}
        handles = []
        for name, norm in batch_norms(module).items():

            def collect(norm: torch.nn.Module, inputs: tuple, name: str = name) -> None:
                # [n c ...] -> [c]; a step normalises by the variance over n, not over n - 1.
                x = inputs[0]
                axes = [axis for axis in range(x.ndim) if axis != 1]
                statistics[f"{name}.running_mean".lstrip(".")] = x.mean(axes)
                statistics[f"{name}.running_var".lstrip(".")] = x.var(axes, correction=0)

            handles.append(norm.register_forward_pre_hook(collect))
        try:
            torch.func.functional_call(module, tensors, args, kwargs)
        finally:
            for handle in handles:
                handle.remove()
        return statistics

    return forward
