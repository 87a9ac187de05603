"""Running a function of an operator, compiled with the options its arithmetic needs.

The structure of an operator, as a pytree, holds its network. `jax.jit` would keep it in caches of
JAX for good. So the programs here take the arrays of an operator alone, and are kept in a cache of
ours, which `ntkdiag.clear_caches` empties.

    run(function, operator, v)
        operator -> leaves, structure    its arrays; all else, with the network
        program = _compiled(...)         from the cache, or compiled for this structure
        program(leaves, v)               function(operator, v), the operator assembled inside
"""

from collections.abc import Callable
from typing import Protocol, TypeVar, runtime_checkable

import jax
from jaxtyping import PyTree

from ntkdiag.arrays import on_automatic_axes, with_arrays
from ntkdiag.jaxtools.caching import Cache, hashable
from ntkdiag.jaxtools.cpu import compiler_options
from ntkdiag.jaxtools.jaxprs import TreeStructure
from ntkdiag.jaxtools.tracing import is_traced, staging

Result = TypeVar("Result")

_COMPILED = Cache()  # (function, (structure, ...)) -> program


@runtime_checkable
class Operator(Protocol):
    """What has a network inside: an `NTKOperator`, or a model made of some."""

    @property
    def reduces(self) -> bool:
        """Whether the network reduces in float32, which needs compiler options of its own."""
        ...


@on_automatic_axes
def run(
    function: Callable[..., Result], operator: Operator, *args: PyTree, static: object = None
) -> Result:
    """Call a function of the module level as `function(operator, *args)`, compiled.

    `static`, where there is something, comes last: it is fixed when the program is compiled, and
    hashable or compared by identity. There is one program for each function, network and shape.
    Inside someone's `jax.jit` the function is traced into that program. Matrix products keep the
    full precision of their dtype.
    """
    args = with_arrays(args, "args")
    with jax.default_matmul_precision("highest"):
        if is_traced(operator, args) or staging():
            return _call(function, operator, args, static)  # their program, not one of ours
        leaves, structure = jax.tree.flatten(operator)
        program = _compiled(function, structure, operator.reduces, static)
        return program(leaves, *args)


def _call(
    function: Callable[..., Result], operator: PyTree, args: tuple[PyTree, ...], static: object
) -> Result:
    """The call itself, with what is static at its end."""
    if static is None:
        return function(operator, *args)
    return function(operator, *args, static)


def _compiled(
    function: Callable[..., Result], structure: TreeStructure, reduces: bool, static: object
) -> Callable[..., Result]:
    """The program of a function for operators of one structure, in which the network is."""
    key = structure, reduces, hashable(static)
    program = _COMPILED.get(function, key)
    if program is None:

        def on_arrays(leaves: list[jax.Array], *args: PyTree) -> Result:
            operator = jax.tree.unflatten(structure, leaves)
            return _call(function, operator, args, static)

        options = compiler_options(reduces=reduces)
        program = jax.jit(on_arrays, compiler_options=options or None)
        _COMPILED.put(function, key, program)
    return program
