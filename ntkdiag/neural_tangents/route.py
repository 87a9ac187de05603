"""The choice between differentiating example by example and the batch as a whole.

With `vmap_axes` the caller says where the examples are; that f takes one of them alone, and that
they do not interact, is verified. Without it, the leading axes are tried, with every keyword
argument shared; if examples do not stand there, the batch is differentiated as a whole. Whether
examples interact is checked by `jaxtools.independence`.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ntkdiag import errors
from ntkdiag.call_f import in_words
from ntkdiag.jaxtools import jaxprs
from ntkdiag.jaxtools.caching import Cache, Fixed, arrays_of
from ntkdiag.jaxtools.cpu import compiler_options
from ntkdiag.jaxtools.independence import check_independent, how_to_part
from ntkdiag.jaxtools.precision import roundoff_of
from ntkdiag.jaxtools.tracing import is_traced, trace_settings
from ntkdiag.neural_tangents.examples import (
    Cut,
    VmapAxes,
    axes_of_leaves,
    cut_examples,
    cut_whole,
)
from ntkdiag.neural_tangents.per_input import each_key, is_key

# Functions already looked at: the kernels of one function share the answer.
_FOUND = Cache()
# Examples of a batch that are looked at where `vmap_axes` says that they do not interact.
_SAMPLE = 16
# How many more keys are tried where f takes one: a small mask may be the same for two examples.
_MORE_KEYS = 7
_ADVICE = (
    "; put keyword arguments that hold one entry per example under kwargs_axes, as in "
    "vmap_axes=(0, 0, {'rng': 0}) for one key each; or pass vmap_axes=None, which differentiates "
    "the batch as a whole. check=False leaves this check out"
)


@dataclasses.dataclass(frozen=True)
class OneSide:
    """The rows or the columns of a kernel."""

    name: str  # "x1" or "x2"
    x: PyTree  # inputs
    kwargs: dict[str, Any]  # keyword arguments for them
    outputs: PyTree  # shapes of f of them


@dataclasses.dataclass(frozen=True)
class Route:
    """How the arguments are cut into examples."""

    rows: Cut  # x1 and its keyword arguments
    columns: Cut  # x2 and its keyword arguments; those of x1 where it stands for both
    axes: list[int] | None  # example axis of every output leaf; None for whole batches


def find_route(
    f: Callable[..., PyTree],
    params: PyTree,
    sides: list[OneSide],
    axes: VmapAxes | None,
    *,
    check: bool,
) -> Route:
    """Choose the route and, with `check`, verify it, once for every function and shapes."""

    def find() -> Route:
        if axes is not None:
            return _along(f, params, sides, axes, look_at=_SAMPLE if check else 0)
        if check and all(map(_has_one_length, sides)):
            try:
                return _along(f, params, sides, VmapAxes(0, 0, {}), look_at=None)
            except Exception:  # f does not accept one example, or examples interact
                pass
        return whole_route(sides)

    arguments = repr(axes), check, params, [(side.x, side.kwargs) for side in sides]
    return remembered(_FOUND, f, arguments, find)


def remembered(
    cache: Cache, f: Callable[..., PyTree], arguments: PyTree, find: Callable[[], Any]
) -> Any:
    """The result of `find` for f and arguments of these shapes, from the cache if possible."""
    if is_traced(arguments):  # f may close over tracers of the same trace
        return find()
    key = signature(arguments)
    found = cache.get(f, key)
    if found is None:
        found = find()
        cache.put(f, key, found)
    return found


def signature(arguments: PyTree) -> tuple:
    """What calls must share to share a program: structure, shapes, dtypes, values of the rest."""
    kinds = tuple((leaf.shape, leaf.dtype) for leaf in arrays_of(arguments))
    return Fixed.of({"arguments": arguments}), kinds, trace_settings()


def whole_route(sides: list[OneSide]) -> Route:
    """Whole batches, without a look at f."""
    cuts = [cut_whole(side.x, side.kwargs) for side in sides]
    return Route(cuts[0], cuts[-1], None)


def _along(
    f: Callable[..., PyTree],
    params: PyTree,
    sides: list[OneSide],
    axes: VmapAxes,
    look_at: int | None,
) -> Route:
    """The route along axes; `look_at` examples, or all, are compared with f of each alone."""
    cuts = [cut_examples(side.x, side.kwargs, axes, side.name) for side in sides]
    out_axes = []
    for number, axis in enumerate(axes_of_leaves(axes.outputs, sides[0].outputs, "the outputs")):
        if axis is None:
            raise errors.InvalidInputError(
                expected="`vmap_axes` that name the example axis of every output",
                got=f"None for output {number}",
                do="An output without examples has no kernel between examples: pass "
                "vmap_axes=None.",
            )
        out_axes.append(axis)
    pairs = list(zip(sides, cuts, strict=True))
    examples = [_check_one_example(f, params, side, cut, out_axes) for side, cut in pairs]
    if cuts[0] == cuts[-1] and examples[0] == examples[-1]:
        # Both are cut alike into examples of the same shapes: the longer one says it for both.
        pairs = [max(pairs, key=lambda pair: pair[1].n)]
    for side, cut in pairs:
        _require_independent(f, params, side, cut, out_axes, look_at)
    return Route(cuts[0], cuts[-1], out_axes)


def _check_one_example(
    f: Callable[..., PyTree], params: PyTree, side: OneSide, cut: Cut, axes: list[int]
) -> list[jax.ShapeDtypeStruct]:
    """The shapes of one example; f of it has the outputs of the batch with an axis of length 1."""
    shapes = [tuple(leaf.shape) for leaf in jax.tree.leaves(side.outputs)]
    if shapes != _with_length(cut.n, shapes, axes):
        raise errors.InvalidInputError(
            expected=f"outputs of {side.name} with {cut.n} examples along `vmap_axes`",
            got=f"shapes {shapes}, axes {axes}",
            do="Do not reduce over examples inside f.",
        )
    mapped, shared = cut.split(side.x, side.kwargs)
    first = [jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype) for leaf in mapped]
    try:
        outputs = jax.eval_shape(cut.applied(f), params, first, shared)
    except errors.InvalidInputError as error:
        raise errors.InvalidInputError(
            expected=f"f to accept one example of {side.name}, as `vmap_axes` says",
            got=in_words(error.__cause__ or error),
            do="Keyword arguments with one entry per example go under kwargs_axes.",
        ) from error
    alone = [tuple(leaf.shape) for leaf in jax.tree.leaves(outputs)]
    one = _with_length(1, shapes, axes)
    if alone != one:
        raise errors.InvalidInputError(
            expected=f"outputs of shapes {one} for one example of {side.name}",
            got=f"shapes {alone}",
            do="Keyword arguments with one entry per example go under kwargs_axes.",
        )
    return first


def _with_length(n: int, shapes: list[tuple[int, ...]], axes: list[int]) -> list[tuple[int, ...]]:
    """Shapes with n examples along their axes."""
    pairs = zip(shapes, axes, strict=True)
    return [(*shape[:axis], n, *shape[axis + 1 :]) for shape, axis in pairs]


def _has_one_length(side: OneSide) -> bool:
    """Whether the leading axes of all inputs and outputs have the same length."""
    arrays = arrays_of(side.x)
    lengths = {leaf.shape[:1] for leaf in arrays + jax.tree.leaves(side.outputs)}
    return bool(arrays) and len(lengths) == 1 and lengths != {()}


def _require_independent(
    f: Callable[..., PyTree],
    params: PyTree,
    side: OneSide,
    cut: Cut,
    axes: list[int],
    at_most: int | None,
) -> None:
    """Compare f of the batch, or of its first examples, with f of each example alone."""
    if cut.n < 2 or at_most == 0:
        return
    apply = cut.applied(f)

    def together(arguments: PyTree, mapped: list[Array]) -> list[Array]:
        """Outputs [n ...] of a batch; what all examples share counts as parameters."""
        outputs = jax.tree.leaves(apply(arguments[0], mapped, arguments[1]))
        return [jnp.moveaxis(y, axis, 0) for y, axis in zip(outputs, axes, strict=True)]

    def each_alone(arguments: PyTree, mapped: list[Array]) -> Float[Array, "n C"]:
        """Outputs of every example, evaluated by itself."""

        def of_one(example: list[Array]) -> Float[Array, " C"]:
            outputs = evaluated(arguments, [leaf[None] for leaf in example])
            return jnp.concatenate([y.reshape(-1) for y in outputs])

        return jax.vmap(of_one)(mapped)

    with jax.ensure_compile_time_eval(), jax.default_matmul_precision("highest"):
        mapped, shared = known(cut.split(side.x, side.kwargs))
        mapped = [leaf[:at_most] for leaf in mapped]
        evaluated = without_tracers(together)
        arguments = known(params), shared
        jaxpr = jax.make_jaxpr(evaluated)(arguments, mapped)
        judges = jaxprs.judges_numbers(jaxpr)
        roundoff = roundoff_of(evaluated, arguments, mapped)
        options = compiler_options(reduces=jaxprs.contains(jaxpr, "reduce_sum"))
        run = jax.jit(evaluated, compiler_options=options)
        run_alone = jax.jit(each_alone, compiler_options=options)
        do = how_to_part(f, _ADVICE)
        for keys in _with_other_keys(shared):
            arguments = arguments[0], keys
            alone = np.asarray(run_alone(arguments, mapped), np.float64)
            check_independent(run, arguments, mapped, alone, roundoff, judges, do)


def _with_other_keys(shared: list[Array]) -> Iterator[list[Array]]:
    """The arrays, and if there are random keys among them, a few times with others."""
    yield shared
    if not any(map(is_key, shared)):
        return
    for number in range(_MORE_KEYS):
        data = 1000 + number
        others = []
        for leaf in shared:
            if is_key(leaf):
                leaf = each_key(lambda key, data=data: jax.random.fold_in(key, data), leaf)
            others.append(leaf)
        yield others


# Inside someone's jit the parameters and inputs of a function, or other variables of the model that
# it closes over, may be tracers. Whether its examples interact does not depend on their values:
# random numbers of their shapes will do.


def known(tree: PyTree, seed: int = 1) -> PyTree:
    """The tree with numbers in place of its tracers."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: _stand_in(rng, leaf) if is_traced(leaf) else leaf, tree)


def without_tracers(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """The same function, with numbers in place of the tracers it closes over."""

    def evaluated(*arguments: PyTree) -> PyTree:
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        jaxpr, consts = jaxprs.open_jaxpr(closed)
        # In every trace of the function the same tracers, in the same order, get the same numbers.
        numbers = known(consts, seed=2)
        outputs = jaxprs.eval_jaxpr(jaxpr, numbers, *jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shapes), outputs)

    return evaluated


def _stand_in(rng: np.random.Generator, leaf: Any) -> Array:
    """Numbers as they may occur in a network, of the shape and dtype of a tracer."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        key = jax.random.key(1)
        return jax.random.split(key, leaf.shape) if leaf.ndim else key
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return jnp.asarray((np.arange(leaf.size) % 2).reshape(leaf.shape), leaf.dtype)
    drawn = rng.normal(size=leaf.shape)
    if leaf.ndim < 2:  # a vector may be a scale or a variance: near 1
        return jnp.asarray(1 + drawn / 10, leaf.dtype)
    # A matrix may be a weight: of unit gain.
    fan_in = max(1.0, float(np.prod(leaf.shape[:-1])))
    return jnp.asarray(drawn / fan_in**0.5, leaf.dtype)
