"""From a request and arguments to a prepared kernel function: the checks, then the plan."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ntkdiag import _jax
from ntkdiag.engine.calls.arguments import is_traced
from ntkdiag.engine.planning import memory as budgets
from ntkdiag.neural_tangents import inputs
from ntkdiag.neural_tangents.axes import KernelAxes, read_axes
from ntkdiag.neural_tangents.implementation import PREFERENCE, NtkImplementation
from ntkdiag.neural_tangents.kernel_request import Request
from ntkdiag.neural_tangents.output_pair import Pair
from ntkdiag.neural_tangents.per_input import read_pairs, split_kwargs
from ntkdiag.neural_tangents.planning import Limits, Source, plan_pair
from ntkdiag.neural_tangents.prepared import Empty, Prepared
from ntkdiag.neural_tangents.products import OutputProducts, Products
from ntkdiag.neural_tangents.route import OneSide, Route, find_route, whole_route
from ntkdiag.neural_tangents.vmap_axes import VmapAxes


def prepare(request: Request, x1: Any, x2: Any, params: Any, kwargs: dict) -> Prepared:
    """Check everything, find the route, plan every kernel.

    Cost: traces of f; evaluations of f where `find_route` needs them.

    Args:
        request: What is asked for.
        x1: Row inputs.
        x2: Column inputs or None.
        params: Parameters.
        kwargs: Keyword arguments as the user gave them.

    Returns:
        The prepared function.

    Raises:
        InvalidInputError: Arguments or axes do not fit.
        ExamplesInteractError: `vmap_axes` are given and examples interact.
        MemoryBudgetError: Not even one example at a time fits.
    """
    f = request.f
    if request.kernel == "ntk":
        inputs.check_parameters(params, check=request.check)
    traced = is_traced(x1, x2, params, kwargs)
    params, x1, x2 = inputs.widen((params, x1, x2))
    per_input = read_pairs(
        kwargs, lambda own: _shapes(f, params, x1, own), _mapped(request.vmap_axes)
    )
    kwargs1, kwargs2 = inputs.widen(split_kwargs(kwargs, per_input, x1, x2))
    outputs, closes_over_tracers = _outputs(f, params, x1, kwargs1)
    sides = [OneSide("x1", x1, kwargs1, outputs)]
    sides += [] if x2 is None else [OneSide("x2", x2, kwargs2, _shapes(f, params, x2, kwargs2))]
    for side in sides:
        inputs.check_outputs(side.outputs)
    inputs.check_same_structure(sides[0].outputs, sides[-1].outputs)
    axes = _axes(request, sides[0].outputs, sides[-1].outputs)
    empty = all(map(_is_empty, axes.values())) or _is_without_parameters(request, params)
    request = dataclasses.replace(
        request, implementation=_implementation(request, params, sides[0])
    )
    way = _WAYS[request.kernel, request.implementation is NtkImplementation.NTK_VECTOR_PRODUCTS]
    if empty or way is OutputProducts or (way is Products and request.vmap_axes is None):
        route = whole_route(sides)
    else:
        route = find_route(f, params, sides, request.vmap_axes, check=request.check)
    limits = Limits(None if traced else budgets.budget(request.memory), request.tile)
    plan = _Planner(request, params, sides, route, limits, way)
    kernels = [
        plan.empty(*pair, own) if empty or _is_empty(own) else plan(*pair, own)
        for pair, own in axes.items()
    ]
    tree = jax.tree.structure(sides[0].outputs)
    arrange = lambda found: jax.tree.unflatten(tree, found)
    if request.cross_terms:
        n = tree.num_leaves
        arrange = lambda found: tree.unflatten(
            [tree.unflatten(found[k * n : (k + 1) * n]) for k in range(n)]
        )
    return Prepared(
        per_input,
        route.cuts,
        kernels,
        arrange,
        request.devices,
        request.on_host,
        closes_over_tracers,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Planner:
    """Plans the kernel between output i of the rows and output j of the columns."""

    request: Request
    params: Any
    sides: list[OneSide]
    route: Route
    limits: Limits
    way: Any

    def __call__(self, i: int, j: int, axes: KernelAxes) -> Pair | Products | OutputProducts:
        rows, columns = self._source(0, i), self._source(-1, j)
        symmetric = i == j and len(self.sides) == 1
        f = self.request.f
        if self.way is not Pair:
            return self.way(f, axes, rows, columns, symmetric)
        prefer = PREFERENCE.get(self.request.implementation)
        return plan_pair(
            f, self.params, rows, None if symmetric else columns, axes, prefer, self.limits
        )

    def empty(self, i: int, j: int, axes: KernelAxes) -> Empty:
        leaves = (
            jax.tree.leaves(self.sides[0].outputs)[i],
            jax.tree.leaves(self.sides[-1].outputs)[j],
        )
        return Empty(axes, _jax.at_least_float32(jnp.result_type(*(leaf.dtype for leaf in leaves))))

    def _source(self, side: int, leaf: int) -> Source:
        cut, own = self.route.cuts[side], self.sides[side]
        shapes = jax.eval_shape(cut.examples, cut.arrays(own.x, own.kwargs))
        return Source(cut, shapes, leaf, None if self.route.axes is None else self.route.axes[leaf])


def _axes(request: Request, outputs1: Any, outputs2: Any) -> dict[tuple[int, int], KernelAxes]:
    """The axes of every kernel wanted, by the numbers of its two outputs."""
    rows, columns = (
        jax.tree_util.tree_leaves_with_path(outputs) for outputs in (outputs1, outputs2)
    )
    found = {}
    for i, (path, leaf1) in enumerate(rows):
        for j, (other, leaf2) in enumerate(columns):
            if i == j or request.cross_terms:
                name = inputs.output_name(path) + (
                    "" if i == j else f" and{inputs.output_name(other)}"
                )
                shapes = tuple(leaf1.shape), tuple(leaf2.shape)
                found[i, j] = read_axes(request.trace_axes, request.diagonal_axes, *shapes, name)
    return found


_WAYS = {("ntk", False): Pair, ("ntk", True): Products, ("nngp", False): OutputProducts}


def _shapes(f: Callable, params: Any, x: Any, kwargs: dict) -> Any:
    """Shapes of f."""
    return _traced(
        f, params, x, kwargs, lambda function: functools.partial(jax.eval_shape, function)
    )


def _outputs(f: Callable, params: Any, x: Any, kwargs: dict) -> tuple[Any, bool]:
    """Shapes of f, and whether it closes over tracers."""
    jaxpr, shapes = _traced(
        f, params, x, kwargs, functools.partial(jax.make_jaxpr, return_shape=True)
    )
    return shapes, is_traced(_jax.open_jaxpr(jaxpr)[1])


def _traced(f: Callable, params: Any, x: Any, kwargs: dict, tracer: Callable) -> Any:
    """Trace f; arrays among the keyword arguments are traced, everything else is handed over as it is."""
    leaves, tree = jax.tree.flatten(kwargs)
    arrays = [leaf for leaf in leaves if hasattr(leaf, "dtype")]

    def with_arrays(params, x, arrays):
        own = iter(arrays)
        return f(
            params,
            x,
            **tree.unflatten([next(own) if hasattr(leaf, "dtype") else leaf for leaf in leaves]),
        )

    return tracer(with_arrays)(params, x, arrays)


def _mapped(axes: VmapAxes | None) -> frozenset[str]:
    """Names under `kwargs_axes` with one axis, whose pairs are one array each."""
    if axes is None or not isinstance(axes.kwargs, dict):
        return frozenset()
    return frozenset(name for name, axis in axes.kwargs.items() if isinstance(axis, int))


def _is_empty(axes: KernelAxes) -> bool:
    return 0 in axes.shape1 or 0 in axes.shape2


def _is_without_parameters(request: Request, params: Any) -> bool:
    return request.kernel == "ntk" and not sum(leaf.size for leaf in jax.tree.leaves(params))


def _implementation(request: Request, params: Any, side: OneSide) -> NtkImplementation:
    """Which one: in half precision each would give another kernel, so there is only one."""
    if request.implementation is NtkImplementation.AUTO or request.kernel == "nngp":
        return NtkImplementation.AUTO
    closed = _traced(request.f, params, side.x, side.kwargs, jax.make_jaxpr)
    return NtkImplementation.AUTO if inputs.computes_in_half(closed) else request.implementation
