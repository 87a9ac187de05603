"""Find the adapter of a model's library, and pass the request to it.

Libraries are told apart by the classes of the model. None of them is imported for this: a model
exists only if its library has been imported, so looking into `sys.modules` is enough.
"""

import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.models import registry
from ntkdiag.models.array_leaves import is_inexact
from ntkdiag.models.functional import Functional
from ntkdiag.models.libraries import is_module_of
from ntkdiag.models.mode import Mode
from ntkdiag.models.request import ModelRequest
from ntkdiag.models.selectors import Selector
from ntkdiag.models.trainable import Trainable


@errors.public
def functionalize(
    model: object,
    variables: PyTree = None,
    *,
    mode: str = "eval",
    method: str | Callable[..., PyTree] | None = None,
    trainable: Trainable = None,
    inputs: Selector = None,
    output: Selector = None,
    call_kwargs: Mapping[str, PyTree] | None = None,
    unpack: bool = False,
    check: bool = True,
    **options: Any,
) -> Functional:
    """Turn a model into a pure function `f(params, x, **kwargs)`, its parameters, and the way back.

    The model is never changed, and what it holds beside the parameters (running statistics, random
    streams, caches, leaves that are not trainable) is held fixed at its present value.

    Cost: no computation beyond one look at every parameter for NaN; no copy of the parameters.

    Args:
        model: A Flax linen module, a Flax NNX model, an Equinox module, a callable
            `f(params, x, **kwargs)`, a Flax TrainState, or a model that an installed adapter knows.
        variables: For linen, the variables of `module.init` or a TrainState; for a callable, its
            parameters; for models that carry their parameters, nothing.
        mode: ``"eval"``: dropout is off and normalization uses its running statistics.
            ``"dropout"``: dropout is on, with one mask for all examples of a call, and
            normalization uses its running statistics. ``"train"``: as in a training step; every
            example has a mask of its own, normalization uses the statistics of the batch (the
            examples then interact), and updates of the statistics are discarded. Arguments of the
            model named `train`, `training`, `is_training`, `deterministic`, `use_running_average`
            or `inference` are set accordingly.
        method: Method to call instead of the model itself, by name or as a function of the model.
        trainable: What is differentiated. None: every floating parameter. A path glob such as
            ``"**/kernel"`` or ``"head/**"``, or a list of them; a predicate `(path, leaf)` or
            `(leaf)`; a tree of booleans; a filter of the library (`nnx.LoRAParam`, an Equinox
            filter spec).
        inputs: The part of `x` that the model gets: a path such as ``"images"`` or ``"0"``, or a
            function.
        output: The part of the outputs that is differentiated: a path such as ``"logits"``, or a
            function of the outputs or of the outputs and `x` (a selection, a loss).
        call_kwargs: Keyword arguments for every call of the model.
        unpack: Spread `x`, a tuple or a dictionary, over the arguments of the model: `model(*x)`,
            `model(**x)`.
        check: Refuse parameters with NaN or infinity.
        **options: For linen and NNX, `rngs`; for linen, `mutable` and `collections`; for Equinox,
            `batched`, `state`, `key`, `axis_name`; for a registered adapter, its options.

    Returns:
        The Functional; it unpacks as `f, params`.

    Raises:
        InvalidInputError: If an argument does not fit the model, or a parameter cannot be
            differentiated.
        UnsupportedModelError: If no adapter knows the object.

    Example:
        >>> import jax.numpy as jnp, ntkdiag
        >>> params = {"w": jnp.ones((3, 2)), "steps": 10}
        >>> fn = ntkdiag.functionalize(lambda params, x: x @ params["w"], params)
        >>> list(fn.params)
        ['w']
        >>> fn.restore(fn.params)["steps"]
        10
    """
    request = ModelRequest(
        variables=variables,
        mode=Mode(mode),
        method=method,
        trainable=trainable,
        inputs=inputs,
        output=output,
        call_kwargs=dict(call_kwargs or {}),
        unpack=unpack,
        check=check,
        options=options,
    )
    request.require_valid()
    if isinstance(model, Functional):
        return _with_other_params(model, request)
    # A linen module behind a TrainState or `module.apply`, if there is one.
    bare_model: Any = model
    if "flax.linen" in sys.modules:
        from ntkdiag.models import linen

        bare_model, behind = linen.module_behind(model, request.variables)
        request = dataclasses.replace(request, variables=behind)

    # The three libraries that are known here, each by its class of modules. The library of a module
    # that is passed has been imported, so its adapter may import it.
    if is_module_of("flax.linen", bare_model):
        from ntkdiag.models import linen

        return linen.adapt(bare_model, request)
    if is_module_of("flax.nnx", bare_model):
        from ntkdiag.models import nnx

        return nnx.adapt(bare_model, request)
    # A wrapper (`filter_jit`) of a function of parameters is no model.
    wraps_function = request.variables is not None and not any(
        map(is_inexact, jax.tree.leaves(bare_model))
    )
    if is_module_of("equinox", bare_model) and not wraps_function:
        from ntkdiag.models import equinox

        return equinox.adapt(bare_model, request)

    # Adapters of other libraries; then whatever can be called.
    registered_adapter = registry.registered(bare_model)
    if registered_adapter is not None:
        return registered_adapter(bare_model, request.variables, **request.as_keywords())
    if callable(bare_model) and not isinstance(bare_model, type):
        from ntkdiag.models import plain

        return plain.adapt(bare_model, request)
    raise _unsupported_model_error(bare_model)


def _with_other_params(functional: Functional, request: ModelRequest) -> Functional:
    """A Functional that comes in goes out as it is, or with other parameters; it has no options."""
    options = [name for name in request.as_keywords() if name != "check"]
    if options:
        raise errors.InvalidInputError(
            expected="a model, because options are given",
            got=f"a Functional and {', '.join(f'{name}=' for name in options)}",
            do="Pass the model it was made from.",
        )
    if request.variables is None:
        return functional
    return functional.with_params(request.variables, check=request.check)


def _unsupported_model_error(model: object) -> errors.UnsupportedModelError:
    """The error for an object that no adapter knows."""
    got = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
    return errors.UnsupportedModelError(
        expected="a Flax linen module, a Flax NNX model, an Equinox module, a callable "
        "f(params, x), or a model of a library whose adapter is installed (keras, tensorflow, "
        "torch)",
        got=got,
        do="Pass an instance, or wrap it in a function f(params, x): functionalize(f, params).",
    )
