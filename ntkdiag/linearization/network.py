"""What a training loop hands to a network beside x, and what of it the linear model needs.

A linear model goes through the loop that its network went through, which calls `model(x, True)`,
`model(x, train=True, rngs=keys)` or `model(x, state, key)`. The mode of a linear model was fixed
when it was made: switches between training and evaluation are the loop's, and are let go of. So are
random keys where nothing is drawn.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.models.functional import Functional
from ntkdiag.models.mode import Mode
from ntkdiag.models.request import parameters_of

# Arguments under which the libraries take random keys.
_KEYS = ("rngs", "key")


@dataclasses.dataclass(frozen=True)
class CallArguments:
    """The further arguments of a network's call."""

    names: tuple[str, ...] = ()  # what follows x, in its order
    draws: bool = False  # whether the mode of the linear model draws random numbers

    @classmethod
    def of(
        cls, network: object, method: str | Callable[..., PyTree] | None, *, draws: bool
    ) -> "CallArguments":
        """Read the names off the method of a network that the linear model stands for."""
        if method is None or isinstance(method, str):
            call = getattr(network, method or "__call__")
        else:
            call = functools.partial(method, network)
        names = []
        for name, parameter in parameters_of(call).items():
            if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
                names.append(name)
        return cls(tuple(names[1:]), draws)

    def needed(
        self, positional: tuple[PyTree, ...], keywords: dict[str, PyTree]
    ) -> dict[str, PyTree]:
        """By name those of the arguments after x that the linear model needs."""
        if len(positional) > len(self.names):
            raise errors.InvalidInputError(
                call="linearized_model(...)(x, ...)",
                expected=f"the arguments of the network after x: {', '.join(self.names) or 'none'}",
                got=f"{len(positional)} of them",
                do="Pass by name what the network does not name.",
            )
        by_name: dict[str, Any] = dict(zip(self.names, positional, strict=False))
        by_name.update(keywords)
        not_needed = set(Mode().switches)
        if not self.draws:
            not_needed.update(_KEYS)
        return {name: value for name, value in by_name.items() if name not in not_needed}


@dataclasses.dataclass(frozen=True, eq=False)
class Expansion:
    """What a linearized model keeps fixed.

    Compared by identity, so that functions compiled with it are found again.
    """

    # The network, its expansion point `functional.params`, and the way back `functional.restore`.
    functional: Functional
    degree: int  # order of the expansion
    function: Callable[..., PyTree]  # `f_lin(p, x, **kwargs)`
    start: PyTree  # the parameters at which the model begins

    def network(self, params: PyTree) -> Any:
        """Put trained parameters back into the network itself."""
        return self.functional.restore(params)

    def __repr__(self) -> str:
        return f"Expansion(degree {self.degree} of {self.functional!r})"
