"""The checkpoints of a run, before any of them is read.

A run comes as the root of a CheckpointManager, as a dictionary from steps to checkpoints, or as
pairs of both. Each becomes a `Snapshot`: its step, and what `compare` takes as one of its sides.
"""

import dataclasses
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from ntkdiag import errors
from ntkdiag.checkpoints.formats import checkpoint_error
from ntkdiag.checkpoints.location import finished_steps, locate
from ntkdiag.comparison.load import split_step
from ntkdiag.comparison.sources import Classified, Source, classified, model_among
from ntkdiag.display import shortened
from ntkdiag.path_argument import as_path

_LARGEST_STEP = 2**63 - 1

# A root, step -> source, or pairs (step, source).
RunSource: TypeAlias = str | os.PathLike[str] | Mapping[int, Source] | Iterable[tuple[int, Source]]
_STEPS_IN_WORDS = "integers from 0 to 2^63 - 1"
_IN_PAIRS = (
    "Write track(enumerate(checkpoints)), which numbers them; one checkpoint alone has no run: see "
    "compare(a, b)."
)


@dataclasses.dataclass(frozen=True, eq=False)
class Snapshot:
    """One checkpoint of a run."""

    step: int  # its step
    source: Source  # a path, or values in memory, as `compare` takes them


@dataclasses.dataclass(frozen=True, eq=False)
class Snapshots:
    """The checkpoints of a run as they come."""

    in_order: Iterator[Snapshot]  # one after the other
    count: int | None  # how many there will be; None where that is not known
    # The first source that knows its own function, among those that are known.
    model: Classified | None = None
    end: Snapshot | None = None  # the last one; None where that is not known


def snapshots_of(run: RunSource, steps: Iterable[int] | None = None) -> Snapshots:
    """All checkpoints of a run, or those of some steps.

    What is there already comes in the order of its steps; pairs that are no list are asked for one
    after the other.
    """
    asked = None if steps is None else _read_steps(steps)
    pairs = _pairs_of(run)
    if isinstance(pairs, Sequence):
        return _known(list(_read_pairs(pairs)), asked)
    chosen = (pair for pair in _read_pairs(pairs) if asked is None or pair.step in asked)
    first = next(chosen, None)
    if first is None:
        raise errors.InvalidInputError(
            expected="pairs (step, checkpoint)",
            got="no item" if asked is None else "none of the steps that steps= asks for",
            do="A generator that was used up yields nothing: make it anew.",
        )
    return Snapshots(
        itertools.chain([first], chosen), None, model_among([classified(first.source)])
    )


def _known(found: list[Snapshot], asked: frozenset[int] | None) -> Snapshots:
    """Checkpoints that are all there, in the order of their steps."""
    found = sorted(found, key=lambda snapshot: snapshot.step)
    numbers = [snapshot.step for snapshot in found]
    if not found:
        raise errors.InvalidInputError(
            expected="one checkpoint or more", got="none", do="Pass {step: checkpoint, ...}."
        )
    missing = sorted((asked or frozenset()) - set(numbers))
    if missing:
        raise errors.InvalidInputError(
            expected="steps= of checkpoints that are there",
            got=f"no step {_listed(missing)} among {_listed(numbers)}",
            do="Leave out what was not saved.",
        )
    if asked is not None:
        found = [snapshot for snapshot in found if snapshot.step in asked]
    model = model_among(classified(snapshot.source) for snapshot in found)
    return Snapshots(iter(found), len(found), model, end=found[-1])


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
    """The finished steps of a manager root."""
    as_path(root)  # refuses what is none
    # Whatever is no checkpoint at all has an error of its own.
    location = locate(split_step(root)[0])
    steps = finished_steps(location.root)
    if not steps:
        raise checkpoint_error(
            root,
            "one checkpoint, with no finished numbered step in it",
            "Pass the root of a CheckpointManager, or {step: checkpoint, ...}.",
        )
    return [(step, os.fspath(directory)) for step, directory in steps.items()]


def _read_pairs(pairs: Iterable[Any]) -> Iterator[Snapshot]:
    """Pairs as snapshots; refused unless each has a step of its own."""
    seen: set[int] = set()
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2 or not is_step(pair[0]):
            got = pair[0] if isinstance(pair, tuple) and len(pair) == 2 else pair
            raise errors.InvalidInputError(
                expected=f"pairs (step, checkpoint), or a dictionary of these, with steps that are "
                f"{_STEPS_IN_WORDS}",
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
        yield Snapshot(step, pair[1])


def _read_steps(steps: Iterable[int]) -> frozenset[int]:
    """Read `steps=`."""
    listed = list(steps) if isinstance(steps, Iterable) and not isinstance(steps, str) else [steps]
    wrong = [step for step in listed if not is_step(step)]
    if wrong or not isinstance(steps, Iterable) or not listed:
        raise errors.InvalidInputError(
            argument="steps=...",
            expected=f"the steps to take, which are {_STEPS_IN_WORDS}",
            got=shortened(wrong[0] if wrong else steps),
            do="Write steps=[0, 100], or leave it out to take every checkpoint.",
        )
    return frozenset(int(step) for step in listed)


def is_step(value: object) -> bool:
    """Whether a value is a number of a step."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        return False
    return 0 <= int(value) <= _LARGEST_STEP


def _listed(numbers: Sequence[int]) -> str:
    """Steps for a message; of many, the first and the last."""
    if len(numbers) > 8:
        return f"{numbers[0]}, {numbers[1]}, ..., {numbers[-1]} ({len(numbers)} in all)"
    return ", ".join(map(str, numbers))
