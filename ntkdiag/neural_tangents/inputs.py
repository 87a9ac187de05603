"""What may be differentiated: parameters, inputs and outputs of a call, checked from shapes."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.arrays import as_examples, with_arrays
from ntkdiag.jaxtools.arguments import check_params


def as_arrays(x1: PyTree, x2: PyTree, params: PyTree) -> tuple[PyTree, PyTree, PyTree]:
    """Inputs and parameters as JAX's arrays; a parameter may be a Python float."""
    params = with_arrays(params, "params")
    convert = lambda leaf: jnp.asarray(leaf) if isinstance(leaf, float) else leaf
    return as_examples(x1, "x1"), as_examples(x2, "x2"), jax.tree.map(convert, params)


def is_half(array: object) -> bool:
    """Whether an array, or what stands for one, is of half precision."""
    dtype = getattr(array, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32


def widen(tree: PyTree) -> PyTree:
    """Half-precision arrays as float32, which is exact; float32 and float64 stay."""
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32) if is_half(leaf) else leaf, tree)


def check_parameters(params: PyTree, *, check: bool) -> None:
    """Refuse what cannot be differentiated, and with `check` the variables of a Flax module."""
    check_params(params, finite=False)
    if check and isinstance(params, Mapping) and "params" in params and len(params) > 1:
        others = ", ".join(sorted(repr(str(name)) for name in params if name != "params"))
        raise errors.InvalidInputError(
            expected="trainable parameters",
            got=f"a mapping with 'params' and {others}, which would be differentiated too",
            do="Pass variables['params'] and close over the rest in f, or use "
            "ntkdiag.functionalize(model, variables); "
            "check=False differentiates everything.",
        )


def check_outputs(outputs: PyTree) -> None:
    """Refuse outputs that are complex or integers, and an f without any."""
    leaves = jax.tree_util.tree_leaves_with_path(outputs)
    if not leaves:
        raise errors.InvalidInputError(
            expected="f(params, x) to return arrays",
            got="none",
            do="Return the outputs of the network.",
        )
    for path, leaf in leaves:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise errors.InvalidInputError(
                expected="real floating-point outputs of f(params, x)",
                got=f"{leaf.dtype}{list(leaf.shape)}{output_name(path)}",
                do="Return real and imaginary parts as two outputs."
                if jnp.issubdtype(leaf.dtype, jnp.complexfloating)
                else "Return only what can be differentiated.",
            )


def check_same_structure(outputs1: PyTree, outputs2: PyTree) -> None:
    """Refuse f(x1) and f(x2) of different trees, or with outputs of different numbers of axes."""
    tree1, tree2 = jax.tree.structure(outputs1), jax.tree.structure(outputs2)
    shapes1 = [tuple(leaf.shape) for leaf in jax.tree.leaves(outputs1)]
    shapes2 = [tuple(leaf.shape) for leaf in jax.tree.leaves(outputs2)]
    n_axes1, n_axes2 = list(map(len, shapes1)), list(map(len, shapes2))
    if tree1 == tree2 and n_axes1 == n_axes2:
        return
    raise errors.InvalidInputError(
        expected="f(x1) and f(x2) with the same outputs and the same numbers of axes",
        got=f"{tree1} of shapes {shapes1} and {tree2} of shapes {shapes2}",
        do="The kernel has the shape zip(f(x1).shape, f(x2).shape).",
    )


def output_name(path: tuple) -> str:
    """The name of an output leaf for messages, "" for the only one."""
    return f" at {jax.tree_util.keystr(path)}" if path else ""
