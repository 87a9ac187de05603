"""The checkpoints of a run one after the other, as they come.

They come from what is there already, in the order of its steps; from a generator, which makes one
when it is asked; or from a training that is followed:

1. look which steps of the root are finished, a save under way has another name;
2. take the first one that is new, and look again, as old ones may be removed meanwhile;
3. where none is new, wait a second. It ends with Ctrl-C, after `patience` seconds without a new
   one, when all steps that were asked for have come, or when `follow()` says so.
"""

import dataclasses
import itertools
import math
import os
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from ntkdiag import errors
from ntkdiag.checkpoints.location import finished_steps, locate, require_whole_steps
from ntkdiag.comparison.snapshots import (
    RunSource,
    Selection,
    Snapshot,
    StepsLike,
    is_step,
    one_checkpoint_error,
    snapshots_of,
    step_of,
)
from ntkdiag.comparison.sources import Classified, Source, classified, model_among
from ntkdiag.path_argument import as_path

POLL_SECONDS = 1.0
# Whether to wait for new checkpoints; a function is asked before every look whether to go on.
FollowLike: TypeAlias = bool | Callable[[], bool]


@dataclasses.dataclass(frozen=True, eq=False)
class CheckpointStream:
    """The checkpoints of a run as they come.

    Attributes:
        snapshots: One after the other.
        count: How many there will be; None where that is not known.
        model: The first source that knows its own function, among those that are known.
        root: The folder of a training that is followed; None for others.
        end: The last one; None where that is not known.
    """

    snapshots: Iterator[Snapshot]
    count: int | None
    model: Classified | None = None
    root: pathlib.Path | None = None
    end: Snapshot | None = None

    def is_gone(self, snapshot: Snapshot) -> bool:
        """Whether a checkpoint of a training that is followed was removed since it came."""
        return self.root is not None and snapshot.step not in _finished(self.root)


def checkpoint_stream_of(
    run: RunSource,
    steps: StepsLike | None = None,
    last: int | None = None,
    follow: FollowLike = False,
    patience: float | int | None = None,
) -> CheckpointStream:
    """The checkpoints of a run, or of a generator, or of a training that is followed.

    Raises:
        CheckpointError: No checkpoint is where the run is said to be.
        InvalidInputError: Arguments do not go together, or no checkpoint is left.
    """
    is_generator = isinstance(run, Iterator)
    _require_fitting(run, last, follow, patience, is_generator)
    if follow is not False:
        root = as_path(run)
        _require_root(root)
        goes_on = follow if callable(follow) else _always
        limit = math.inf if patience is None else patience
        return CheckpointStream(
            _followed(root, Selection.of(steps), goes_on, limit), None, root=root
        )
    if is_generator:
        generated = _generated(run, Selection.of(steps))
        first = next(generated, None)
        if first is None:
            raise errors.InvalidInputError(
                expected="a generator of checkpoints, or of pairs (step, checkpoint)",
                got="none of the steps that steps= asks for" if steps is not None else "no item",
                do="A generator that was used up yields nothing: make it anew.",
            )
        return CheckpointStream(
            itertools.chain([first], generated), None, model_among([classified(first.source)])
        )
    found = snapshots_of(run, steps, last)
    model = model_among(classified(snapshot.source) for snapshot in found)
    return CheckpointStream(iter(found), len(found), model, end=found[-1])


def _generated(sources: Iterable[Source], selection: Selection) -> Iterator[Snapshot]:
    """Pairs (step, source), and sources whose step is that of their path or their place."""
    seen: set[int] = set()
    for place, item in enumerate(sources):
        is_pair = isinstance(item, tuple) and len(item) == 2 and is_step(item[0])
        step, source = item if is_pair else (step_of(item, place), item)
        step = int(step)
        if step in seen:
            raise errors.InvalidInputError(
                expected="a generator of checkpoints, one for each step",
                got=f"step {step} twice",
                do="Name the steps: yield step, checkpoint.",
            )
        if not selection.has(step):
            continue
        seen.add(step)
        yield Snapshot(step, source)
        if selection.is_complete(seen):
            return


def _followed(
    root: pathlib.Path, selection: Selection, goes_on: Callable[[], bool], patience: float
) -> Iterator[Snapshot]:
    """New finished steps of a root until it is told to stop, or its patience is at an end."""
    seen: set[int] = set()
    end = time.monotonic() + patience
    while not selection.is_complete(seen):
        # Asked before the look: what is finished when training says that it ended is not missed.
        is_last_look = not goes_on()
        steps = _finished(root)
        new = [step for step in sorted(steps) if step not in seen and selection.has(step)]
        if new:
            seen.add(new[0])
            yield Snapshot(new[0], os.fspath(steps[new[0]]))
            end = time.monotonic() + patience
        elif is_last_look or time.monotonic() >= end:
            return
        else:
            time.sleep(min(POLL_SECONDS, end - time.monotonic()))


def _finished(root: pathlib.Path) -> dict[int, pathlib.Path]:
    """Finished steps; none where there is no such folder yet, or it changed under the look."""
    try:
        steps = finished_steps(root)
    except OSError:
        return {}
    require_whole_steps(root, steps)
    return {int(step): path for step, path in steps.items()}


def _always() -> bool:
    return True


def _require_fitting(
    run: RunSource,
    last: int | None,
    follow: FollowLike,
    patience: float | int | None,
    is_generator: bool,
) -> None:
    """Refuse arguments that do not go together."""
    if not isinstance(follow, bool) and not callable(follow):
        raise errors.InvalidInputError(
            argument="follow=...",
            expected="True, or a function without arguments that says whether to go on",
            got=repr(follow),
            do="How long to wait is patience=.",
        )
    if follow is not False and not isinstance(run, str | os.PathLike):
        raise errors.InvalidInputError(
            argument="follow=...",
            expected="the root of a CheckpointManager to follow",
            got=f"a {type(run).__name__}",
            do="A generator of (step, checkpoint) is measured as it yields.",
        )
    if last is not None and (follow is not False or is_generator):
        raise errors.InvalidInputError(
            argument=f"last={last!r}",
            expected="checkpoints that are all there",
            got="a generator" if is_generator else "a training that is followed",
            do="Which are the last is not known before the end: leave it out, or pass steps=.",
        )
    if patience is None:
        return
    if follow is False or isinstance(patience, bool) or not patience > 0:
        raise errors.InvalidInputError(
            argument=f"patience={patience!r}",
            expected="seconds to wait for a new checkpoint, beside follow=True",
            got="no follow" if follow is False else repr(patience),
            do="Write follow=True, patience=600.",
        )


def _require_root(root: pathlib.Path) -> None:
    """Refuse a path that can become no root: a file, or a single checkpoint."""
    if root.is_dir() and finished_steps(root):
        return
    try:
        location = locate(root)
    except errors.CheckpointError:
        if root.is_file():
            raise
        return  # nothing is there yet
    raise one_checkpoint_error(location.root)
