"""A function of tensors, called from JAX, which is differentiated by torch.func.

    f       y = f(a)             the function itself
    pull    (a, u) -> J^T u      torch.func.vjp of f, which is a function of tensors, too

The backward rule of f is `pull`, that of `pull` comes from it in the same way, and so on: there are
derivatives of every order, and J v is that of J^T u, which is linear in u. (`torch.func.jvp` has no
rule for many an operation.) Each is a callback from the compiled program. What `jax.vmap` adds as
leading axes `torch.vmap` takes, so that a batch of examples and of cotangents is one call; where
PyTorch cannot map (control flow that depends on numbers), each is called by itself.
"""

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.custom_derivatives import SymbolicZero
from jaxtyping import PyTree
from torch.nn.attention import SDPBackend, sdpa_kernel

from ntkdiag_torch.tensors import map_leaves, to_numpy, to_tensor

# (parameters and buffers by name, positional arguments, keyword arguments) -> outputs
Forward: TypeAlias = Callable[[dict[str, Any], tuple, dict[str, Any]], Any]
# A function of tensors one by one.
Function: TypeAlias = Callable[..., Sequence[torch.Tensor]]


def call(
    forward: Forward,
    params: dict[str, PyTree],
    fixed: dict[str, PyTree],
    args: tuple,
    kwargs: dict[str, Any],
    lock: threading.RLock,
) -> PyTree:
    """Outputs as JAX arrays, with derivatives of every order."""
    # Numbers and strings among the arguments stay what they are.
    leaves, structure = jax.tree.flatten(({**fixed, **params}, args, kwargs))
    places = [place for place, leaf in enumerate(leaves) if hasattr(leaf, "shape")]
    arrays = [jnp.asarray(leaves[place]) for place in places]

    def outputs_of(*tensors: torch.Tensor) -> Any:
        merged = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            merged[place] = tensor
        # Of the ways to compute attention, one has every derivative, and a rule for vmap.
        with lock, sdpa_kernel(SDPBackend.MATH):
            return map_leaves(lambda leaf: leaf, forward(*jax.tree.unflatten(structure, merged)))

    # What is returned, in which shapes, shows in a call with zeros.
    with torch.no_grad():
        shown = outputs_of(*(to_tensor(np.zeros(array.shape, array.dtype)) for array in arrays))
    described = map_leaves(_described, shown)
    flat = _differentiable(lambda *tensors: jax.tree.leaves(outputs_of(*tensors)), described)
    return jax.tree.unflatten(jax.tree.structure(described), flat(*arrays))


def _described(tensor: torch.Tensor) -> jax.ShapeDtypeStruct:
    array = to_numpy(tensor, "an output")
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class _Chosen:
    """The arguments that are differentiated by, as what a trace does not look at."""

    places: tuple[int, ...]


def _differentiable(function: Function, like: PyTree) -> Callable[..., list[jax.Array]]:
    """A function of tensors as one of arrays; `like` has the shapes and dtypes of its results."""

    @jax.custom_vjp
    def f(*arrays):
        return _callback(function, like, arrays)

    def forward(*primals):
        values = [primal.value for primal in primals]
        chosen = _Chosen(tuple(n for n, primal in enumerate(primals) if primal.perturbed))
        return f(*values), (values, chosen)

    def backward(saved, cotangents):
        values, chosen = saved
        cotangents = [_instantiated(cotangent) for cotangent in cotangents]
        like_chosen = [values[place] for place in chosen.places]
        pull = _differentiable(_pullback(function, len(values), chosen.places), like_chosen)
        of_values = [None] * len(values)
        results = pull(*values, *cotangents)
        for place, result in zip(chosen.places, results, strict=True):
            of_values[place] = result
        return tuple(of_values)

    f.defvjp(forward, backward, symbolic_zeros=True)
    return f


def _instantiated(cotangent: Any) -> jax.Array:
    """A cotangent as an array, also where JAX knows it to be zero."""
    if isinstance(cotangent, SymbolicZero):
        return jnp.zeros(cotangent.shape, cotangent.dtype)
    return cotangent


def _pullback(function: Function, n_values: int, places: tuple[int, ...]) -> Function:
    """(values, u) -> J^T u, by the values at these places."""

    def pulled(*tensors: torch.Tensor) -> Sequence[torch.Tensor]:
        values = list(tensors[:n_values])

        def of_chosen(*chosen: torch.Tensor) -> tuple[torch.Tensor, ...]:
            merged = list(values)
            for place, tensor in zip(places, chosen, strict=True):
                merged[place] = tensor
            return tuple(function(*merged))

        pull = torch.func.vjp(of_chosen, *(values[place] for place in places))[1]
        return pull(tensors[n_values:])

    return pulled


def _callback(function: Function, like: PyTree, arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """Call a function of tensors from a compiled program."""
    n_axes = arrays[0].ndim
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(like)]

    def on_host(*arrays):
        tensors = [to_tensor(array) for array in arrays]
        mapped = _mapped(function, levels=tensors[0].ndim - n_axes)
        return [to_numpy(result, "a result") for result in mapped(*tensors)]

    return jax.pure_callback(on_host, shapes, *arrays, vmap_method="expand_dims")


def _mapped(function: Function, levels: int) -> Function:
    """A function of tensors with so many axes in front; one of length 1 is of what is shared."""
    if levels == 0:
        return function
    inner = _mapped(function, levels - 1)

    def mapped(*tensors: torch.Tensor) -> Sequence[torch.Tensor]:
        length = max(tensor.shape[0] for tensor in tensors)
        axes = tuple(0 if tensor.shape[0] > 1 else None for tensor in tensors)
        shared = [t if axis == 0 else t[0] for t, axis in zip(tensors, axes, strict=True)]
        if length > 1:
            try:
                return torch.vmap(lambda *t: tuple(inner(*t)), in_dims=axes)(*shared)
            except RuntimeError:  # no rule, or control flow that depends on numbers
                pass
        rows = []
        for n in range(length):
            row = [t if axis is None else t[n] for t, axis in zip(shared, axes, strict=True)]
            rows.append(inner(*row))
        return [torch.stack(results) for results in zip(*rows, strict=True)]

    return mapped
