"""Equinox modules: floating arrays are differentiated; a module that takes one example is mapped over the batch."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from ntkdiag import errors
from ntkdiag.adapters import parameters, structure
from ntkdiag.adapters.functional import Apply, Functional
from ntkdiag.adapters.partition import partition
from ntkdiag.adapters.request import Request, as_key

_CALL = "functionalize(module)"


def adapt(module: Any, request: Request) -> Functional:
    """Turn an Equinox module into a Functional.

    Args:
        module: An instance of `equinox.Module`.
        request: What was asked for; options `batched` (True: the module takes the whole batch; False, the default and
            the convention of Equinox: it takes one example), `state` (an `equinox.nn.State`), `key` (split over the
            examples; can also be given to `f(params, x, key=...)`), `axis_name` (of the map over the batch; found by
            itself where `equinox.nn.BatchNorm` names it).

    Returns:
        The Functional; its params are the filtered module, its `restore` gives a new module.
    """
    import equinox as eqx

    request.require_options(("batched", "state", "key", "axis_name"), call=_CALL)
    request.require_alone(call=_CALL)
    request.bound(module, call=_CALL)
    _require_state(module, request.options.get("state"))
    state = jax.tree.flatten(parameters.owned(request.options.get("state")))
    part = partition(module, request.trainable, call=_CALL, check_finite=request.check_finite)
    _warn_tied(part.params)
    batched = bool(request.options.get("batched"))
    one = _one(request, *state)
    run = _batched(one) if batched else _mapped(one, _axis_name(module, request))

    def function(params: Any, x: Any, **kwargs: Any) -> Any:
        model = eqx.nn.inference_mode(part.merge(params), value=request.mode == "eval")
        key = as_key(kwargs.pop("key", request.options.get("key")))
        return run(model, x, key, kwargs)

    return Functional(
        apply=Apply(function, "equinox", request.mode, request.output),
        params=part.params,
        restore=part.rebuild,
        library="equinox",
        mode=request.mode,
        name=type(module).__name__,
        fixed=part.fixed | {f"state/{index}": leaf for index, leaf in enumerate(state[0])},
        extract=part.take,
    )


def _one(request: Request, leaves: list[Any], treedef: Any) -> Callable[..., Any]:
    """Write the call of the module, on an example or on a batch, that drops the new state."""

    def run(model: Any, x: Any, key: Any, kwargs: Mapping[str, Any]) -> Any:
        called = request.bound(model, call=_CALL)
        args, keywords = request.arguments(called, x, kwargs)
        if key is not None:
            keywords["key"] = key
        if not leaves:
            return called(*args, **keywords)
        # A State can be used once, also by the user: build a new one for every call.
        return called(*args, jax.tree.unflatten(treedef, leaves), **keywords)[0]

    return run


def _mapped(one: Callable[..., Any], axis_name: Any) -> Callable[..., Any]:
    """Map the module over the leading axis of `x`; keyword arguments are the same for every example."""

    def run(model: Any, x: Any, key: Any, kwargs: Mapping[str, Any]) -> Any:
        shapes = [np.shape(leaf) for leaf in jax.tree.leaves(x)]
        if not all(shapes) or len({shape[0] for shape in shapes}) != 1:
            raise _wrong_batch("x with one leading axis of examples", f"x of shape {_listed(shapes)}")
        keys = None if key is None else jax.random.split(key, shapes[0][0])
        each = jax.vmap(lambda x, key: one(model, x, key, kwargs), axis_name=axis_name)
        try:
            return each(x, keys)
        except (errors.NtkdiagError, jax.errors.JAXTypeError, jax.errors.JAXIndexError):
            raise
        except (TypeError, ValueError, IndexError) as error:
            reason = str(error).rstrip(".")
            got = f"examples of shape {_listed([shape[1:] for shape in shapes])}, which it refused with: {reason}"
            raise _wrong_batch("a module that takes one example, x[i]", got) from error
        except RuntimeError as error:
            if "key" in str(error):
                error.add_note('ntkdiag: for a random layer, use mode="eval" or pass key= to functionalize.')
            raise

    return run


def _batched(one: Callable[..., Any]) -> Callable[..., Any]:
    """Hand the batch to the module as it is."""

    def run(model: Any, x: Any, key: Any, kwargs: Mapping[str, Any]) -> Any:
        y = one(model, x, key, kwargs)
        before, after = ({np.shape(leaf)[:1] for leaf in jax.tree.leaves(tree)} for tree in (x, y))
        if before.isdisjoint(after):
            shapes = _listed([np.shape(leaf) for leaf in jax.tree.leaves(y)])
            raise _wrong_batch("a module that keeps the leading axis of the batch, because batched=True", shapes)
        return y

    return run


def _wrong_batch(expected: str, got: str) -> errors.InvalidInputError:
    return errors.InvalidInputError(
        errors.message(
            "f(params, x) of an Equinox module",
            expected=expected,
            got=got,
            do="Pass batched=True to functionalize for a module that takes a batch, batched=False for one that takes "
            "a single example, as those of Equinox do.",
        )
    )


def _listed(shapes: list[tuple[int, ...]]) -> str:
    return " and ".join(str(shape) for shape in shapes) or "()"


def _require_state(module: Any, state: Any) -> None:
    import equinox as eqx

    indices = [m for m in _nodes(module, eqx.nn.StateIndex) if isinstance(m, eqx.nn.StateIndex)]
    got = f"{len(indices)} entries of stateful layers and state=None" if state is None and indices else None
    try:
        jax.tree.leaves(state)
    except ValueError:
        got = "a state that was used up by a call of the module"
    if got is not None:
        raise errors.InvalidInputError(
            errors.message(
                _CALL,
                expected="a state for the stateful layers of this module",
                got=got,
                do="Pass state=, the second result of equinox.nn.make_with_state or of the last call of the module.",
            )
        )


def _axis_name(module: Any, request: Request) -> Any:
    """Find the name that batch normalisation expects the batch axis to have."""
    import equinox as eqx

    norms = [m for m in _nodes(module, eqx.nn.BatchNorm) if isinstance(m, eqx.nn.BatchNorm)]
    names = {n for m in norms for n in (m.axis_name if isinstance(m.axis_name, tuple | list) else (m.axis_name,))}
    if request.options.get("axis_name") is not None:
        return request.options["axis_name"]
    if len(names) > 1:
        raise errors.InvalidInputError(
            errors.message(
                _CALL,
                expected="batch normalisation over one axis name",
                got=f"axis names {sorted(map(str, names))}",
                do="Build the layers with the same axis_name.",
            )
        )
    return next(iter(names), None)


def _nodes(module: Any, kind: type) -> list[Any]:
    return jax.tree.leaves(module, is_leaf=lambda node: isinstance(node, kind))


def _warn_tied(params: Any) -> None:
    """Say that one array in two places is two parameters: it would count twice, and its copies move apart."""
    seen: dict[int, str] = {}
    for path, leaf in structure.leaves_by_path(params).items():
        # Biases that start as the same array of zeros are common and harmless.
        if leaf.ndim >= 2 and seen.setdefault(id(leaf), path) != path:
            warnings.warn(
                f'{_CALL}: "{seen[id(leaf)]}" and "{path}" are the same array and count as two independent '
                "parameters. Tie them with equinox.nn.Shared, or leave one out with trainable=.",
                stacklevel=4,
            )
