"""Checks of what is handed to a kernel function, before any work."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag import _compat, errors


def is_traced(*trees: Any) -> bool:
    """Whether any leaf is a tracer: the call is inside someone's jit, grad or vmap."""
    return any(isinstance(leaf, _compat.Tracer) for leaf in jax.tree.leaves(trees))


def check_function(f: Any, call: str) -> None:
    """Something to call with parameters and examples, and no Flax linen module, which is called in another way.

    Raises:
        InvalidInputError: It is not.
    """
    bases = {(base.__module__.partition(".")[0], base.__name__) for base in type(f).__mro__}
    linen = ("flax", "Module") in bases and hasattr(f, "apply") and hasattr(f, "init")
    if callable(f) and not linen:
        return
    raise errors.InvalidInputError(
        errors.message(
            call,
            expected="a function f(params, x)",
            got=f"the linen module {type(f).__name__}" if linen else f"a {type(f).__name__}",
            do="Turn a model into one: f, params = ntkdiag.functionalize(model, variables).",
        )
    )


def check_params(params: Any, call: str, *, finite: bool = True) -> None:
    """Every leaf is a real floating array, and finite.

    Raises:
        InvalidInputError: There are none, or one is not or was deleted; the message names the leaf.
    """
    leaves = jax.tree.leaves(params)
    if not leaves:
        raise errors.InvalidInputError(
            errors.message(call, expected="at least one parameter", got="an empty tree", do="Pass the parameters of f.")
        )
    dtypes = [getattr(leaf, "dtype", None) for leaf in leaves]
    other = {dtype for dtype in set(dtypes) if dtype is None or not jnp.issubdtype(dtype, jnp.floating)}
    if other:
        first = next(k for k, dtype in enumerate(dtypes) if dtype in other)
        raise errors.InvalidInputError(
            errors.message(
                call,
                expected="parameters that are real floating-point arrays",
                got=f"{dtypes[first] or type(leaves[first]).__name__} at {_names(params, [first])[0]}",
                do=_instead(params, leaves[first]),
            )
        )
    check_alive(params, call, "params")
    if finite and not is_traced(params):
        with np.errstate(over="ignore", invalid="ignore"):
            bad = _names(params, [k for k, leaf in enumerate(leaves) if not _all_finite(leaf)])
        if bad:
            raise errors.InvalidInputError(
                errors.message(
                    call,
                    expected="finite parameters",
                    got=f"NaN or infinity in {', '.join(bad[:5])}{' and more' if len(bad) > 5 else ''}",
                    do="The run has diverged, or the checkpoint is damaged; pass check=False to compute anyway.",
                )
            )


def _instead(params: Any, leaf: Any) -> str:
    """What to do with a leaf that is no real floating array."""
    if hasattr(params, "params"):
        return "Pass its `params` alone."
    if isinstance(leaf, float):
        return "Make numbers arrays: jnp.asarray(1.0)."
    if jnp.issubdtype(getattr(leaf, "dtype", np.int32), jnp.complexfloating):
        return "Keep real and imaginary parts as two parameters, and join them in f with jax.lax.complex."
    return "Hold it fixed: close over it in f, or use ntkdiag.functionalize, which splits it off."


def check_alive(tree: Any, call: str, name: str) -> None:
    """No array was given away.

    Raises:
        InvalidInputError: One was donated to a compiled function, or deleted.
    """
    gone = lambda leaf: isinstance(leaf, jax.Array) and not isinstance(leaf, _compat.Tracer) and leaf.is_deleted()
    deleted = _names(tree, [k for k, leaf in enumerate(jax.tree.leaves(tree)) if gone(leaf)])
    if deleted:
        raise errors.InvalidInputError(
            errors.message(
                call,
                expected=f"live arrays in {name}",
                got=f"deleted buffers: {', '.join(deleted[:5])}",
                do="They were donated to a compiled function: pass what that function returned instead.",
            )
        )


def check_alike(x1: Any, x2: Any, call: str) -> None:
    """Row and column examples are trees of the same structure; lengths of axes may differ.

    Raises:
        InvalidInputError: They are not.
    """
    shapes = [[np.shape(leaf) for leaf in jax.tree.leaves(x)] for x in (x1, x2)]
    same = jax.tree.structure(x1) == jax.tree.structure(x2)
    if not same or any(len(a) != len(b) for a, b in zip(*shapes, strict=True)):
        raise errors.InvalidInputError(
            errors.message(
                call,
                expected="x2 as a tree of arrays like x1, each with as many axes",
                got=f"{jax.tree.structure(x1)} of shapes {shapes[0][:4]} and {jax.tree.structure(x2)} of shapes "
                f"{shapes[1][:4]}",
                do="Give both the same preprocessing.",
            )
        )


def check_choice(value: Any, choices: tuple[str, ...], call: str) -> None:
    """One of a few names.

    Raises:
        InvalidInputError: It is none of them.
    """
    if value not in choices:
        names = " or ".join(map(repr, choices))
        raise errors.InvalidInputError(errors.message(call, expected=names, got=repr(value), do="Choose one of them."))


def batch_size(x: Any, call: str, name: str) -> int:
    """Length of the example axis, shared by all leaves.

    Raises:
        InvalidInputError: There is no array, no example, the leaves disagree, or one was deleted.
    """
    check_alive(x, call, name)
    leaves = jax.tree_util.tree_leaves_with_path(x)
    sizes = {np.shape(leaf)[0] if np.ndim(leaf) else None for _, leaf in leaves}
    if len(sizes) == 1 and (size := sizes.pop()):
        return int(size)
    what = lambda leaf: np.shape(leaf) if hasattr(leaf, "shape") else f"a {type(leaf).__name__}"
    shapes = ", ".join(f"{name}{jax.tree_util.keystr(path)}: {what(leaf)}" for path, leaf in leaves[:5]) or "no arrays"
    numbers = any(isinstance(leaf, int | float) for _, leaf in leaves)
    raise errors.InvalidInputError(
        errors.message(
            call,
            expected=f"{name} as arrays whose first axis is the examples, the same for all, at least one",
            got=shapes,
            do="Make lists of numbers an array: jnp.asarray(...)."
            if numbers
            else "Add an example axis in front, or drop the empty batch. A dataclass of arrays has to be registered "
            "with jax.tree_util.register_dataclass.",
        )
    )


def _names(tree: Any, numbers: list[int]) -> list[str]:
    """Paths of some leaves, by their numbers."""
    if not numbers:
        return []
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    return [jax.tree_util.keystr(paths[k]) or "the only leaf" for k in numbers]


def all_zero(leaf: Any) -> bool:
    """Whether an array holds nothing but zeros."""
    return not (jnp.any(leaf) if _off_host(leaf) else np.any(np.asarray(leaf)))


def _off_host(leaf: Any) -> bool:
    """Whether an array lies on an accelerator, or in several processes: it is not copied here to be looked at."""
    if not isinstance(leaf, jax.Array):
        return False
    return not leaf.is_fully_addressable or next(iter(leaf.devices())).platform != "cpu"


def _all_finite(leaf: Any) -> bool:
    """Whether an array holds no NaN or infinity; the sum settles it in one cheap pass in all but odd cases."""
    if _off_host(leaf):
        return bool(jnp.isfinite(leaf).all())
    array = np.asarray(leaf)
    if array.dtype.itemsize < 4:
        array = array.astype(np.float32)
    return math.isfinite(array.sum()) or bool(np.isfinite(array).all())
