"""Arrays laid out over a mesh whose axes are explicit: what is computed from them is laid out automatically.

With explicit axes JAX asks whoever writes a product of two factors that are both spread how its result is laid out.
The products of a kernel are ours, not the user's, so XLA chooses.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ntkdiag import _compat, errors
from ntkdiag.kernels.arguments import is_traced


def explicit(tree: Any) -> Any:
    """The first mesh with explicit axes among those of the arrays of a tree; None if there is none."""
    return next((place.mesh for place in _explicit_places(tree)), None)


def spread(tree: Any) -> Any:
    """The first such mesh of an array that is spread over it; None where all are whole on every device."""
    return next((place.mesh for place in _explicit_places(tree) if any(place.spec)), None)


def within(arrays: Any, closes_over: bool, call: str) -> Any:
    """The mesh within which f and its kernel are computed with automatic axes; None where that is not needed.

    An f that closes over arrays with explicit axes cannot be. It needs not be as long as nothing is spread.

    Args:
        arrays: What f is given.
        closes_over: Whether f closes over an array with explicit axes.
        call: For the message.

    Raises:
        UnsupportedModelError: It does, and something is spread.
    """
    mesh = explicit(arrays)
    if mesh is None or not closes_over:
        return mesh
    if not spread(arrays):
        return None
    raise errors.UnsupportedModelError(
        errors.message(
            call,
            expected="f to take arrays laid out over a mesh with explicit axes as arguments",
            got="an f that closes over one, such as frozen parameters or statistics",
            do="Pass it as a keyword argument of f, or lay everything out over a mesh with automatic axes: "
            "jax.make_mesh(..., axis_types=(jax.sharding.AxisType.Auto, ...)).",
        )
    )


def automatically(function: Callable, mesh: Any, *arguments: Any) -> Any:
    """`function(*arguments)`, traced and run with the explicit axes of a mesh automatic.

    Arrays on devices come back whole on every device of the mesh. Everything else is handed through as it is.
    """
    leaves, structure = jax.tree.flatten(arguments)
    given = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
    found: list = []

    def on_devices(*arrays):
        rest = iter(arrays)
        inside = [next(rest) if isinstance(leaf, jax.Array) else leaf for leaf in leaves]
        found[:] = jax.tree.flatten(function(*jax.tree.unflatten(structure, inside)))
        return [leaf for leaf in found[0] if isinstance(leaf, jax.Array)]

    axes = zip(mesh.axis_names, mesh.axis_types, strict=True)
    explicit_axes = tuple(name for name, kind in axes if kind == AxisType.Explicit)
    whole = NamedSharding(mesh, PartitionSpec())
    run: Any = jax.sharding.auto_axes(on_devices, axes=explicit_axes, out_sharding=whole)
    results = iter((jax.jit(run) if is_traced(given) else run)(*given))
    leaves, structure = found
    return jax.tree.unflatten(structure, [next(results) if isinstance(leaf, jax.Array) else leaf for leaf in leaves])


def _explicit_places(tree: Any) -> Iterator[Any]:
    """Shardings of the arrays of a tree that lie on a mesh with explicit axes."""
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.Array):
            place = _place(leaf)
            mesh = getattr(place, "mesh", None)
            if mesh is not None and AxisType.Explicit in mesh.axis_types:
                yield place


def _place(leaf: jax.Array) -> Any:
    """The sharding of an array, or of what a tracer stands for."""
    return jax.typeof(leaf).sharding if isinstance(leaf, _compat.Tracer) else leaf.sharding
