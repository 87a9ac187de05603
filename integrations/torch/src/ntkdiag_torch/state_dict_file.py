"""A state_dict in a file of `torch.save`, read without running what is in it."""

import pickle
import zipfile
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import torch

from ntkdiag.checkpoints.formats import checkpoint_error

# What scripts call the state_dict of the model beside that of the optimizer.
_KEYS_OF_THE_MODEL = ("state_dict", "model_state_dict", "model")


def read_state_dict(path: str, at: str | None = None) -> dict[str, np.ndarray]:
    """Read the tensors of a state_dict by name: parameters and buffers.

    `torch.load(weights_only=True)` makes tensors and containers and nothing else.

    Args:
        path: A file of `torch.save`.
        at: Where in it the state_dict is, by keys such as ``"ema/model"``. None: the file is one,
            or has it under ``"state_dict"``, ``"model_state_dict"`` or ``"model"``.

    Returns:
        Name -> array on the host, of the dtype that was saved. Saved on CUDA makes no difference.

    Raises:
        CheckpointError: The file holds objects that are no tensors, or no state_dict there.
    """
    try:
        saved = torch.load(
            path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
        )
    except pickle.UnpicklingError as error:
        first_line = str(error).strip().splitlines()[0]
        raise checkpoint_error(
            path,
            "a pickle of objects that are no tensors, which would run code to be made "
            f"({first_line[:160]})",
            "Save module.state_dict() alone, or safetensors; objects you trust can be named with "
            "torch.serialization.add_safe_globals.",
        ) from error
    places = [at.split("/")] if at is not None else [[], *([key] for key in _KEYS_OF_THE_MODEL)]
    for place in places:
        tree = saved
        for key in place:
            tree = tree.get(key) if isinstance(tree, Mapping) else None
        tensors = _tensors(tree)
        if tensors:
            return {name: to_numpy(tensor) for name, tensor in tensors.items()}
    got = f"a {type(saved).__name__}"
    if isinstance(saved, Mapping):
        got = f"a dictionary of {', '.join(str(key) for key in list(saved)[:12]) or 'nothing'}"
    raise checkpoint_error(
        path,
        f"{got}, and no state_dict {'at the top' if at is None else f'under {at!r}'}",
        'Save module.state_dict(), or say where it is: load_params(path, at="ema").',
    )


def _tensors(tree: Any) -> dict[str, torch.Tensor]:
    """The tensors of a state_dict; empty where a value is none."""
    if not isinstance(tree, Mapping):
        return {}
    # What modules add to it by `get_extra_state` is no tensor.
    leaves = {name: leaf for name, leaf in tree.items() if not str(name).endswith("_extra_state")}
    if not all(isinstance(leaf, torch.Tensor) for leaf in leaves.values()):
        return {}
    return leaves


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
