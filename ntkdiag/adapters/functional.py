"""A model as a pure function: `f(params, x, **kwargs)`, its parameters, and the way back."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from ntkdiag.adapters import parameters as checks
from ntkdiag.adapters import structure
from ntkdiag.adapters.selectors import opened, select


@dataclasses.dataclass(frozen=True, eq=False)
class Apply:
    """`f(params, x, **kwargs)`, which knows the library it comes from and the mode it evaluates in.

    Compared by identity: compiled functions are cached on it.

    Attributes:
        function: The model as a pure function.
        library: ``"linen"``, ``"nnx"``, ``"equinox"``, ``"callable"``, or the name of a registered adapter.
        mode: That of `functionalize`, ``"train, fixed statistics"``, or ``"unspecified"`` for a callable.
        output: Selects of what the model returns; None keeps it.
    """

    function: Callable[..., Any]
    library: str
    mode: str
    output: Any = None

    def __call__(self, params: Any, x: Any, **kwargs: Any) -> Any:
        """Evaluate the model at `params` on the batch `x`."""
        try:
            y = self.function(params, x, **kwargs)
        except TypeError as error:
            if "required positional argument" in str(error):
                error.add_note("ntkdiag: several inputs go into x, a tuple or a dictionary, with unpack=True.")
            raise
        return opened(select(self.output, y, x))

    def __repr__(self) -> str:
        return f"<{self.library} model as f(params, x), mode={self.mode}>"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Functional:
    """A model as `f(params, x, **kwargs)` with its parameters and the way back to the library's own object.

    Calls itself (`fn(params, x)`) and unpacks: `f, params = fn`.

    Attributes:
        apply: The pure function. The same object for the lifetime of this value and of every `with_params` of it, so
            that compiled functions are found again.
        params: The trainable parameters: a pytree of floating arrays, nothing else.
        restore: Parameters -> the library's own object: a linen variables dictionary, a new NNX model, a new Equinox
            module, the parameters of a callable; everything that is held fixed is put back.
        library: ``"linen"``, ``"nnx"``, ``"equinox"``, ``"callable"``, or the name of a registered adapter.
        mode: That of `functionalize`, ``"train, fixed statistics"``, or ``"unspecified"`` for a callable.
        name: What the model calls itself, for tables.
        fixed: Path -> array that is held fixed: everything in the model that is an array and not in `params`.
        extract: The library's own object (a variables dictionary, a TrainState, a model later in training) ->
            parameters: the inverse of `restore`, for `with_params` and for calling `apply` in a loop. What is held
            fixed stays as it was when the Functional was made.
    """

    apply: Callable[..., Any]
    params: Any
    restore: Callable[[Any], Any]
    library: str
    mode: str
    name: str = ""
    fixed: dict[str, Any] = dataclasses.field(default_factory=dict)
    extract: Callable[[Any], Any] | None = None

    def __call__(self, params: Any, x: Any, **kwargs: Any) -> Any:
        """Evaluate the model at `params` on the batch `x`."""
        return self.apply(params, x, **kwargs)

    def __iter__(self) -> Iterator[Any]:
        """Unpack as `f, params`."""
        return iter((self.apply, self.params))

    def with_params(self, params: Any, *, check_finite: bool = True) -> "Functional":
        """Put other values for the parameters in place.

        Args:
            params: The same paths, shapes and dtypes; any containers (a dictionary from a checkpoint will do).
            check_finite: Refuse NaN and infinity.

        Returns:
            A Functional with the same `apply`.
        """
        call = "Functional.with_params(params)"
        structure.require_same(self.params, params, call=call)
        params = jax.tree.map(checks.as_jax, structure.repack(params, self.params, call=call))
        checks.require_live(params, call=call)
        if check_finite:
            checks.require_finite(params, call=call)
        return dataclasses.replace(self, params=params)

    def __repr__(self) -> str:
        leaves = jax.tree.leaves(self.params)
        dtypes = ", ".join(sorted({str(leaf.dtype) for leaf in leaves}))
        size = sum(int(np.prod(leaf.shape)) for leaf in leaves)
        model = f"{self.library} {self.name}".strip()
        return (
            f"Functional({model}, mode={self.mode}, trainable: {len(leaves)} leaves with {size:,} {dtypes} "
            f"parameters, fixed: {len(self.fixed)} leaves)"
        )
