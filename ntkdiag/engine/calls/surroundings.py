"""What surrounds a call: a trace of someone else's, or a mesh of devices.

Calls inside someone's jit may have arrays that are constants there. A kernel of constants could
become a part of the surrounding program, where XLA would evaluate it with its slow interpreter. So
it is computed while that program is being traced, and the result is the constant. Where f closes
over values of that trace there is no way around: it becomes a part of it.

What is computed from arrays over a mesh with explicit axes is laid out automatically. Somebody
spreads a batch over devices with `jax.make_mesh(...)`, whose axes are explicit unless one asks for
others, and calls `ntk` on it. With explicit axes JAX asks whoever writes a product of two spread
factors how its result is laid out; the products of a kernel are ours, not the user's, so XLA
chooses. Without this every such call would end in an error about a product nobody has written.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias, TypeVar

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, Sharding
from jaxtyping import PyTree

from ntkdiag import _jax, errors
from ntkdiag.engine.calls.arguments import is_traced

Arguments = TypeVar("Arguments")


@contextlib.contextmanager
def evaluated(arguments: Arguments, outputs: Callable[[], PyTree]) -> Iterator[Arguments]:
    """Where a kernel of these arguments is computed now if nothing of it is traced.

    What is yielded stands for the arguments there; `outputs()` calls the functions of the kernel.
    """
    # The usual cases: traced arguments are the caller's business, and outside of a trace
    # everything is computed as it comes.
    if is_traced(arguments) or not _jax.staging():
        yield arguments
        return
    # From here on: constants inside someone's jit.
    if _closes_over_tracers(outputs):
        # Constants would be folded: they are made values that the compiler does not look through.
        yield jax.tree.map(_staged, arguments)
        return
    with jax.ensure_compile_time_eval():
        yield arguments


def _closes_over_tracers(outputs: Callable[[], PyTree]) -> bool:
    """Whether the functions read values of the trace under way that nobody handed them."""
    # What a function closes over becomes a constant of its jaxpr.
    try:
        consts = _jax.open_jaxpr(jax.make_jaxpr(outputs)())[1]
    except Exception:  # what is wrong with the functions comes up again, with a better message
        return False
    return is_traced(consts)


def _staged(leaf: object) -> object:
    """An array as a value of the trace under way; anything else as it is."""
    if isinstance(leaf, jax.Array | np.ndarray):
        return jax.lax.optimization_barrier(leaf)
    return leaf


Result = TypeVar("Result")
# Devices, or in a trace only their number along every axis.
AnyMesh: TypeAlias = Mesh | AbstractMesh


def explicit(tree: PyTree) -> AnyMesh | None:
    """The first mesh with explicit axes among those of the arrays of a tree."""
    for sharding in _explicit_shardings(tree):
        return sharding.mesh
    return None


def spread(tree: PyTree) -> AnyMesh | None:
    """The first mesh with explicit axes over which an array of a tree is spread out.

    None where every array is whole on every device.
    """
    for sharding in _explicit_shardings(tree):
        if any(sharding.spec):
            return sharding.mesh
    return None


def within(arrays: PyTree, closes_over: bool) -> AnyMesh | None:
    """The mesh within which a kernel is computed with automatic axes; None where none is needed.

    An f that closes over arrays with explicit axes cannot be computed so: what it closes over keeps
    its axes. It need not be computed so as long as nothing is spread.

    Raises:
        UnsupportedModelError: f closes over an array with explicit axes, and something is spread.
    """
    mesh = explicit(arrays)
    if mesh is None or not closes_over:
        return mesh
    if not spread(arrays):
        return None
    raise errors.UnsupportedModelError(
        expected="f to take arrays laid out over a mesh with explicit axes as arguments",
        got="an f that closes over one, such as frozen parameters or statistics",
        do="Pass it as a keyword argument of f, or lay everything out over a mesh with automatic "
        "axes: jax.make_mesh(..., axis_types=(jax.sharding.AxisType.Auto, ...)).",
    )


def automatically(function: Callable[..., Result], mesh: AnyMesh, *arguments: PyTree) -> Result:
    """`function(*arguments)`, traced and run with the explicit axes of a mesh automatic.

    Arrays on devices come back whole on every device of the mesh. Everything else is handed through
    as it is.
    """
    # `auto_axes` takes arrays and gives arrays: they are taken out of the arguments, and all else
    # goes around it.
    leaves, structure = jax.tree.flatten(arguments)
    arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
    # What the function returned, for what is no array in it: only arrays can leave `auto_axes`.
    results: list = []
    structure_of_results = None

    def on_arrays(*arrays: jax.Array) -> list[jax.Array]:
        nonlocal structure_of_results
        inside = structure.unflatten(_with_arrays(leaves, arrays))
        results[:], structure_of_results = jax.tree.flatten(function(*inside))
        return [leaf for leaf in results if isinstance(leaf, jax.Array)]

    # The axes that become automatic: those of other kinds stay.
    explicit_axes = []
    for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True):
        if kind == AxisType.Explicit:
            explicit_axes.append(name)
    whole_everywhere = NamedSharding(mesh, PartitionSpec())
    # Whole on every device at the end: anything may be done with the result.
    # Any: JAX declares it as what decorates a function, too.
    run: Any = jax.sharding.auto_axes(
        on_arrays, axes=tuple(explicit_axes), out_sharding=whole_everywhere
    )
    if is_traced(arrays):  # inside a trace `auto_axes` needs a program of its own
        run = jax.jit(run)
    computed = run(*arrays)
    return jax.tree.unflatten(structure_of_results, _with_arrays(results, computed))


def _with_arrays(leaves: list, arrays: Iterable[jax.Array]) -> list:
    """The leaves, with these arrays in place of those among them."""
    remaining = iter(arrays)
    return [next(remaining) if isinstance(leaf, jax.Array) else leaf for leaf in leaves]


def _explicit_shardings(tree: PyTree) -> Iterator[NamedSharding]:
    """Shardings of the arrays of a tree that lie on a mesh with explicit axes."""
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.Array):
            sharding = _sharding(leaf)
            on_mesh = isinstance(sharding, NamedSharding)
            if on_mesh and AxisType.Explicit in sharding.mesh.axis_types:
                yield sharding


def _sharding(leaf: jax.Array) -> Sharding:
    """The sharding of an array, or of what a tracer stands for."""
    return jax.typeof(leaf).sharding if isinstance(leaf, _jax.Tracer) else leaf.sharding
