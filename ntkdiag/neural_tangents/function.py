"""`kernel_fn(x1, x2, params, **kwargs)`: the function that `empirical_ntk_fn` and `empirical_nngp_fn` return."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag import errors
from ntkdiag.engine.calls import constants, meshes
from ntkdiag.engine.calls.arguments import is_traced
from ntkdiag.engine.calls.caches import Cache
from ntkdiag.neural_tangents.inputs import as_arrays, is_none
from ntkdiag.neural_tangents.kernel_request import Request
from ntkdiag.neural_tangents.per_input import split_kwargs
from ntkdiag.neural_tangents.prepare_call import prepare
from ntkdiag.neural_tangents.prepared import Prepared
from ntkdiag.neural_tangents.signature import signature


@dataclasses.dataclass(frozen=True, eq=False)
class KernelFunction:
    """A kernel as a function of inputs and parameters. What is worked out for some shapes is kept.

    Attributes:
        request: What is asked for.
    """

    request: Request
    _prepared: Cache = dataclasses.field(default_factory=Cache, repr=False)

    def __call__(self, x1: Any, x2: Any, params: Any, **apply_fn_kwargs: Any) -> Any:
        """The kernel.

        Args:
            x1: Row inputs, a pytree of arrays.
            x2: Column inputs; None, or a tree of None, stands for x1.
            params: Parameters.
            **apply_fn_kwargs: Handed to f; see `empirical_ntk_fn`.

        Returns:
            For every output of f an array of shape `zip(f(x1).shape, f(x2).shape)` with the axes tied.
        """
        named = errors.called(f"{self.request.kernel}_fn(x1, x2, params)")
        return named(self._evaluated)(x1, None if is_none(x2) else x2, params, apply_fn_kwargs)

    def _evaluated(self, x1: Any, x2: Any, params: Any, kwargs: dict) -> Any:
        """The kernel, with the constants of f evaluated once."""
        f = self.request.f
        arguments = x1, x2, params, kwargs
        with constants.evaluated(arguments, lambda: f(params, x1, **kwargs)) as arguments:
            return self._of(*arguments)

    def _of(self, x1: Any, x2: Any, params: Any, kwargs: dict) -> Any:
        x1, x2, params = as_arrays((x1, x2, params))
        kwargs = jax.tree.map(
            lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf, kwargs
        )
        arguments = (x1, x2, params, kwargs)
        if mesh := meshes.spread(arguments):
            return meshes.automatically(self._of, mesh, *arguments)
        prepared = (
            prepare(self.request, *arguments) if is_traced(arguments) else self._find(arguments)
        )
        kwargs1, kwargs2 = split_kwargs(kwargs, prepared.per_input, x1, x2)
        return prepared(params, (x1, kwargs1), None if x2 is None else (x2, kwargs2))

    def changed(self, **changes: Any) -> "KernelFunction":
        """The same kernel computed with other means.

        Args:
            **changes: Fields of the request.
        """
        return KernelFunction(dataclasses.replace(self.request, **changes))

    def _find(self, arguments: tuple) -> Prepared:
        """What was prepared for arguments of these shapes before, or now."""
        key = signature(arguments)
        prepared = self._prepared.get(self.request.f, key)
        if prepared is None:
            prepared = prepare(self.request, *arguments)
            self._prepared.put(self.request.f, key, prepared)
        return prepared
