"""One way in for every model: find the adapter by the type of the object."""

import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax

from ntkdiag import errors
from ntkdiag.adapters import parameters, registry
from ntkdiag.adapters.functional import Functional
from ntkdiag.adapters.request import Request

_CALL = "functionalize(model)"


def functionalize(
    model: Any,
    variables: Any = None,
    *,
    mode: str = "eval",
    method: str | Callable[..., Any] | None = None,
    trainable: Any = None,
    output: Callable[[Any], Any] | None = None,
    call_kwargs: Mapping[str, Any] | None = None,
    unpack: bool = False,
    check_finite: bool = True,
    **options: Any,
) -> Functional:
    """Turn a model into a pure function `f(params, x, **kwargs)`, its parameters, and the way back.

    The model is never changed, and what it holds beside the parameters (running statistics, random streams, caches,
    leaves that are not trainable) is held fixed at its present value.

    Cost: no computation beyond one look at every parameter for NaN; no copy of the parameters.

    Args:
        model: A Flax linen module, a Flax NNX model, an Equinox module, a callable `f(params, x, **kwargs)`, a Flax
            TrainState, or a model that an installed adapter knows.
        variables: For linen, the variables of `module.init` or a TrainState; for a callable, its parameters; for
            models that carry their parameters, nothing.
        mode: ``"eval"``: dropout is off and normalisation uses its running statistics. ``"train"``: dropout is on
            with a fixed key, normalisation uses the statistics of the batch (the examples then interact), and updates
            of the statistics are thrown away. Arguments of the model named `train`, `training`, `is_training`,
            `deterministic`, `use_running_average` or `inference` are set accordingly.
        method: Method to call in place of the model itself, by name or as a function of the model.
        trainable: What is differentiated. None: every floating parameter. A path glob such as ``"**/kernel"`` or
            ``"head/**"``, or a list of them; a predicate `(path, leaf)` or `(leaf)`; a tree of booleans; a filter of
            the library (`nnx.LoRAParam`, an Equinox filter spec).
        output: Applied to what the model returns, on the whole batch: a selection of outputs, a loss.
        call_kwargs: Keyword arguments for every call of the model.
        unpack: Spread `x`, a tuple or a dictionary, over the arguments of the model: `model(*x)`, `model(**x)`.
        check_finite: Refuse parameters with NaN or infinity.
        **options: For linen and NNX, `rngs`; for Equinox, `batched`, `state`, `key`, `axis_name`; for a registered
            adapter, what it knows.

    Returns:
        The Functional; it unpacks as `f, params`.

    Raises:
        InvalidInputError: If an argument does not fit the model, or a parameter cannot be differentiated.
        UnsupportedModelError: If no adapter knows the object.
    """
    call_kwargs = dict(call_kwargs or {})
    request = Request(variables, mode, method, trainable, output, call_kwargs, unpack, check_finite, options)
    _check(model, request)
    if isinstance(model, Functional):
        return model if variables is None else model.with_params(variables, check_finite=check_finite)
    model, request = _look_behind(model, request)
    if _is(model, "flax.linen"):
        from ntkdiag.adapters import linen as adapter
    elif _is(model, "flax.nnx"):
        from ntkdiag.adapters import nnx as adapter
    elif _is(model, "equinox") and not _wraps_function(model, request):
        from ntkdiag.adapters import equinox as adapter
    else:
        other = registry.registered(model)
        if other is not None:
            return other(model, variables, **_given(request))
        if not callable(model) or isinstance(model, type):
            raise _unsupported(model)
        from ntkdiag.adapters import plain as adapter
    return adapter.adapt(model, request)


def _is(model: Any, library: str) -> bool:
    # A user who holds such an object has imported its library; nobody else pays for it.
    loaded = sys.modules.get(library)
    return isinstance(model, getattr(loaded, "Module", ()))


def _look_behind(model: Any, request: Request) -> tuple[Any, Request]:
    if "flax.linen" not in sys.modules:
        return model, request
    from ntkdiag.adapters import linen

    model, variables = linen.behind(model, request.variables)
    return model, dataclasses.replace(request, variables=variables)


def _wraps_function(model: Any, request: Request) -> bool:
    """Tell a function in an Equinox wrapper (`filter_jit`), handed in with parameters, from a model."""
    return request.variables is not None and not any(map(parameters.is_inexact, jax.tree.leaves(model)))


def _given(request: Request) -> dict[str, Any]:
    """Keep the arguments that were given: an adapter need not know those it has no use for."""
    default = Request()
    names = ("mode", "method", "trainable", "output", "call_kwargs", "unpack", "check_finite")
    changed = {name: getattr(request, name) for name in names if getattr(request, name) is not getattr(default, name)}
    if not request.call_kwargs:
        changed.pop("call_kwargs", None)
    return {**changed, **request.options}


def _check(model: Any, request: Request) -> None:
    wrong = None
    if request.mode not in ("eval", "train"):
        wrong = ('mode="eval" or mode="train"', f"mode={request.mode!r}", "Choose one of the two.")
    elif request.output is not None and not callable(request.output):
        got = f"output={request.output!r}"
        wrong = ("`output` to be a function of what the model returns", got, "Pass output=lambda y: y[:, -1], say.")
    elif isinstance(model, Functional) and (_given(request) != {}):
        given = ", ".join(f"{name}=" for name in _given(request))
        wrong = ("a model, where options are given", f"a Functional and {given}", "Pass the model it was made from.")
    if wrong is not None:
        raise errors.InvalidInputError(errors.message(_CALL, expected=wrong[0], got=wrong[1], do=wrong[2]))


def _unsupported(model: Any) -> errors.UnsupportedModelError:
    got, do = type(model).__name__, "Wrap it in a function f(params, x) and pass functionalize(f, params)."
    if isinstance(model, type):
        got, do = f"the class {model.__name__}", f"Make an instance of it: {model.__name__}(...)."
    elif hasattr(model, "init") and hasattr(model, "apply"):
        do = "Pass functionalize(lambda params, x: model.apply(params, None, x), params), or as its apply has it."
    elif type(model).__name__ == "GraphDef":
        do = "Pass functionalize(nnx.merge(graphdef, state))."
    elif isinstance(model, tuple):
        do = "Pass the model, not the tuple: functionalize(module, state=state) for a stateful Equinox module."
    return errors.UnsupportedModelError(
        errors.message(
            _CALL,
            expected="a Flax linen module, a Flax NNX model, an Equinox module, a callable f(params, x), "
            "or a model of a library whose adapter is installed (keras, tensorflow, torch)",
            got=got,
            do=do,
        )
    )
