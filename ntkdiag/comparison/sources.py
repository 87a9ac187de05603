"""What an argument of `compare` or `track` is, a checkpoint or a model: told once, and then known.

| kind         | what it is                                                   | knows its function |
|--------------|--------------------------------------------------------------|--------------------|
| "path"       | a path of a checkpoint or of a step                          |                    |
| "functional" | a Functional                                                 | yes                |
| "stateful"   | an Equinox module with its State, from `make_with_state`     | yes                |
| "nnx"        | an NNX module                                                | yes                |
| "equinox"    | an Equinox module, or its arrays alone                       | yes                |
| "adapter"    | a model that an installed adapter takes                      | yes                |
| "linen"      | a linen module, or a bound `module.apply`                    |                    |
| "mapping"    | parameters, variables, or a train state as a dictionary      |                    |
| "function"   | any other f(params, x), which says nothing of its parameters |                    |
| "other"      | a train state, a tree of parameters, or nothing at all       |                    |

Each may come with the state of its optimizer, as a pair.
"""

import dataclasses
import os
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias

from jaxtyping import PyTree

from ntkdiag.models import functionalize, registry
from ntkdiag.models.functional import Functional
from ntkdiag.models.libraries import is_equinox_state, is_module_of, linen_module_behind
from ntkdiag.optimizer.saved_state import is_optimizer_state

# A path of a checkpoint, parameters, a variables dictionary, a train state, a model, a Functional.
Source: TypeAlias = Any
# A linen module, an NNX or Equinox model, a Functional, or a callable f(params, x): the libraries
# are not imported to name their types.
Model: TypeAlias = Any

Kind = Literal[
    "path", "functional", "stateful", "nnx", "equinox", "adapter", "linen", "mapping", "function",
    "other",
]  # fmt: skip
_LIBRARIES: dict[Kind, str] = {"nnx": "flax.nnx", "equinox": "equinox", "linen": "flax.linen"}
_KNOW_THEIR_FUNCTION = ("functional", "stateful", "nnx", "equinox", "adapter")


@dataclasses.dataclass(frozen=True)
class Classified:
    """An argument with what it is."""

    value: Any  # the argument, without the state of its optimizer
    kind: Kind  # what it is, as the table above has it
    optimizer_state: PyTree = None  # the state of its optimizer; None where it came without
    whole: Any = None  # the argument as it came

    @property
    def is_model(self) -> bool:
        """Whether it knows its own function."""
        return self.kind in _KNOW_THEIR_FUNCTION

    def functional(self) -> Functional:
        """A model as a Functional, with everything that it holds fixed."""
        if self.kind == "functional":
            return self.value
        if self.kind == "stateful":
            module, state = self.value
            return functionalize(module, state=state, check=False)
        return functionalize(self.value, check=False)


def classified(source: Source | Model) -> Classified:
    """What an argument is."""
    value, optimizer_state = _without_optimizer(linen_module_behind(source) or source)
    return Classified(value, _kind_of(value), optimizer_state, source)


def model_among(sources: Iterable[Classified]) -> Classified | None:
    """The first source that knows its own function; None where none does."""
    return next((source for source in sources if source.is_model), None)


def is_with_state(candidate: object) -> bool:
    """Whether a value is an Equinox module with its State, as `make_with_state` returns them."""
    if not isinstance(candidate, tuple | list) or len(candidate) != 2:
        return False
    module, state = candidate
    return is_module_of("equinox", module) and is_equinox_state(state)


def _kind_of(value: Any) -> Kind:
    """The kind of what has no optimizer beside it."""
    if isinstance(value, str | os.PathLike):
        return "path"
    if isinstance(value, Functional):
        return "functional"
    if is_with_state(value):
        return "stateful"
    for kind, library in _LIBRARIES.items():
        if is_module_of(library, value):
            return kind
    if registry.registered(value) is not None:
        return "adapter"
    if isinstance(value, Mapping):
        return "mapping"
    return "function" if callable(value) else "other"


def _without_optimizer(source: Any) -> tuple[Any, PyTree]:
    """What is saved with the state of its optimizer, and that state: None where there is none.

    A pair of something and the state; or an Equinox module, its own state and the optimizer's.
    """
    is_tuple = isinstance(source, tuple | list) and len(source) in (2, 3)
    if not is_tuple or not is_optimizer_state(source[-1]):
        return source, None
    if len(source) == 2:
        return source[0], source[1]
    if is_with_state(source[:2]):
        return source[:2], source[2]
    return source, None
