"""Per example or as a whole batch: which of the two is right for this function and these arguments."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from ntkdiag import errors
from ntkdiag.engine.calls.arguments import is_traced
from ntkdiag.engine.calls.caches import Cache
from ntkdiag.neural_tangents.cut import Cut, cut_examples, cut_whole, is_array
from ntkdiag.neural_tangents.example_differences import difference, interact_error
from ntkdiag.neural_tangents.signature import signature
from ntkdiag.neural_tangents.vmap_axes import VmapAxes, axes_of_leaves

# Functions already looked at, so that the kernels of one function share the answer.
_FOUND = Cache()
# Examples of a batch that are looked at where `vmap_axes` says that they do not interact.
_SAMPLE = 16


@dataclasses.dataclass(frozen=True)
class OneSide:
    """The rows or the columns of a kernel.

    Attributes:
        name: "x1" or "x2".
        x: Inputs.
        kwargs: Keyword arguments for them.
        outputs: Shapes of f of them.
    """

    name: str
    x: Any
    kwargs: dict
    outputs: Any


@dataclasses.dataclass(frozen=True)
class Route:
    """How a kernel is computed.

    Attributes:
        cuts: For rows and columns.
        axes: Example axis of every output leaf; None for whole batches.
    """

    cuts: tuple[Cut, Cut]
    axes: list[int] | None


def find_route(
    f: Callable, params: Any, sides: list[OneSide], axes: VmapAxes | None, *, check: bool
) -> Route:
    """Choose the route and make sure of it, once for every function and shapes.

    Cost: without `vmap_axes`, or with `check`, a few evaluations of f; see `independence.difference`.

    Args:
        f: The function.
        params: Parameters.
        sides: Rows, and columns where they are not the rows.
        axes: `vmap_axes`, None where nothing was said.
        check: Whether f is evaluated to see if examples interact. Without, and without `vmap_axes`, the batch counts as
            a whole.

    Returns:
        The route.

    Raises:
        InvalidInputError: `vmap_axes` do not fit.
        ExamplesInteractError: `vmap_axes` are given and examples interact.
    """
    arguments = params, [(side.x, side.kwargs) for side in sides]
    if is_traced(arguments):  # f may close over tracers of the same trace
        return _find(f, params, sides, axes, check=check)
    key = repr(axes), check, signature(arguments)
    route = _FOUND.get(f, key)
    if route is None:
        route = _find(f, params, sides, axes, check=check)
        _FOUND.put(f, key, route)
    return route


def _find(
    f: Callable, params: Any, sides: list[OneSide], axes: VmapAxes | None, *, check: bool
) -> Route:
    if axes is not None:
        return _as_told(f, params, sides, axes, check=check)
    for guess in _guesses(sides) if check else []:
        route = _if_independent(f, params, sides, guess)
        if route is not None:
            return route
    return whole_route(sides)


def whole_route(sides: list[OneSide]) -> Route:
    """Whole batches, without a look at f."""
    return _route([cut_whole(side.x, side.kwargs) for side in sides], None)


def _route(cuts: list[Cut], axes: list[int] | None) -> Route:
    return Route((cuts[0], cuts[-1]), axes)


def _as_told(
    f: Callable, params: Any, sides: list[OneSide], axes: VmapAxes, *, check: bool
) -> Route:
    cuts = [cut_examples(side.x, side.kwargs, axes, side.name) for side in sides]
    out_axes = _output_axes(axes, sides[0].outputs)
    for side, cut in zip(sides, cuts, strict=True):
        _check_one_example(f, params, side, cut, out_axes)
    side, cut = max(zip(sides, cuts, strict=True), key=lambda both: min(both[1].n, 2))
    found = (
        difference(f, params, side.x, side.kwargs, cut, out_axes, at_most=_SAMPLE)
        if check
        else None
    )
    if found:
        raise interact_error(found)
    return _route(cuts, out_axes)


def _output_axes(axes: VmapAxes, outputs: Any) -> list[int]:
    found = axes_of_leaves(axes.outputs, outputs, "the outputs")
    if None in found:
        raise errors.InvalidInputError(
            expected="`vmap_axes` that name the example axis of every output",
            got=f"None for output {found.index(None)}",
            do="An output without examples has no kernel between examples: pass vmap_axes=None.",
        )
    return [axis for axis in found if axis is not None]


def _check_one_example(f: Callable, params: Any, side: OneSide, cut: Cut, axes: list[int]) -> None:
    """f of one example has the outputs of the batch with a batch axis of length 1."""
    expected = [
        (*leaf.shape[:axis], cut.n, *leaf.shape[axis + 1 :])
        for leaf, axis in zip(jax.tree.leaves(side.outputs), axes, strict=True)
    ]
    shapes = [tuple(leaf.shape) for leaf in jax.tree.leaves(side.outputs)]
    what = f"outputs of {side.name} with {cut.n} examples along `vmap_axes`"
    if expected != shapes:
        raise errors.InvalidInputError(
            expected=what,
            got=f"shapes {shapes}, axes {axes}",
            do="Do not reduce over examples inside f.",
        )
    try:
        alone = _alone(f, params, side, cut)
    except Exception as error:
        raise _cannot_be_alone(side, error) from error
    one = [(*shape[:axis], 1, *shape[axis + 1 :]) for shape, axis in zip(shapes, axes, strict=True)]
    if alone != one:
        raise errors.InvalidInputError(
            expected=f"outputs of shapes {one} for one example of {side.name}",
            got=f"shapes {alone}",
            do="Keyword arguments with one entry per example go under kwargs_axes.",
        )


def _alone(f: Callable, params: Any, side: OneSide, cut: Cut) -> list[tuple[int, ...]]:
    """Output shapes of f of one example."""
    mapped, shared = jax.eval_shape(cut.examples, cut.arrays(side.x, side.kwargs))
    first = [jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype) for leaf in mapped]

    def one(params, mapped, shared):
        x, kwargs = cut.arguments(mapped, shared)
        return f(params, x, **kwargs)

    return [
        tuple(leaf.shape) for leaf in jax.tree.leaves(jax.eval_shape(one, params, first, shared))
    ]


def _cannot_be_alone(side: OneSide, error: Exception) -> errors.InvalidInputError:
    text = str(error).strip().splitlines()
    return errors.InvalidInputError(
        expected=f"f to accept one example of {side.name}, as `vmap_axes` says",
        got=f"{type(error).__name__}: {text[0] if text else 'without a word'}",
        do="Keyword arguments with one entry per example go under kwargs_axes.",
    )


def _guesses(sides: list[OneSide]) -> list[VmapAxes]:
    """What `vmap_axes` may be where nothing was said: leading axes, keyword arguments shared or with one entry each."""
    names = []
    for side in sides:
        arrays = [leaf for leaf in jax.tree.leaves(side.x) if is_array(leaf)]
        lengths = {leaf.shape[:1] for leaf in [*arrays, *jax.tree.leaves(side.outputs)]}
        if not arrays or len(lengths) != 1 or lengths == {()}:
            return []
        (length,) = lengths
        batched = lambda leaf, length=length: is_array(leaf) and leaf.shape[:1] == length
        names.append(
            {
                k
                for k, v in side.kwargs.items()
                if jax.tree.leaves(v) and all(map(batched, jax.tree.leaves(v)))
            }
        )
    per_example = set.intersection(*names)
    guesses = [VmapAxes(0, 0, {})]
    return (
        [*guesses, VmapAxes(0, 0, dict.fromkeys(sorted(per_example), 0))]
        if per_example
        else guesses
    )


def _alike(side: OneSide, other: OneSide) -> bool:
    """The same shapes of inputs and the very same keyword arguments: what holds for one holds for the other."""
    (mine, tree), (others, other_tree) = (
        jax.tree.flatten(side.kwargs),
        jax.tree.flatten(other.kwargs),
    )
    same = tree == other_tree and all(a is b for a, b in zip(mine, others, strict=True))
    return same and signature(side.x) == signature(other.x)


def _if_independent(
    f: Callable, params: Any, sides: list[OneSide], guess: VmapAxes
) -> Route | None:
    """The route of a guess, where it holds."""
    try:
        cuts = [cut_examples(side.x, side.kwargs, guess, side.name) for side in sides]
        axes = _output_axes(guess, sides[0].outputs)
        for side, cut in zip(sides, cuts, strict=True):
            _check_one_example(f, params, side, cut, axes)
        for side, cut in zip(sides, cuts, strict=True):
            if side is not sides[0] and _alike(side, sides[0]):
                continue
            if difference(f, params, side.x, side.kwargs, cut, axes, poison=True):
                return None
    except Exception:  # f does not accept what the guess hands to it: the guess is wrong
        return None
    return _route(cuts, axes)
