"""Arrays laid out over a mesh whose axes are explicit: what is computed from them is laid out automatically.

With explicit axes JAX asks whoever writes a product of two factors that are both spread how its result is laid out.
The products of a kernel are ours, not the user's, so XLA chooses.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ntkdiag import errors
from ntkdiag.kernels.arguments import is_traced


def explicit(tree: Any) -> Any:
    """The first mesh with explicit axes among those of the arrays of a tree; None if there is none."""
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.Array):
            place = jax.typeof(leaf).sharding if is_traced(leaf) else leaf.sharding
            mesh = getattr(place, "mesh", None)
            if mesh is not None and AxisType.Explicit in mesh.axis_types:
                return mesh
    return None


def automatically(function: Callable, mesh: Any, *arguments: Any) -> Any:
    """`function(*arguments)` with the explicit axes of a mesh automatic inside.

    Arrays on devices come back whole on every device of the mesh; numpy arrays stay on the host.
    """
    host: list = []

    def on_devices(*arguments):
        leaves, structure = jax.tree.flatten(function(*arguments))
        host[:] = structure, [leaf if isinstance(leaf, np.ndarray) else None for leaf in leaves]
        return [leaf for leaf in leaves if not isinstance(leaf, np.ndarray)]

    axes = zip(mesh.axis_names, mesh.axis_types, strict=True)
    explicit_axes = tuple(name for name, kind in axes if kind == AxisType.Explicit)
    whole = NamedSharding(mesh, PartitionSpec())
    run: Any = jax.sharding.auto_axes(on_devices, axes=explicit_axes, out_sharding=whole)
    on_device = iter((jax.jit(run) if is_traced(arguments) else run)(*arguments))
    structure, leaves = host
    return jax.tree.unflatten(structure, [next(on_device) if leaf is None else leaf for leaf in leaves])


def check_closure(constants: list, call: str) -> None:
    """No array that f closes over is laid out over explicit axes.

    Raises:
        UnsupportedModelError: One is.
    """
    if explicit(constants):
        raise errors.UnsupportedModelError(
            errors.message(
                call,
                expected="f to take arrays laid out over a mesh with explicit axes as arguments",
                got="an f that closes over one, such as frozen parameters or statistics",
                do="Pass it as a keyword argument of f, or lay everything out over a mesh with automatic axes: "
                "jax.make_mesh(..., axis_types=(jax.sharding.AxisType.Auto, ...)).",
            )
        )
