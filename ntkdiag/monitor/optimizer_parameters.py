"""From the optimizer's parameters to those of the measured function: the same leaves, by path."""

from typing import Any

import jax
import jax.numpy as jnp

from ntkdiag import errors
from ntkdiag.models.functional import Functional
from ntkdiag.models.paths import differences, leaves_by_path


def as_parameters_of(f: Any, params: Any) -> tuple[Any, Any]:
    """Put an optimizer's parameters into the structure `f.params` has.

    Linen optimizers hold the tree under "params" or the whole variables, `nnx.Optimizer` a State with its leaves under
    ".value", Equinox a filtered module. The leaves are matched by path, never by order.

    Args:
        f: A Functional; a plain callable has no structure of its own and takes the parameters as they are.
        params: The optimizer's parameters, or all variables of the model.

    Returns:
        The parameters in the structure `f` takes, and a boolean, traced under `jax.jit`: False when `params` holds
        arrays that `f` keeps fixed, and they have other values there.

    Raises:
        StructureError: When paths, shapes or dtypes differ; the message lists them.
    """
    _refuse_masked(params)
    if not isinstance(f, Functional):
        return params, True
    wanted = leaves_by_path(f.params)
    fixed = {path.removeprefix("params/"): leaf for path, leaf in f.fixed.items()}
    found = {
        _plain(path, wanted): leaf
        for path, leaf in leaves_by_path(params).items()
        if hasattr(leaf, "dtype")
    }
    extra = {path: leaf for path, leaf in found.items() if path in fixed and path not in wanted}
    lines = differences(wanted, {path: leaf for path, leaf in found.items() if path not in extra})
    if lines:
        do = "Build f with ntkdiag.functionalize from the model that is trained (trainable= for a part of it)."
        inner = next((name for name in ("params", "model") if hasattr(params, name)), None)
        if inner is not None and not isinstance(params, dict):
            do = f"Pass the .{inner} of this {type(params).__name__}."
        raise errors.StructureError(
            expected="the optimizer to hold the parameters of the measured function",
            got="; ".join(lines[:8]) + (f"; and {len(lines) - 8} more" if len(lines) > 8 else ""),
            do=do,
        )
    return jax.tree.unflatten(
        jax.tree.structure(f.params), [found[path] for path in wanted]
    ), _unmoved(extra, fixed)


def _plain(path: str, wanted: dict[str, Any]) -> str:
    if path in wanted:
        return path
    path = path.removesuffix("/value")  # an NNX State
    return path if path in wanted else path.removeprefix("params/")  # linen variables


def _unmoved(extra: dict[str, Any], fixed: dict[str, Any]) -> Any:
    same: Any = True
    for path, leaf in extra.items():
        # Counters and random keys may move: only numbers that enter the outputs count.
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            same = same & jnp.array_equal(leaf, fixed[path])
    return same


def _refuse_masked(params: Any) -> None:
    def is_masked(node: Any) -> bool:
        return type(node).__name__ == "MaskedNode"

    if any(map(is_masked, jax.tree.leaves(params, is_leaf=is_masked))):
        raise errors.StructureError(
            expected="all parameters of the measured function",
            got="a masked part of them (optax.masked or optax.multi_transform hides the others)",
            do="Move it outside: optax.chain(optax.multi_transform(...), watch(...)).",
        )
