"""Tensors of PyTorch <-> NumPy arrays of the same dtype."""

import ml_dtypes
import numpy as np
import torch


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A copy of the numbers of a tensor on the host, of the same dtype."""
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    dtype = getattr(ml_dtypes, str(tensor.dtype).removeprefix("torch."), None)
    if dtype is None:
        return tensor.numpy().copy()  # PyTorch goes on to change tensors in place
    # What NumPy has by ml_dtypes (bfloat16, float8) fits into float32.
    return tensor.float().numpy().astype(dtype)


def to_tensor(array: object) -> torch.Tensor:
    """An array as a tensor with memory of its own; those of ml_dtypes in float32."""
    array = np.array(array)
    is_of_ml_dtypes = hasattr(ml_dtypes, array.dtype.name)
    return torch.from_numpy(array.astype(np.float32) if is_of_ml_dtypes else array)
