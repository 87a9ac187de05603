"""Running a function of an operator, compiled with the options its arithmetic needs.

The structure of an operator, as a pytree, holds its network. `jax.jit` would keep it in caches of
JAX for good. So the programs here take the arrays of an operator alone, and are kept in a cache of
ours, which `ntkdiag.clear_caches` empties.

    run(function, operator, v)
        operator -> leaves, structure    its arrays; all else, with the network
        program = ...                    from the cache, or compiled for this structure
        program(leaves, v)               function(operator, v), the operator assembled inside
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jaxtyping import PyTree

from ntkdiag.arrays import on_automatic_axes, with_arrays
from ntkdiag.jaxtools.caching import Cache, hashable
from ntkdiag.jaxtools.cpu import compiler_options
from ntkdiag.jaxtools.tracing import is_traced, staging

Result = TypeVar("Result")

_COMPILED = Cache()  # (function, (structure, ...)) -> program


@on_automatic_axes
def run(
    function: Callable[..., Result], operator: Any, *args: PyTree, static: object = None
) -> Result:
    """Call a function of the module level as `function(operator, *args, static)`, compiled."""
    args = with_arrays(args, "args")
    last = () if static is None else (static,)
    with jax.default_matmul_precision("highest"):
        if is_traced(operator, args) or staging():
            return function(operator, *args, *last)  # their program, not one of ours
        leaves, structure = jax.tree.flatten(operator)
        key = structure, operator.reduces, hashable(static)
        program = _COMPILED.get(function, key)
        if program is None:

            def on_arrays(leaves: list[jax.Array], *args: PyTree) -> Result:
                return function(jax.tree.unflatten(structure, leaves), *args, *last)

            options = compiler_options(reduces=operator.reduces)
            program = jax.jit(on_arrays, compiler_options=options or None)
            _COMPILED.put(function, key, program)
        return program(leaves, *args)
