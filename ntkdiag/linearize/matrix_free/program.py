"""Running a function of an operator, compiled with the options its arithmetic needs."""

import functools
from collections.abc import Callable
from typing import Any, Protocol

import jax

from ntkdiag import _compat
from ntkdiag.kernels import arguments, meshes

CALL = "NTKOperator(f, params, x)"


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
        return _compiled(function, operator.reduces, None if static is None else len(given) - 1)(*given)


@functools.cache
def _compiled(function: Callable[..., Any], reduces: bool, static: int | None) -> Callable[..., Any]:
    options = _compat.compiler_options(reduces=reduces)
    return jax.jit(function, static_argnums=() if static is None else static, compiler_options=options or None)
