"""Running a function of an operator, compiled with the options its arithmetic needs."""

from collections.abc import Callable
from typing import Any, Protocol

import jax

from ntkdiag import _compat
from ntkdiag.kernels import arguments, meshes
from ntkdiag.kernels.caches import Cache
from ntkdiag.kernels.keywords import hashable

CALL = "NTKOperator(f, params, x)"
_COMPILED = Cache()


class Operator(Protocol):
    """What has a network inside: an `NTKOperator`, or a model made of some."""

    @property
    def reduces(self) -> bool:
        """Whether the network contains reductions in float32, which need options of their own."""
        ...

    @property
    def closes_over_explicit(self) -> bool:
        """Whether the network closes over an array of a mesh with explicit axes."""
        ...


def run(function: Callable[..., Any], operator: Operator, *args: Any, static: Any = None) -> Any:
    """Call `function(operator, *args)`, or with `static` last where it is given.

    Compiled once for each function, network and shape. Inside someone's `jax.jit` it is traced into that program.
    Matrix products keep the full precision of their dtype.
    Cost: that of the function.

    Args:
        function: A function of module level.
        operator: A pytree.
        *args: Arrays and trees.
        static: Something hashable that is fixed at compilation.

    Returns:
        What the function returns.
    """
    if mesh := meshes.within((operator, args), operator.closes_over_explicit, CALL):
        return meshes.automatically(lambda *arrays: run(function, *arrays, static=static), mesh, operator, *args)
    given = (operator, *args) if static is None else (operator, *args, static)
    with jax.default_matmul_precision("highest"):
        if arguments.is_traced(operator, args) or _compat.staging():
            return function(*given)
        leaves, structure = jax.tree.flatten(operator)
        return _compiled(function, structure, operator.reduces, static)(leaves, *args)


def _compiled(function: Callable[..., Any], structure: Any, reduces: bool, static: Any) -> Callable[..., Any]:
    """`function` compiled for operators of one structure, which holds the network: JAX itself is to keep none of it."""
    key = structure, reduces, hashable(static)
    found = _COMPILED.get(function, key)
    if found is None:
        last = () if static is None else (static,)
        whole = lambda leaves, *args: function(jax.tree.unflatten(structure, leaves), *args, *last)
        found = jax.jit(whole, compiler_options=_compat.compiler_options(reduces=reduces) or None)
        _COMPILED.put(function, key, found)
    return found
