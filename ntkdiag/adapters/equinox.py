"""Equinox modules: floating arrays are differentiated; a module that takes one example is mapped over the batch."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from ntkdiag import errors
from ntkdiag.adapters import equinox_norm, parameters, structure
from ntkdiag.adapters.functional import Apply, Functional
from ntkdiag.adapters.mode import alone
from ntkdiag.adapters.partition import partition
from ntkdiag.adapters.request import Request, as_key
from ntkdiag.adapters.selectors import opened

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
    request.require_returned(call=_CALL)
    request.bound(module, call=_CALL)
    _require_state(module, request.options.get("state"))
    own, part = partition(module, request.trainable, call=_CALL, check_finite=request.check_finite)
    _warn_tied(own)
    run = _runner(request, equinox_norm.axis_name(module, call=_CALL))
    state = parameters.owned(request.options.get("state"))
    if request.mode.statistics is not None:
        state = _with_statistics(run, module, state, request)
    leaves, treedef = jax.tree.flatten(state)

    def function(params: Any, x: Any, **kwargs: Any) -> Any:
        model = eqx.nn.inference_mode(part.merge(params), value=not request.mode.trains)
        model = model if request.mode.joint or not request.mode.trains else equinox_norm.running(model)
        # A State can be used once, also by the user: build a new one for every call.
        return run(model, jax.tree.unflatten(treedef, leaves), x, kwargs)[0]

    return Functional(
        apply=Apply(function, "equinox", str(request.mode), request.selected),
        params=own,
        restore=part.rebuild,
        library="equinox",
        mode=str(request.mode),
        name=type(module).__name__,
        fixed=part.fixed | {f"state/{index}": leaf for index, leaf in enumerate(leaves)},
        extract=part.take,
    )


def _runner(request: Request, named: Any) -> Callable[..., tuple[Any, Any]]:
    """Write the call on a batch: `(module, state, x, kwargs) -> (outputs, new state)`."""
    named = request.options.get("axis_name") or named
    batched, shared = bool(request.options.get("batched")), request.mode.trains and not request.mode.joint

    def run(model: Any, state: Any, x: Any, kwargs: Mapping[str, Any], together: bool = False) -> tuple[Any, Any]:
        keywords = dict(kwargs)
        key = as_key(keywords.pop("key", request.options.get("key")))
        call = lambda x, key: _call(request, model, state, x, key, keywords)
        one_mask = shared and not together
        if batched:
            whole = lambda x: _checked(call(x, key), x)
            return (alone(lambda x: whole(x)[0], x), None) if one_mask else whole(x)
        # One key for all examples is one mask for all; otherwise every example has its own.
        keys = key if key is None or one_mask else jax.random.split(key, _length(x))
        return _mapped(call, x, keys, None if keys is key else 0, named)

    return run


def _with_statistics(run: Callable[..., tuple[Any, Any]], module: Any, state: Any, request: Request) -> Any:
    """Compute the state after a training step on the batch of statistics."""
    import equinox as eqx

    def step(model: Any, state: Any) -> Any:
        after = run(model, state, request.mode.statistics, {}, together=True)[1]
        # Normalisation gives every example the same new statistics.
        return after if request.options.get("batched") else jax.tree.map(lambda leaf: leaf[0], after)

    return equinox_norm.of_batch(eqx.nn.inference_mode(module, value=False), state, step)


def _call(request: Request, model: Any, state: Any, x: Any, key: Any, kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Call the module on an example, or on a batch if it takes one."""
    called = request.bound(model, call=_CALL)
    args, keywords = request.arguments(called, x, kwargs)
    if key is not None:
        keywords["key"] = key
    if state is None:
        return opened(called(*args, **keywords)), None
    y, after = called(*args, state, **keywords)
    return opened(y), after


def _length(x: Any) -> int:
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(x)]
    if not shapes or not all(shapes) or len({shape[0] for shape in shapes}) != 1:
        raise _wrong_batch("x with one leading axis of examples", f"x of shape {_listed(shapes)}")
    return shapes[0][0]


def _mapped(call: Callable[..., Any], x: Any, keys: Any, key_axis: int | None, axis_name: Any) -> Any:
    """Map the module over the leading axis of `x`; keyword arguments are the same for every example."""
    _length(x)
    try:
        return jax.vmap(call, in_axes=(0, key_axis), axis_name=axis_name)(x, keys)
    except (errors.NtkdiagError, jax.errors.JAXTypeError, jax.errors.JAXIndexError):
        raise
    except (TypeError, ValueError, IndexError) as error:
        reason = str(error).rstrip(".")
        shapes = _listed([np.shape(leaf)[1:] for leaf in jax.tree.leaves(x)])
        got = f"examples of shape {shapes}, which it refused with: {reason}"
        raise _wrong_batch("a module that takes one example, x[i]", got) from error
    except RuntimeError as error:
        if "key" in str(error):
            error.add_note('ntkdiag: for a random layer, use mode="eval" or pass key= to functionalize.')
        raise


def _checked(out: tuple[Any, Any], x: Any) -> tuple[Any, Any]:
    """Refuse a batch that went in whole and came out without its leading axis."""
    before, after = ({np.shape(leaf)[:1] for leaf in jax.tree.leaves(tree)} for tree in (x, out[0]))
    if before.isdisjoint(after):
        shapes = _listed([np.shape(leaf) for leaf in jax.tree.leaves(out[0])])
        raise _wrong_batch("a module that keeps the leading axis of the batch, because batched=True", shapes)
    return out


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

    indices = equinox_norm.nodes(module, eqx.nn.StateIndex)
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
