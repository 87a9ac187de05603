"""One way in for every model: find the adapter by the type of the object."""

import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax

from ntkdiag import errors
from ntkdiag.adapters import parameters, registry
from ntkdiag.adapters.functional import Functional
from ntkdiag.adapters.mode import MODES, Mode
from ntkdiag.adapters.outputs import Activations
from ntkdiag.adapters.request import Request

_CALL = "functionalize(model)"


def functionalize(
    model: Any,
    variables: Any = None,
    *,
    mode: str = "eval",
    statistics: Any = None,
    method: str | Callable[..., Any] | None = None,
    trainable: Any = None,
    inputs: str | Callable[[Any], Any] | None = None,
    output: Any = None,
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
        mode: ``"eval"``: dropout is off and normalisation uses its running statistics. ``"dropout"``: dropout is on,
            with one mask for all examples of a call, and normalisation uses its running statistics. ``"train"``: as in
            a training step; every example has a mask of its own, normalisation uses the statistics of the batch (the
            examples then interact), and updates of the statistics are thrown away. Arguments of the model named
            `train`, `training`, `is_training`, `deterministic`, `use_running_average` or `inference` are set
            accordingly.
        statistics: In train mode, a batch of inputs: the statistics that a training step on it would normalise with
            are computed once and held fixed, and the mask is one for all examples, so that examples do not interact.
        method: Method to call in place of the model itself, by name or as a function of the model.
        trainable: What is differentiated. None: every floating parameter. A path glob such as ``"**/kernel"`` or
            ``"head/**"``, or a list of them; a predicate `(path, leaf)` or `(leaf)`; a tree of booleans; a filter of
            the library (`nnx.LoRAParam`, an Equinox filter spec); `adapters.labelled` of the labels or the mask given
            to Optax.
        inputs: What the model gets of `x`, when `x` holds more: a path such as ``"images"`` or ``"0"``, or a function.
        output: What is differentiated, when that is not all that the model returns: a path such as ``"logits"``, a
            function of the outputs or of the outputs and `x` (a selection, a loss), or one of `adapters.last_token`,
            `label_logit`, `example_loss`, `activations`.
        call_kwargs: Keyword arguments for every call of the model.
        unpack: Spread `x`, a tuple or a dictionary, over the arguments of the model: `model(*x)`, `model(**x)`.
        check_finite: Refuse parameters with NaN or infinity.
        **options: For linen and NNX, `rngs`; for linen, `mutable` and `collections`; for Equinox, `batched`, `state`,
            `key`, `axis_name`; for a registered adapter, what it knows.

    Returns:
        The Functional; it unpacks as `f, params`.

    Raises:
        InvalidInputError: If an argument does not fit the model, or a parameter cannot be differentiated.
        UnsupportedModelError: If no adapter knows the object.
    """
    request = Request(
        variables=variables,
        mode=Mode(mode, statistics),
        method=method,
        trainable=trainable,
        inputs=inputs,
        output=output,
        call_kwargs=dict(call_kwargs or {}),
        unpack=unpack,
        check_finite=check_finite,
        options=options,
    )
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
    names = ("method", "trainable", "inputs", "output", "call_kwargs", "unpack", "check_finite")
    changed = {name: getattr(request, name) for name in names if getattr(request, name) is not getattr(default, name)}
    if not request.call_kwargs:
        changed.pop("call_kwargs", None)
    if request.mode.name != "eval":
        changed["mode"] = request.mode.name
    if request.mode.statistics is not None:
        changed["statistics"] = request.mode.statistics
    return {**changed, **request.options}


def _check(model: Any, request: Request) -> None:
    wrong, mode = None, request.mode
    if mode.name not in MODES:
        wrong = (" or ".join(f'mode="{name}"' for name in MODES), f"mode={mode.name!r}", "Choose one of them.")
    elif mode.statistics is not None and mode.name != "train":
        wrong = ('mode="train" where `statistics` are given', f"mode={mode.name!r}", "Running statistics need nothing.")
    elif not (request.output is None or isinstance(request.output, str | Activations) or callable(request.output)):
        wrong = (
            "`output` to be a path, or a function of what the model returns",
            f"output={request.output!r}",
            "Pass output=lambda y: y[:, -1], say.",
        )
    elif not (request.inputs is None or isinstance(request.inputs, str) or callable(request.inputs)):
        wrong = (
            "`inputs` to be a path, or a function of x",
            f"inputs={request.inputs!r}",
            'Pass inputs="0" for the first of a tuple, say.',
        )
    elif isinstance(model, Functional) and _given(request).keys() - {"check_finite"}:
        given = ", ".join(f"{name}=" for name in _given(request) if name != "check_finite")
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
