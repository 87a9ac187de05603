"""A model as a pure function `f(params, x, **kwargs)`, its parameters, and the way back.

f, params = fn             # the function, and the parameters that are differentiated
y = fn(params, x)          # outputs, one row per example
model = fn.restore(params) # the library's own object, with everything that is held fixed
params = fn.extract(model) # the parameters of the library's own object
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.jaxtools.arguments import check_params
from ntkdiag.models import paths
from ntkdiag.models.array_leaves import as_jax
from ntkdiag.models.mode import JOINT_MODES, Mode
from ntkdiag.models.selectors import Selector, as_pytree, select


@dataclasses.dataclass(frozen=True, eq=False)
class Apply:
    """`f(params, x, **kwargs)`, which knows its library and its mode; compared by identity."""

    function: Callable[..., PyTree]  # the model as a pure function
    # ``"linen"``, ``"nnx"``, ``"equinox"``, ``"callable"``, or the name of a registered adapter.
    library: str
    # That of `functionalize`, or ``"unspecified"`` for a callable.
    mode: str
    output: Selector = None  # selects of what the model returns; None keeps it
    unpack: bool = False  # whether x is spread over several arguments of the model

    @errors.called("f(params, x)")
    def __call__(self, params: PyTree, x: PyTree, **kwargs: PyTree) -> PyTree:
        """Evaluate the model at `params` on the batch `x`."""
        outputs = self.function(params, x, **kwargs)
        return as_pytree(select(self.output, outputs, x))

    @property
    def joint(self) -> bool:
        """Whether the model gets the batch as a whole, so that examples may interact."""
        return self.mode in JOINT_MODES

    def __repr__(self) -> str:
        return f"<{self.library} model as f(params, x), mode={self.mode}>"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Functional:
    """A model as `f(params, x, **kwargs)`, with its parameters and the way back to its library.

    Calls itself, `fn(params, x)`, and unpacks, `f, params = fn`.

    Attributes:
        apply: The pure function. The same object for the lifetime of this value and of every
            `with_params` of it, so that compiled functions are found again.
        params: The trainable parameters: a pytree of floating arrays, nothing else.
        restore: Parameters -> the library's own object: a linen variables dictionary, a new NNX
            model, a new Equinox module, the parameters of a callable. Everything that is held
            fixed is put back.
        library: ``"linen"``, ``"nnx"``, ``"equinox"``, ``"callable"``, or the name of a registered
            adapter.
        mode: That of `functionalize`, or ``"unspecified"`` for a callable.
        name: Name of the model, for tables.
        fixed: Path -> array that is held fixed: everything in the model that is an array and not
            in `params`.
        extract: The library's own object (a variables dictionary, a TrainState, a model later in
            training) -> parameters: the inverse of `restore`, for `with_params` and for calling
            `apply` in a loop. What is held fixed stays as it was when the Functional was made.
        rebuild: Parameters, and path -> array of what is held fixed -> a Functional of the same
            options; for `with_fixed`. None where an adapter does not offer it.
        has_batch_statistics: Whether a layer of the model keeps statistics of the batches it saw.
        in_mode: Parameters and a `Mode` -> a Functional of the same options in that mode. None
            where an adapter does not offer it.
        aliases: Other path -> path in `params` or `fixed`, of shared weights, which a checkpoint
            may hold under several names.
    """

    apply: Callable[..., PyTree]
    params: PyTree
    restore: Callable[[PyTree], PyTree]
    library: str
    mode: str
    name: str = ""
    fixed: dict[str, PyTree] = dataclasses.field(default_factory=dict)
    extract: Callable[[PyTree], PyTree] | None = None
    rebuild: Callable[[PyTree, Mapping[str, PyTree]], "Functional"] | None = None
    has_batch_statistics: bool = False
    in_mode: Callable[[PyTree, Mode], "Functional"] | None = None
    aliases: dict[str, str] = dataclasses.field(default_factory=dict)

    def __call__(self, params: PyTree, x: PyTree, **kwargs: PyTree) -> PyTree:
        """Evaluate the model at `params` on the batch `x`."""
        return self.apply(params, x, **kwargs)

    def __iter__(self) -> Iterator[Any]:
        """Unpack as `f, params`."""
        return iter((self.apply, self.params))

    @property
    def joint(self) -> bool:
        """Whether the model gets the batch as a whole, so that examples may interact."""
        return self.mode in JOINT_MODES

    @errors.public
    def with_params(self, params: PyTree, *, check: bool = True) -> "Functional":
        """Put other values for the parameters in place.

        Args:
            params: The same paths, shapes and dtypes; any containers (a dictionary from a
                checkpoint will do).
            check: Refuse NaN and infinity.

        Returns:
            A Functional with the same `apply`.

        Raises:
            StructureError: If paths, shapes or dtypes differ.
            InvalidInputError: If a buffer was donated, or a parameter is NaN or infinite.
        """
        paths.require_same(self.params, params)
        # The containers of this model, so that `apply` is not compiled again for others.
        params = jax.tree.map(as_jax, paths.repack(params, self.params))
        check_params(params, finite=check)
        return dataclasses.replace(self, params=params)

    @errors.public
    def with_fixed(self, fixed: Mapping[str, PyTree]) -> "Functional":
        """Put other values for what is held fixed in place, such as running statistics.

        Parameters, mode and all other options stay.

        Cost: none; but `apply` is another function, and is compiled again.

        Args:
            fixed: Path -> array, with paths, shapes and dtypes as in `fixed`; what is left out
                stays as it is.

        Returns:
            A Functional with another `apply`.

        Raises:
            StructureError: If paths, shapes or dtypes differ.
            InvalidInputError: If the adapter of the library cannot do this.
        """
        if self.rebuild is None:
            raise errors.InvalidInputError(
                expected="a Functional whose fixed arrays can be replaced",
                got=f"one of {self.library}",
                do="Make another Functional, of the model with the other values.",
            )
        # A path without a value is compared with itself; an unknown path has no counterpart.
        expected = {path: self.fixed[path] for path in fixed if path in self.fixed}
        paths.require_same(expected, dict(fixed))
        return self.rebuild(self.params, fixed)

    def __repr__(self) -> str:
        leaves = jax.tree.leaves(self.params)
        size = sum(int(np.prod(leaf.shape)) for leaf in leaves)
        dtypes = ", ".join(sorted({str(leaf.dtype) for leaf in leaves}))
        model = f"{self.library} {self.name}".strip()
        return (
            f"Functional({model}, mode={self.mode}, trainable: {len(leaves)} leaves with "
            f"{size:,} {dtypes} parameters, fixed: {len(self.fixed)} leaves)"
        )
