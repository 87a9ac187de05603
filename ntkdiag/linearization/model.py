"""The linearized network as a model of the same library, to be trained by the same optimizer."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ntkdiag import errors
from ntkdiag.adapters import Functional, functionalize, structure
from ntkdiag.linearization.displacement import displaced
from ntkdiag.linearization.expansion import Coordinates, Expansion
from ntkdiag.linearization.linearize import linearize
from ntkdiag.linearization.taylor import require_degree, taylor_expand

_CALL = "linearized_model(model)"


def linearized_model(
    model: Any,
    variables: Any = None,
    *,
    degree: int = 1,
    coordinates: Coordinates = "parameters",
    at: Any = None,
    start: Any = None,
    **options: Any,
) -> Any:
    """Linearize a model and give it back as a model of the same library.

    p -> f(theta_0, x) + J(x) (p - theta_0) by one `jax.jvp`, with theta_0 the parameters handed in. It starts at
    p = theta_0.

    - Flax linen: a linen module; `init` returns ``{"params": theta_0}`` whatever the key, `apply` evaluates.
    - Flax NNX: an NNX module; its trainable variables are those of `.model`, a copy of the network that holds p.
    - Equinox: an Equinox module with the trainable leaves p in `.params`, called like the network (one example, or
      the batch with ``batched=True``).
    - A callable `f(params, x)`: the function `f_lin(p, x)`.

    Everything that is no trainable parameter (running statistics, random streams) is held at its present value, in
    eval mode unless ``mode="train"`` is passed. `lin.network(...)` puts trained parameters into the network itself:
    `lin.network(variables)` for linen, `lin.network()` for NNX and Equinox.
    Cost of a call: about two forward passes (2^degree for a Taylor model); of a training step, 5/3 of the network's.

    Args:
        model: As for `functionalize`.
        variables: As for `functionalize`.
        degree: 1 for the linear model, higher for a Taylor model.
        coordinates: What is trained: "parameters" for p, or "displacement" for d = p - theta_0, which starts at 0,
            keeps steps below the resolution of p, and is pulled to theta_0 by an optimizer's weight decay.
        at: Where to expand instead: parameters, such as `load_params` reads from a checkpoint, or the library's own
            object later in training. Parameters that are not linearized stay the model's.
        start: Where p begins instead of theta_0, given like `at`: with B here the model is f_lin around A at B.
        **options: Handed to `functionalize`: `trainable` (which parameters are linearized), `mode`, `method`, and so
            on. ``trainable=last_layer(f, params, x)`` is the last layer.

    Returns:
        The linear model.

    Raises:
        UnsupportedModelError: For a model of a library without a linear counterpart here.
        StructureError: When `at` or `start` are no parameters of this model.
        InvalidInputError: When the degree is no integer of 0 or more, the coordinates are unknown, `start` is given
            for a callable, or as `functionalize`.
    """
    degree = require_degree(degree)
    _check(coordinates)
    functional = functionalize(model, variables, **options)
    if at is not None:
        functional = functional.with_params(parameters_in(functional, at))
    begin = functional.params if start is None else functional.with_params(parameters_in(functional, start)).params
    f, params = functional
    function: Callable[..., Any]
    if coordinates == "displacement":
        function, begin = displaced(f, params, degree), jax.tree.map(jnp.subtract, begin, params)
    else:
        function = linearize(f, params) if degree == 1 else taylor_expand(f, params, degree)
    expansion = Expansion(functional, degree, function, coordinates, begin)
    return _of_library(expansion, batched=bool(options.get("batched")), started=start is not None)


def parameters_in(functional: Functional, source: Any) -> Any:
    """Find the parameters of a model in a tree that may hold more of them, or in the library's own object.

    Cost: none.

    Args:
        functional: The model.
        source: A tree with at least the paths of its parameters, or what `functional.extract` takes.

    Returns:
        The leaves of the source, in the tree of the parameters.
    """
    needed, found = structure.leaves_by_path(functional.params), structure.leaves_by_path(source)
    if needed.keys() <= found.keys():
        return jax.tree.unflatten(jax.tree.structure(functional.params), [found[path] for path in needed])
    library = functional.library == "linen" and isinstance(source, dict) and "params" not in source
    if functional.extract is None or library:
        return source  # for `with_params` to refuse by path
    return functional.extract(source)


def _of_library(expansion: Expansion, batched: bool, started: bool) -> Any:
    library = expansion.functional.library
    if library == "linen":
        from ntkdiag.linearization.linen_model import LinearizedLinen

        return LinearizedLinen(expansion)
    if library == "nnx":
        from ntkdiag.linearization.nnx_model import LinearizedNNX

        return LinearizedNNX(expansion)
    if library == "equinox":
        from ntkdiag.linearization.equinox_model import LinearizedEquinox

        return LinearizedEquinox(expansion.start, expansion, batched)
    if library == "callable" and not started:
        return expansion.function
    if library == "callable":
        raise errors.InvalidInputError(
            errors.message(
                _CALL,
                expected="no `start` for a function, which is handed its parameters in every call",
                got="start=",
                do="Call the result with these parameters.",
            )
        )
    raise _unsupported(expansion.functional)


def _check(coordinates: str) -> None:
    if coordinates not in ("parameters", "displacement"):
        raise errors.InvalidInputError(
            errors.message(
                _CALL,
                expected='coordinates="parameters" or coordinates="displacement"',
                got=f"coordinates={coordinates!r}",
                do="The displacement is the parameters minus where the model is expanded.",
            )
        )


def _unsupported(functional: Functional) -> errors.UnsupportedModelError:
    return errors.UnsupportedModelError(
        errors.message(
            _CALL,
            expected="a Flax linen module, a Flax NNX model, an Equinox module, or a callable f(params, x)",
            got=f"a {functional.library} model",
            do="Use `f, params = functionalize(model)` and train `linearize(f, params)`.",
        )
    )
