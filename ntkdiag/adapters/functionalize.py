"""One way in for every model: find the adapter by the type of the object."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

from ntkdiag import errors
from ntkdiag.adapters.functional import Functional
from ntkdiag.adapters.request import Request


def functionalize(
    model: Any,
    variables: Any = None,
    *,
    mode: str = "eval",
    method: Any = None,
    trainable: Any = None,
    output: Callable[[Any], Any] | None = None,
    call_kwargs: Mapping[str, Any] | None = None,
    unpack: bool = False,
    check_finite: bool = True,
    **options: Any,
) -> Functional:
    """Turn a model of any supported library into `f(params, x, **kwargs)`, its parameters, and the way back."""
    request = Request(
        variables, mode, method, trainable, output, dict(call_kwargs or {}), unpack, check_finite, options
    )
    if _is(model, "flax.linen", "Module"):
        from ntkdiag.adapters import linen as adapter
    elif _is(model, "flax.nnx", "Module"):
        from ntkdiag.adapters import nnx as adapter
    elif _is(model, "equinox", "Module"):
        from ntkdiag.adapters import equinox as adapter
    elif callable(model):
        from ntkdiag.adapters import plain as adapter
    else:
        raise errors.UnsupportedModelError(
            errors.message(
                "functionalize(model)",
                expected="a Flax linen module, a Flax NNX model, an Equinox module, or a callable f(params, x)",
                got=type(model).__name__,
                do="Wrap it in a function f(params, x).",
            )
        )
    return adapter.adapt(model, request)


def _is(model: Any, library: str, name: str) -> bool:
    # A user who holds such an object has imported its library; nobody else pays for it.
    loaded = sys.modules.get(library)
    return loaded is not None and isinstance(model, getattr(loaded, name))
