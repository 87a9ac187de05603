"""What the arguments of `compare` and `track` are: a checkpoint, a model, all of a run.

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

Each may come with the state of its optimizer, as a pair. A run comes as the root of a
CheckpointManager, as a dictionary from steps to checkpoints, or as pairs of both.
"""

import dataclasses
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.checkpoints.formats import checkpoint_error
from ntkdiag.checkpoints.location import finished_steps, locate
from ntkdiag.checkpoints.names import NUMBER
from ntkdiag.display import shortened, some_of
from ntkdiag.models import functionalize, registry
from ntkdiag.models.functional import Functional
from ntkdiag.models.libraries import is_equinox_state, is_module_of, linen_module_behind
from ntkdiag.optimizer.saved_state import is_optimizer_state
from ntkdiag.path_argument import as_path

# A path of a checkpoint, parameters, a variables dictionary, a train state, a model, a Functional.
Source: TypeAlias = Any
# A linen module, an NNX or Equinox model, a Functional, or a callable f(params, x): the libraries
# are not imported to name their types.
Model: TypeAlias = Any

# A root, step -> source, or pairs (step, source).
RunSource: TypeAlias = str | os.PathLike[str] | Mapping[int, Source] | Iterable[tuple[int, Source]]

Kind = Literal[
    "path", "functional", "stateful", "nnx", "equinox", "adapter", "linen", "mapping", "function",
    "other",
]  # fmt: skip
_LIBRARIES: dict[Kind, str] = {"nnx": "flax.nnx", "equinox": "equinox", "linen": "flax.linen"}
_IN_PAIRS = (
    "Write track(enumerate(checkpoints)), which numbers them; one checkpoint alone has no run: see "
    "compare(a, b)."
)
# "root@100": step 100 of the checkpoints in `root`.
_AT_STEP = re.compile(rf"(?P<root>.+)@(?P<step>{NUMBER})")
_KNOW_THEIR_FUNCTION = ("functional", "stateful", "nnx", "equinox", "adapter")


@dataclasses.dataclass(frozen=True)
class Classified:
    """An argument with what it is."""

    value: Any  # the argument, without the state of its optimizer
    kind: Kind  # what it is, as the table above has it
    optimizer_state: PyTree = None  # the state of its optimizer; None where it came without
    original: Any = None  # the argument as it came

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


def split_step(source: str | os.PathLike[str]) -> tuple[str, int | None]:
    """A path and the step it names.

    ``root@100`` is step 100 of a manager root, unless there is a path of that name.
    """
    path = os.fspath(source)
    at_step = _AT_STEP.fullmatch(path)
    if at_step is None or os.path.exists(os.path.expanduser(path)):
        return path, None
    return at_step["root"], int(at_step["step"])


class Checkpoints(NamedTuple):
    """The checkpoints of a run as they come."""

    in_order: Iterator[tuple[int, Source]]  # each with its step, one after the other
    count: int | None  # how many there will be; None where that is not known
    # The first source that knows its own function, among those that are known.
    model: Classified | None
    last: tuple[tuple[int, Source], ...] = ()  # the last one, where it is known


def checkpoints_of(run: RunSource, steps: Iterable[int] | None = None) -> Checkpoints:
    """All checkpoints of a run, or those of some steps.

    What is there already comes in the order of its steps; pairs that are no list are asked for one
    after the other.
    """
    asked = None if steps is None else _read_steps(steps)
    pairs = _pairs_of(run)
    chosen = (pair for pair in _checked(pairs) if asked is None or pair[0] in asked)
    is_list = isinstance(pairs, Sequence)
    known = list(chosen if is_list else itertools.islice(chosen, 1))
    known.sort(key=lambda pair: pair[0])
    missing = sorted((asked or frozenset()) - {step for step, _ in known})
    if not known or (is_list and missing):
        raise errors.InvalidInputError(
            expected="one checkpoint or more, of all steps that steps= asks for",
            got=f"no step {some_of(missing)}" if missing else "none",
            do="Pass {step: checkpoint, ...}, with steps= of what is there. A generator that was "
            "used up yields nothing: create it again.",
        )
    model = model_among(classified(source) for _, source in known)
    if not is_list:
        return Checkpoints(itertools.chain(known, chosen), None, model)
    return Checkpoints(iter(known), len(known), model, last=(known[-1],))


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


def _pairs_of(run: RunSource) -> Iterable[Any]:
    """Every checkpoint of a run with its step: a list of those that are there already."""
    if isinstance(run, str | os.PathLike):
        return _of_root(run)
    if isinstance(run, Mapping):
        return list(run.items())
    if not isinstance(run, Iterable):
        raise errors.InvalidInputError(
            expected="the root of a CheckpointManager, a dictionary from steps to checkpoints, or "
            "pairs (step, checkpoint)",
            got=f"a {type(run).__name__}",
            do=_IN_PAIRS,
        )
    return run


def _of_root(root: str | os.PathLike[str]) -> list[tuple[int, str]]:
    as_path(root)  # refuses what is none
    # Anything that is not a checkpoint raises its own error.
    location = locate(split_step(root)[0])
    steps = finished_steps(location.root)
    if not steps:
        raise checkpoint_error(
            root,
            "one checkpoint, with no finished numbered step in it",
            "Pass the root of a CheckpointManager, or {step: checkpoint, ...}.",
        )
    return [(step, os.fspath(directory)) for step, directory in steps.items()]


def _checked(pairs: Iterable[Any]) -> Iterator[tuple[int, Source]]:
    """Pairs of a step and a checkpoint; refused unless each has a step of its own."""
    seen: set[int] = set()
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2 or not _is_step(pair[0]):
            got = pair[0] if isinstance(pair, tuple) and len(pair) == 2 else pair
            raise errors.InvalidInputError(
                expected="pairs (step, checkpoint), or a dictionary of these, with steps that are "
                "integers from 0 on",
                got=shortened(got),
                do=_IN_PAIRS,
            )
        step = int(pair[0])
        if step in seen:
            raise errors.InvalidInputError(
                expected="checkpoints, one for each step",
                got=f"step {step} twice",
                do="Name the steps: {step: checkpoint, ...}.",
            )
        seen.add(step)
        yield step, pair[1]


def _read_steps(steps: Iterable[int]) -> frozenset[int]:
    listed = list(steps) if isinstance(steps, Iterable) and not isinstance(steps, str) else []
    if not listed or not all(map(_is_step, listed)):
        raise errors.InvalidInputError(
            argument="steps=...",
            expected="the steps to take, which are integers from 0 on",
            got=shortened(steps),
            do="Write steps=[0, 100], or leave it out to take every checkpoint.",
        )
    return frozenset(int(step) for step in listed)


def _is_step(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        return False
    return int(value) >= 0
