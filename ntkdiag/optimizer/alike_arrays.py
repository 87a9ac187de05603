"""Which arrays of parameters an optimizer treats alike: what it does is read once for each kind.

Groups of `optax.multi_transform` and masks of weight decay are functions and trees inside of an
optimizer, which does not tell them. But arrays that get the same updates for the same numbers are
treated alike, so the optimizer is tried on arrays of a single element, at several steps.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, PyTree

from ntkdiag.models.array_leaves import split_arrays
from ntkdiag.optimizer.linearized_update import floats_of, is_float
from ntkdiag.optimizer.optimizer_error import OptimizerError, Update, guarded
from ntkdiag.optimizer.state_fields import buffers_of

# Steps at which it is tried: schedules of groups may differ late.
_STEPS = (0, 7, 1000, 100_000)
# Numbers that are tried, of parameters, gradients and buffers.
_PARAMETER, _GRADIENT, _BUFFER = 0.75, 0.25, 0.5


def alike_arrays(
    init: Callable[[PyTree], PyTree], update: Update, params: PyTree, trained: PyTree
) -> dict[str, int] | None:
    """The kind of each array by its path; None where it cannot be found out."""
    # What is tried has values inside of a trace, too.
    with jax.ensure_compile_time_eval():
        small = jax.tree.map(lambda leaf: _single(leaf, _PARAMETER), params)
        gradient = jax.tree.map(lambda leaf: _single(leaf, _GRADIENT), trained)
        gradients, _ = floats_of(gradient)

        def answer(arrays: list[Array]) -> Float[Array, " L"]:
            """The update of each array, summed, in the step that these arrays make."""
            updates, _ = floats_of(update(*whole(arrays))[0])
            return jnp.stack([updates[path].sum() for path in gradients])

        try:
            fresh = guarded(init)(small)
            steps = [(gradient, _state_at(fresh, step), small) for step in _STEPS]
            _, whole = split_arrays(steps[0])
            # In one program: operation by operation compiling takes longer.
            run = guarded(jax.jit(answer))
            answers = [run(split_arrays(step)[0]) for step in steps]
        except OptimizerError:  # it takes more than there is here
            return None
    if any(isinstance(row, Tracer) for row in answers):
        return None  # its hyperparameters are traced
    by_array = np.stack(answers, axis=1)  # [array step]
    # Where nothing is updated, as by the first of several micro-steps, nothing is told.
    if not by_array.any():
        return None
    fields = _fields_of_arrays(fresh)
    numbers: dict[tuple, int] = {}
    kinds = {}
    for path, row in zip(gradients, by_array.tolist(), strict=True):
        # An array without axes cannot stand beside others in one, nor one of another group.
        n_axes = gradients[path].ndim
        kind = (n_axes, *row, *fields.get(path, ()), "" if n_axes else path)
        kinds[path] = numbers.setdefault(kind, len(numbers))
    return kinds


def _fields_of_arrays(state: PyTree) -> dict[str, list[str]]:
    """Where in a state the buffers of each array are, without its own path: those of its group."""
    fields: dict[str, list[str]] = {}
    buffers = buffers_of(state)
    if buffers is not None:
        for path, param_path in {**buffers.momentum, **buffers.second_moments}.items():
            fields.setdefault(param_path, []).append(path.removesuffix(param_path))
    return fields


def _single(leaf: Any, number: float) -> Any:
    """An array of one element, with as many axes; what is no array of numbers stays."""
    shape = (1,) * getattr(leaf, "ndim", 0)
    if is_float(leaf):
        return jnp.asarray(np.full(shape, number, leaf.dtype))
    return jnp.zeros(shape, leaf.dtype) if hasattr(leaf, "dtype") else leaf


def _state_at(state: PyTree, step: int) -> PyTree:
    """A state at a step, with something in its buffers."""
    buffers = buffers_of(state)
    with_paths, structure = jax.tree_util.tree_flatten_with_path(state)
    leaves: list[Array | np.ndarray] = []
    for path, leaf in with_paths:
        name = jax.tree_util.keystr(path)
        if buffers is not None and (name in buffers.momentum or name in buffers.second_moments):
            leaf = np.full(leaf.shape, _BUFFER, leaf.dtype)
        elif jnp.issubdtype(getattr(leaf, "dtype", bool), jnp.integer):
            leaf = np.full(leaf.shape, min(step, jnp.iinfo(leaf.dtype).max), leaf.dtype)
        leaves.append(leaf)
    return jax.tree.unflatten(structure, leaves)
