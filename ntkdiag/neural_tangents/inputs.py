"""What may be differentiated: parameters, inputs and outputs of a call, checked from shapes."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.engine.calls.arguments import check_params


def is_none(x2: PyTree) -> bool:
    """Whether x2 stands for x1: None, or a tree of nothing else."""
    if x2 is None:
        return True
    nones = jax.tree.leaves(x2, is_leaf=lambda node: node is None)
    return not jax.tree.leaves(x2) and bool(nones)


def as_arrays(tree: PyTree) -> PyTree:
    """numpy arrays and Python floats become JAX arrays; anything else is left as it is."""
    convert = lambda leaf: (
        jnp.asarray(leaf) if isinstance(leaf, np.ndarray | np.generic | float) else leaf
    )
    return jax.tree.map(convert, tree)


def is_half(array: object) -> bool:
    """Whether an array, or what stands for one, is of half precision."""
    dtype = getattr(array, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32


def widen(tree: PyTree) -> PyTree:
    """Half-precision arrays as float32, which is exact; float32 and float64 stay."""
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32) if is_half(leaf) else leaf, tree)


def check_parameters(params: PyTree, *, check: bool) -> None:
    """Real floating-point arrays, and not the variables of a Flax module.

    Args:
        params: Parameters.
        check: Whether variables of Flax are refused.

    Raises:
        InvalidInputError: A leaf cannot be differentiated, or statistics stand beside "params".
    """
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
    """Real floating-point outputs, at least one.

    Args:
        outputs: Shapes of what f returns.

    Raises:
        InvalidInputError: An output is complex, integer, or there is none.
    """
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
    """f(x1) and f(x2) have the same tree, and every output the same number of axes.

    Args:
        outputs1: Shapes of f(x1).
        outputs2: Shapes of f(x2).

    Raises:
        InvalidInputError: They do not.
    """
    tree1, tree2 = jax.tree.structure(outputs1), jax.tree.structure(outputs2)
    ndims1, ndims2 = (
        [leaf.ndim for leaf in jax.tree.leaves(tree)] for tree in (outputs1, outputs2)
    )
    if tree1 != tree2 or ndims1 != ndims2:
        shapes = [
            str([tuple(leaf.shape) for leaf in jax.tree.leaves(tree)])
            for tree in (outputs1, outputs2)
        ]
        raise errors.InvalidInputError(
            expected="f(x1) and f(x2) with the same outputs and the same numbers of axes",
            got=f"{tree1} of shapes {shapes[0]} and {tree2} of shapes {shapes[1]}",
            do="The kernel has the shape zip(f(x1).shape, f(x2).shape).",
        )


def output_name(path: tuple) -> str:
    """The name of an output leaf for messages, "" for the only one."""
    return f" at {jax.tree_util.keystr(path)}" if path else ""
