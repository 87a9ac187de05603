"""The checkpoints of a run, in the order of their steps, before any of them is read.

A run comes as the root of a CheckpointManager, as a list of checkpoints or of values in memory, or
as a dictionary from steps to them. Each becomes a `Snapshot`: its step, and what `compare` takes as
one of its sides.
"""

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from ntkdiag import errors
from ntkdiag.checkpoints.formats import checkpoint_error
from ntkdiag.checkpoints.location import finished_steps, locate, require_whole_steps
from ntkdiag.comparison.load import split_step
from ntkdiag.comparison.sources import Source
from ntkdiag.display import shortened
from ntkdiag.path_argument import as_path
from ntkdiag.runs.json_lines import LARGEST_STEP

# A root, a list or a generator of sources, or step -> source.
RunSource: TypeAlias = Any
# Which steps: a schedule, `step -> bool`, or the steps themselves.
StepsLike: TypeAlias = Callable[..., Any] | Iterable[int]
_STEPS_IN_WORDS = "integers from 0 to 2^63 - 1"


@dataclasses.dataclass(frozen=True, eq=False)
class Snapshot:
    """One checkpoint of a run.

    Attributes:
        step: Its step; the place in the list where it has none.
        source: A path, or values in memory, as `compare` takes them.
    """

    step: int
    source: Source


@dataclasses.dataclass(frozen=True)
class Selection:
    """Which steps are asked for.

    Attributes:
        rule: `step -> bool`; None for all.
        steps: The steps themselves, where these are named.
    """

    rule: Callable[..., Any] | None = None
    steps: frozenset[int] | None = None

    @staticmethod
    def of(steps: StepsLike | None) -> "Selection":
        """Read `steps=`."""
        if steps is None:
            return Selection()
        if callable(steps):
            return Selection(rule=steps)
        if isinstance(steps, str | bytes) or not isinstance(steps, Iterable):
            raise errors.InvalidInputError(
                argument=f"steps={steps!r}",
                expected="a schedule, or the steps",
                got=f"a {type(steps).__name__}",
                do="Write steps=[0, 100], or steps=ntkdiag.monitor.log_spaced.",
            )
        listed = list(steps)
        for step in listed:
            if not is_step(step):
                raise errors.InvalidInputError(
                    argument="steps=...",
                    expected=f"steps, which are {_STEPS_IN_WORDS}",
                    got=shortened(step),
                    do="Write steps=[0, 100], or steps=ntkdiag.monitor.log_spaced.",
                )
        return Selection(steps=frozenset(int(step) for step in listed))

    def has(self, step: int) -> bool:
        """Whether a step is asked for."""
        if self.rule is not None:
            return bool(self.rule(step))
        return self.steps is None or step in self.steps

    def is_complete(self, seen: set[int]) -> bool:
        """Whether all steps that are named were seen."""
        return self.steps is not None and self.steps <= seen


def snapshots_of(
    run: RunSource, steps: StepsLike | None = None, last: int | None = None
) -> list[Snapshot]:
    """All checkpoints of a run in order, or those of some steps, or the last few.

    Raises:
        CheckpointError: No checkpoint is where the run is said to be.
        InvalidInputError: Two have one step, or none is left.
    """
    found = sorted(_all_of(run), key=lambda snapshot: snapshot.step)
    numbers = [snapshot.step for snapshot in found]
    if not found or len(set(numbers)) < len(numbers):
        raise errors.InvalidInputError(
            expected="checkpoints, one for each step",
            got=f"steps {_listed(numbers)}" if found else "an empty list",
            do="Name the steps: {step: checkpoint, ...}.",
        )
    selection = Selection.of(steps)
    _require_present(selection, numbers)
    chosen = [snapshot for snapshot in found if selection.has(snapshot.step)]
    if last is not None:
        _require_count(last)
        chosen = chosen[-last:]
    if not chosen:
        raise errors.InvalidInputError(
            expected="steps= that leave a checkpoint",
            got=f"none of the steps {_listed(numbers)}",
            do="Leave it out to take every checkpoint.",
        )
    return chosen


def _all_of(run: RunSource) -> Iterable[Snapshot]:
    """Every checkpoint of a run, in any order."""
    if isinstance(run, str | os.PathLike):
        return _of_root(run)
    if isinstance(run, Mapping):
        _require_steps(run)
        return [Snapshot(int(step), source) for step, source in run.items()]
    if not isinstance(run, Iterable):
        raise errors.InvalidInputError(
            expected="the root of a CheckpointManager, a list or generator of checkpoints, or a "
            "dictionary from steps to them",
            got=f"a {type(run).__name__}",
            do="One checkpoint alone has no run: see compare(a, b).",
        )
    return [Snapshot(step_of(source, place), source) for place, source in enumerate(run)]


def _of_root(root: str | os.PathLike[str]) -> list[Snapshot]:
    """The finished steps of a manager root."""
    as_path(root)  # refuses what is none
    # Whatever is no checkpoint at all has an error of its own.
    location = locate(split_step(root)[0])
    steps = finished_steps(location.root)
    if not steps:
        raise one_checkpoint_error(root)
    require_whole_steps(location.root, steps)
    return [Snapshot(int(step), os.fspath(directory)) for step, directory in steps.items()]


def one_checkpoint_error(root: str | os.PathLike[str]) -> errors.CheckpointError:
    """The error for a checkpoint in the place of a root."""
    return checkpoint_error(
        root,
        "one checkpoint, with no finished numbered step in it",
        "Pass the root of a CheckpointManager, or a list of checkpoints.",
    )


def is_step(value: object) -> bool:
    """Whether a value is a number of a step."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        return False
    return 0 <= int(value) <= LARGEST_STEP


def _require_steps(run: Mapping[Any, Source]) -> None:
    """Refuse a dictionary whose keys are no steps, such as parameters."""
    for step in run:
        if not is_step(step):
            raise errors.InvalidInputError(
                expected=f"a dictionary from steps, {_STEPS_IN_WORDS}, to checkpoints",
                got=f"the key {shortened(step)}",
                do="One checkpoint alone has no run: see compare(a, b).",
            )


def _require_present(selection: Selection, numbers: Sequence[int]) -> None:
    """Refuse steps that are named and not there."""
    missing = sorted((selection.steps or frozenset()) - set(numbers))
    if missing:
        raise errors.InvalidInputError(
            expected="steps= of checkpoints that are there",
            got=f"no step {_listed(missing)} among {_listed(numbers)}",
            do="Leave out what was not saved.",
        )


def _require_count(last: int) -> None:
    """Refuse what is no number of checkpoints."""
    if not isinstance(last, int | np.integer) or last < 1:
        raise errors.InvalidInputError(
            argument=f"last={last!r}",
            expected="a number of checkpoints, 1 at least",
            got=repr(last),
            do="Write last=5 for the last five.",
        )


def step_of(source: Source, place: int) -> int:
    """The step that a path names; for others the place in the list."""
    if not isinstance(source, str | os.PathLike):
        return place
    path, step = split_step(source)
    found = locate(path, step).step
    return place if found is None or not is_step(found) else int(found)


def _listed(numbers: Sequence[int]) -> str:
    """Steps for a message; of many, the first and the last."""
    if len(numbers) > 8:
        return f"{numbers[0]}, {numbers[1]}, ..., {numbers[-1]} ({len(numbers)} in all)"
    return ", ".join(map(str, numbers))
