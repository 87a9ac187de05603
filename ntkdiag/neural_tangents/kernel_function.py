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
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ntkdiag import _jax, errors
from ntkdiag.engine.calls import constants, meshes
from ntkdiag.engine.calls.arguments import is_traced
from ntkdiag.engine.calls.caches import Cache
from ntkdiag.engine.calls.call import Memory
from ntkdiag.neural_tangents import inputs
from ntkdiag.neural_tangents.axes import AxesLike, KernelArray, KernelAxes, read_axes
from ntkdiag.neural_tangents.examples import Examples, VmapAxes, cut_whole
from ntkdiag.neural_tangents.kernels import Outputs, nngps, ntks
from ntkdiag.neural_tangents.per_input import read_pairs, split_kwargs
from ntkdiag.neural_tangents.route import OneSide, Route, find_route, signature, whole_route


@dataclasses.dataclass(frozen=True, eq=False)
class Request:
    """The arguments of `empirical_ntk_fn` or `empirical_nngp_fn`, and those of `batch`.

    Attributes:
        kernel: Which of the two.
        f: The function.
        trace_axes: As the user gave them.
        diagonal_axes: As the user gave them.
        vmap_axes: As a triple; None where nothing was said.
        cross_terms: Whether kernels between different outputs are wanted.
        check: Whether f is evaluated to see if examples interact.
        memory: Budget as the user gave it.
        tile: Largest block of examples; None for as many as fit.
        devices: Over how many devices the rows are spread.
        on_host: Whether results are numpy arrays.
    """

    kernel: Literal["ntk", "nngp"]
    f: Callable[..., PyTree]
    trace_axes: AxesLike
    diagonal_axes: AxesLike
    vmap_axes: VmapAxes | None = None
    cross_terms: bool = False
    check: bool = True
    memory: Memory | None = None
    tile: int | None = None
    devices: int = 1
    on_host: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
    """What is known of a call from its shapes.

    Attributes:
        per_input: Keyword arguments whose tuples of two are one value each.
        route: How the arguments are cut into examples.
        compute: Parameters, row examples, column examples or None -> kernels.
        arrange: List of kernels -> the tree that is returned.
    """

    per_input: frozenset[str]
    route: Route
    compute: Callable[..., list[KernelArray]]
    arrange: Callable[[list[KernelArray]], PyTree]


@dataclasses.dataclass(frozen=True, eq=False)
class KernelFunction:
    """A kernel as a function of inputs and parameters.

    Attributes:
        request: What is asked for.
    """

    request: Request
    _prepared: Cache = dataclasses.field(default_factory=Cache, repr=False)

    def __call__(self, x1: PyTree, x2: PyTree, params: PyTree, **apply_fn_kwargs: Any) -> PyTree:
        """The kernel.

        Args:
            x1: Row inputs, a pytree of arrays.
            x2: Column inputs; None, or a tree of None, stands for x1.
            params: Parameters.
            **apply_fn_kwargs: Handed to f; see `empirical_ntk_fn`.

        Returns:
            For every output of f an array of shape `zip(f(x1).shape, f(x2).shape)` with the axes
            tied.
        """
        named = errors.called(f"{self.request.kernel}_fn(x1, x2, params)")
        return named(self._evaluated)(x1, x2, params, apply_fn_kwargs)

    def changed(self, **changes: Any) -> "KernelFunction":
        """The same kernel computed with other means: fields of the request."""
        return KernelFunction(dataclasses.replace(self.request, **changes))

    def _evaluated(self, x1: PyTree, x2: PyTree, params: PyTree, kwargs: dict[str, Any]) -> PyTree:
        """The kernel; inside someone's jit it is computed now if nothing of it is traced."""
        x2 = None if inputs.is_none(x2) else x2
        arguments = x1, x2, params, kwargs
        outputs = lambda: self.request.f(params, x1, **kwargs)
        with constants.evaluated(arguments, outputs) as arguments:
            return self._computed(*arguments)

    def _computed(self, x1: PyTree, x2: PyTree, params: PyTree, kwargs: dict[str, Any]) -> PyTree:
        x1, x2, params = inputs.as_arrays((x1, x2, params))
        kwargs = jax.tree.map(_as_jax, kwargs)
        arguments = x1, x2, params, kwargs
        mesh = meshes.spread(arguments)
        if mesh is not None:
            return meshes.automatically(self._computed, mesh, *arguments)
        prepared = self._prepare(arguments)
        kwargs1, kwargs2 = split_kwargs(kwargs, prepared.per_input, x1, x2)

        # Half precision is widened first, which is exact.
        rows = prepared.route.rows.split(*inputs.widen((x1, kwargs1)))
        columns = None
        if x2 is not None:
            columns = prepared.route.columns.split(*inputs.widen((x2, kwargs2)))
        rows = _spread(rows, self.request.devices)
        kernels = prepared.compute(inputs.widen(params), rows, columns)
        if self.request.on_host and not is_traced(kernels):
            return prepared.arrange([np.asarray(kernel) for kernel in kernels])
        return prepared.arrange([jnp.asarray(kernel) for kernel in kernels])

    def _prepare(self, arguments: tuple) -> Prepared:
        """What was prepared for arguments of these shapes before, or now."""
        if is_traced(arguments):
            return prepare(self.request, *arguments)
        key = signature(arguments)
        prepared = self._prepared.get(self.request.f, key)
        if prepared is None:
            prepared = prepare(self.request, *arguments)
            self._prepared.put(self.request.f, key, prepared)
        return prepared


def prepare(
    request: Request, x1: PyTree, x2: PyTree, params: PyTree, kwargs: dict[str, Any]
) -> Prepared:
    """Check everything, and find the route.

    Cost: traces of f; evaluations of f where `find_route` needs them.

    Raises:
        InvalidInputError: Arguments or axes do not fit.
        ExamplesInteractError: `vmap_axes` are given and examples interact.
    """
    f = request.f
    if request.kernel == "ntk":
        inputs.check_parameters(params, check=request.check)
    params, x1, x2 = inputs.widen((params, x1, x2))

    # Keyword arguments and outputs of both sides.
    mapped = frozenset() if request.vmap_axes is None else request.vmap_axes.mapped_names
    per_input = read_pairs(kwargs, lambda own: _outputs(f, params, x1, own), mapped)
    kwargs1, kwargs2 = inputs.widen(split_kwargs(kwargs, per_input, x1, x2))
    sides = [OneSide("x1", x1, kwargs1, _outputs(f, params, x1, kwargs1))]
    if x2 is not None:
        sides.append(OneSide("x2", x2, kwargs2, _outputs(f, params, x2, kwargs2)))
    for side in sides:
        inputs.check_outputs(side.outputs)
    outputs1, outputs2 = sides[0].outputs, sides[-1].outputs
    inputs.check_same_structure(outputs1, outputs2)

    # The axes of every kernel, and those that have entries to compute.
    axes = _axes(request, outputs1, outputs2)
    n_parameters = sum(leaf.size for leaf in jax.tree.leaves(params))
    to_compute = {}
    for outputs, own in axes.items():
        if not own.is_empty and (n_parameters or request.kernel == "nngp"):
            to_compute[outputs] = own
    if request.kernel == "nngp" or not to_compute:
        route = whole_route(sides)
    else:
        route = find_route(f, params, sides, request.vmap_axes, check=request.check)
    if request.kernel == "nngp":
        compute = nngps(f, to_compute, route)
    else:
        compute = ntks(f, to_compute, route, request.memory, request.tile)

    def compute_all(params: PyTree, rows: Examples, columns: Examples | None) -> list[KernelArray]:
        """All kernels: those without an entry, or without a parameter, are zero."""
        computed = iter(compute(params, rows, columns) if to_compute else ())
        dtypes1 = [leaf.dtype for leaf in jax.tree.leaves(outputs1)]
        dtypes2 = [leaf.dtype for leaf in jax.tree.leaves(outputs2)]
        kernels = []
        for (i, j), own in axes.items():
            if (i, j) in to_compute:
                kernels.append(next(computed))
            else:
                dtype = _jax.at_least_float32(jnp.result_type(dtypes1[i], dtypes2[j]))
                # The mean over no output at all is NaN, as in numpy.
                kernels.append(jnp.zeros(own.shape, dtype) / jnp.asarray(own.denominator, dtype))
        return kernels

    tree = jax.tree.structure(outputs1)

    def arrange(kernels: list[KernelArray]) -> PyTree:
        """A tree of kernels, or with cross terms a tree of trees."""
        if not request.cross_terms:
            return tree.unflatten(kernels)
        n = tree.num_leaves
        return tree.unflatten([tree.unflatten(kernels[k * n : (k + 1) * n]) for k in range(n)])

    return Prepared(per_input, route, compute_all, arrange)


def _outputs(f: Callable[..., PyTree], params: PyTree, x: PyTree, kwargs: dict[str, Any]) -> PyTree:
    """Shapes of the outputs of f; what is no array among the keyword arguments is handed over."""
    cut = cut_whole(x, kwargs)
    return jax.eval_shape(cut.applied(f), params, *cut.split(x, kwargs))


def _axes(request: Request, outputs1: PyTree, outputs2: PyTree) -> dict[Outputs, KernelAxes]:
    """The axes of every kernel that is wanted, by the numbers of its two outputs."""
    rows = jax.tree_util.tree_leaves_with_path(outputs1)
    columns = jax.tree_util.tree_leaves_with_path(outputs2)
    axes = {}
    for i, (path1, leaf1) in enumerate(rows):
        for j, (path2, leaf2) in enumerate(columns):
            if i != j and not request.cross_terms:
                continue
            name = inputs.output_name(path1)
            if i != j:
                name += f" and{inputs.output_name(path2)}"
            shapes = tuple(leaf1.shape), tuple(leaf2.shape)
            axes[i, j] = read_axes(request.trace_axes, request.diagonal_axes, *shapes, name)
    return axes


def _as_jax(leaf: Any) -> Any:
    """A numpy array as a JAX array; anything else, such as a flag, as it is."""
    return jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf


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
