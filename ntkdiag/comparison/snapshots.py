"""The checkpoints of a run, in the order of their steps, before any of them is read.

A run comes as the root of a CheckpointManager, as a list of checkpoints or of values in memory, or
as a dictionary from steps to them. Each becomes a `Snapshot`: its step, and what `compare` takes as
one of its sides.
"""

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from ntkdiag import errors
from ntkdiag.checkpoints.location import checkpoint_error, finished_steps, locate
from ntkdiag.comparison.sides import Source, split_step

# A root, a list of sources, or step -> source.
RunSource: TypeAlias = Any
# Which steps: a schedule, `step -> bool`, or the steps themselves.
StepsLike: TypeAlias = Callable[..., Any] | Sequence[int]


@dataclasses.dataclass(frozen=True, eq=False)
class Snapshot:
    """One checkpoint of a run.

    Attributes:
        step: Its step; the place in the list where it has none.
        source: A path, or values in memory, as `compare` takes them.
    """

    step: int
    source: Source


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
    if len(set(numbers)) < len(numbers):
        raise errors.InvalidInputError(
            expected="one checkpoint for each step",
            got=f"steps {_listed(numbers)}",
            do="Name the steps: {step: checkpoint, ...}.",
        )
    chosen = [snapshot for snapshot in found if _is_wanted(snapshot.step, steps)]
    if last is not None:
        chosen = chosen[-last:] if last > 0 else []
    if not chosen:
        raise errors.InvalidInputError(
            expected="steps= and last= that leave a checkpoint",
            got=f"none of the steps {_listed(numbers)}",
            do="Leave them out to take every checkpoint.",
        )
    return chosen


def _all_of(run: RunSource) -> Iterable[Snapshot]:
    """Every checkpoint of a run, in any order."""
    if isinstance(run, str | os.PathLike):
        return _of_root(run)
    if isinstance(run, Mapping) and run and all(isinstance(step, int) for step in run):
        return [Snapshot(step, source) for step, source in run.items()]
    if isinstance(run, Mapping) or not isinstance(run, Iterable):
        raise errors.InvalidInputError(
            expected="the root of a CheckpointManager, a list of checkpoints, or a dictionary "
            "from steps to them",
            got=f"a {type(run).__name__}",
            do="One checkpoint alone has no run: see compare(a, b).",
        )
    return [Snapshot(_step_of(source, place), source) for place, source in enumerate(run)]


def _of_root(root: str | os.PathLike[str]) -> list[Snapshot]:
    """The finished steps of a manager root."""
    path = os.path.abspath(os.path.expanduser(os.fspath(root)))
    steps = finished_steps(locate(path).root) if os.path.isdir(path) else {}
    if not steps:
        raise checkpoint_error(
            path,
            "no finished numbered step in it",
            "Pass the root of a CheckpointManager, or a list of checkpoints.",
        )
    return [Snapshot(step, os.fspath(directory)) for step, directory in steps.items()]


def _step_of(source: Source, place: int) -> int:
    """The step that a path names; for others the place in the list."""
    if not isinstance(source, str | os.PathLike):
        return place
    path, step = split_step(source)
    found = locate(path, step).step
    return place if found is None else found


def _is_wanted(step: int, steps: StepsLike | None) -> bool:
    if steps is None:
        return True
    return bool(steps(step)) if callable(steps) else step in steps


def _listed(numbers: Sequence[int]) -> str:
    """Steps for a message; of many, the first and the last."""
    if len(numbers) > 8:
        return f"{numbers[0]}, {numbers[1]}, ..., {numbers[-1]} ({len(numbers)} in all)"
    return ", ".join(map(str, numbers))
