"""The linearised network as a model of the same library, to be trained by the same optimizer."""

from typing import Any

from ntkdiag import errors
from ntkdiag.adapters import Functional, functionalize
from ntkdiag.linearize.expansion import Expansion
from ntkdiag.linearize.linearize import linearize
from ntkdiag.linearize.taylor import taylor_expand


def linearized_model(model: Any, variables: Any = None, *, degree: int = 1, **options: Any) -> Any:
    """Linearise a model and give it back as a model of the same library.

    p -> f(theta_0, x) + J(x) (p - theta_0), with theta_0 the parameters handed in. It starts at p = theta_0.

    - Flax linen: a linen module; `init` returns ``{"params": theta_0}`` whatever the key, `apply` evaluates.
    - Flax NNX: an NNX module; its trainable variables are those of `.model`, a copy of the network that holds p.
    - Equinox: an Equinox module with the trainable leaves p in `.params`, called like the network (one example, or
      the batch with ``batched=True``).
    - A callable `f(params, x)`: the function `f_lin(p, x)`.

    Everything that is no trainable parameter (running statistics, random streams) is held at its present value, in
    eval mode unless ``mode="train"`` is passed. `lin.expansion.functional.restore(p)` puts trained parameters into
    the network itself.
    Cost of a call: about two forward passes (2^degree for a Taylor model).

    Args:
        model: As for `functionalize`.
        variables: As for `functionalize`.
        degree: 1 for the linear model, higher for a Taylor model.
        **options: Handed to `functionalize`: `mode`, `method`, `trainable`, and so on.

    Returns:
        The linear model.

    Raises:
        UnsupportedModelError: For a model of a library without a linear counterpart here.
        InvalidInputError: When the degree is no integer of 0 or more, or as `functionalize`.
    """
    functional = functionalize(model, variables, **options)
    f, params = functional
    function = linearize(f, params) if degree == 1 else taylor_expand(f, params, degree)
    if functional.library == "callable":
        return function
    expansion = Expansion(functional, degree, function)
    if functional.library == "linen":
        from ntkdiag.linearize.linen_model import LinearizedLinen

        return LinearizedLinen(expansion)
    if functional.library == "nnx":
        from ntkdiag.linearize.nnx_model import LinearizedNNX

        return LinearizedNNX(expansion)
    if functional.library == "equinox":
        from ntkdiag.linearize.equinox_model import LinearizedEquinox

        return LinearizedEquinox(functional.params, expansion, bool(options.get("batched")))
    raise _unsupported(functional)


def _unsupported(functional: Functional) -> errors.UnsupportedModelError:
    return errors.UnsupportedModelError(
        errors.message(
            "linearized_model(model)",
            expected="a Flax linen module, a Flax NNX model, an Equinox module, or a callable f(params, x)",
            got=f"a {functional.library} model",
            do="Use `f, params = functionalize(model)` and train `linearize(f, params)`.",
        )
    )
