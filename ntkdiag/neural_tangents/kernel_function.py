"""`ntk_fn(x1, x2, params, **kwargs)`: the function that `empirical_ntk_fn` returns.

A call goes this way, and what does not depend on values is kept for the next of the same shapes:

    x1, x2, params, kwargs                                  as the user gave them
    kwargs of x1, kwargs of x2                              per_input.py: rng, pairs
    the axes of every kernel                                axes.py: traced, diagonal
    examples, what they share; or whole batches             route.py, examples.py
    the engine's kernels, their axes moved                  kernels.py
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.arrays import on_automatic_axes, with_arrays
from ntkdiag.engine import Memory
from ntkdiag.jaxtools.arguments import check_no_nan
from ntkdiag.jaxtools.caching import Cache
from ntkdiag.jaxtools.tracing import in_the_trace, is_traced
from ntkdiag.neural_tangents import examples
from ntkdiag.neural_tangents.axes import AxesLike, KernelArray, KernelAxes, read_axes
from ntkdiag.neural_tangents.examples import Examples, VmapAxes, cut_whole
from ntkdiag.neural_tangents.kernels import nngps, ntks
from ntkdiag.neural_tangents.per_input import split_kwargs
from ntkdiag.neural_tangents.route import OneSide, Route, find_route, remembered, whole_route


class Prepared(NamedTuple):
    """What is known of a call from its shapes."""

    route: Route  # how the arguments are cut into examples
    outputs: Any  # a PyTreeDef
    # Parameters, row examples, column examples or None -> kernels.
    compute: Callable[..., list[KernelArray]]


@dataclasses.dataclass(frozen=True, eq=False)
class KernelFunction:
    """A kernel as a function of inputs and parameters."""

    kernel: Literal["ntk", "nngp"]  # which kernel
    f: Callable[..., PyTree]  # the function
    trace_axes: AxesLike  # as the user gave them
    diagonal_axes: AxesLike  # as the user gave them
    vmap_axes: VmapAxes | None = None  # as a triple; None where nothing was said
    check: bool = True  # whether f is evaluated to see if examples interact
    memory: Memory | None = None  # budget as the user gave it
    tile: int | None = None  # largest block of examples; None for as many as fit
    devices: int = 1  # over how many devices the rows are spread
    on_host: bool = False  # whether results are numpy arrays
    _prepared: Cache = dataclasses.field(default_factory=Cache, init=False, repr=False)

    def __call__(self, x1: PyTree, x2: PyTree, params: PyTree, **apply_fn_kwargs: Any) -> PyTree:
        """For every output of f its kernel, as `empirical_ntk_fn` says; x2 None stands for x1."""
        named = errors.called(f"{self.kernel}_fn(x1, x2, params)")
        return named(self._computed)(x1, x2, params, apply_fn_kwargs)

    @on_automatic_axes
    def _computed(self, x1: PyTree, x2: PyTree, params: PyTree, kwargs: dict[str, Any]) -> PyTree:
        x2 = x2 if jax.tree.leaves(x2) else None  # a tree of None, too
        x1, x2, params, kwargs = in_the_trace((x1, x2, params, kwargs))
        x1, x2, params = examples.as_arrays(x1, x2, params)
        kwargs = with_arrays(kwargs, "kwargs")
        if self.check:
            check_no_nan(x1, "x1")
            check_no_nan(x2, "x2")
        arguments = x1, x2, params, kwargs
        prepare = lambda: self._prepare(*arguments)
        prepared = remembered(self._prepared, self.f, arguments, prepare)
        kwargs1, kwargs2 = split_kwargs(kwargs, x1, x2)

        # Half precision is widened first, which is exact.
        rows = prepared.route.rows.split(*examples.widen((x1, kwargs1)))
        columns = None
        if x2 is not None:
            columns = prepared.route.columns.split(*examples.widen((x2, kwargs2)))
        kernels = prepared.compute(examples.widen(params), _spread(rows, self.devices), columns)
        convert = np.asarray if self.on_host and not is_traced(kernels) else jnp.asarray
        return prepared.outputs.unflatten([convert(kernel) for kernel in kernels])

    def _prepare(self, x1: PyTree, x2: PyTree, params: PyTree, kwargs: dict[str, Any]) -> Prepared:
        """Check everything, and find the route."""
        f = self.f
        if self.kernel == "ntk":
            examples.check_parameters(params, check=self.check)
        params, x1, x2 = examples.widen((params, x1, x2))

        # Keyword arguments and outputs of both sides.
        kwargs1, kwargs2 = examples.widen(split_kwargs(kwargs, x1, x2))
        sides = [OneSide("x1", x1, kwargs1, _outputs(f, params, x1, kwargs1))]
        if x2 is not None:
            sides.append(OneSide("x2", x2, kwargs2, _outputs(f, params, x2, kwargs2)))
        for side in sides:
            examples.check_outputs(side.outputs)
        examples.check_same_structure(sides[0].outputs, sides[-1].outputs)

        axes = self._axes(sides[0].outputs, sides[-1].outputs)
        if self.kernel == "nngp":
            route = whole_route(sides)
            compute = nngps(f, axes, route)
        else:
            route = find_route(f, params, sides, self.vmap_axes, check=self.check)
            compute = ntks(f, axes, route, self.memory, self.tile)
        return Prepared(route, jax.tree.structure(sides[0].outputs), compute)

    def _axes(self, outputs1: PyTree, outputs2: PyTree) -> list[KernelAxes]:
        """The axes of the kernel of every output."""
        axes = []
        rows = jax.tree_util.tree_leaves_with_path(outputs1)
        for (path, leaf1), leaf2 in zip(rows, jax.tree.leaves(outputs2), strict=True):
            name = examples.output_name(path)
            shapes = tuple(leaf1.shape), tuple(leaf2.shape)
            axes.append(read_axes(self.trace_axes, self.diagonal_axes, *shapes, name))
        return axes


def _outputs(f: Callable[..., PyTree], params: PyTree, x: PyTree, kwargs: dict[str, Any]) -> PyTree:
    """Shapes of the outputs of f; what is no array among the keyword arguments is passed."""
    cut = cut_whole(x, kwargs)
    return jax.eval_shape(cut.applied(f), params, *cut.split(x, kwargs))


def _spread(rows: Examples, devices: int) -> Examples:
    """The examples over devices, as many as divide them."""
    mapped, shared = rows
    n = mapped[0].shape[0]
    count = max((d for d in range(1, devices + 1) if n % d == 0), default=1)
    if count == 1 or is_traced(rows):
        return rows
    mesh = jax.sharding.Mesh(jax.local_devices()[:count], "n")
    along_examples = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("n"))
    return [jax.device_put(leaf, along_examples) for leaf in mapped], shared
