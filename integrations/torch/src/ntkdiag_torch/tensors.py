"""Tensors of PyTorch <-> arrays, and trees of them."""

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import torch

from ntkdiag import errors

# Dtypes that NumPy has by ml_dtypes, and what carries their bits.
_CARRIERS = {1: torch.uint8, 2: torch.uint16}


def to_numpy(tensor: torch.Tensor, name: str) -> np.ndarray:
    """The numbers of a tensor on the host, of the same dtype; they may share its memory."""
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise errors.InvalidInputError(
            expected="dense tensors",
            got=f"{name}, which is {'quantized' if tensor.is_quantized else tensor.layout}",
            do="Make it dense first: tensor.to_dense() or tensor.dequantize().",
        )
    if tensor.is_meta:
        raise errors.InvalidInputError(
            expected="tensors with values",
            got=f"{name} on the device meta, which has none",
            do='Give it memory and values: module.to_empty(device="cpu"), then '
            "module.load_state_dict(...).",
        )
    # From any device to the host: CUDA tensors are copied.
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    dtype_name = str(tensor.dtype).removeprefix("torch.")
    if hasattr(ml_dtypes, dtype_name):
        bits = tensor.contiguous().view(_CARRIERS[tensor.element_size()])
        return bits.numpy().view(getattr(ml_dtypes, dtype_name))
    return tensor.numpy()


def to_tensor(array: Any) -> torch.Tensor:
    """An array as a tensor of the same dtype, with memory of its own."""
    array = np.array(array, order="C")
    if hasattr(ml_dtypes, array.dtype.name):
        bits = torch.from_numpy(array.view(f"u{array.itemsize}"))
        return bits.view(getattr(torch, array.dtype.name))
    return torch.from_numpy(array)


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply a function to the leaves of tuples, lists, mappings (as dictionaries) and None."""
    if tree is None:
        return None
    if isinstance(tree, Mapping):
        return {key: map_leaves(function, value) for key, value in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):  # a named tuple
        return type(tree)(*(map_leaves(function, value) for value in tree))
    if isinstance(tree, tuple | list):
        return type(tree)(map_leaves(function, value) for value in tree)
    return function(tree)
