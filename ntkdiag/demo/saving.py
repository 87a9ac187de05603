"""Orbax checkpoints of the demo, on a log-spaced schedule."""

import contextlib
import pathlib
from collections.abc import Callable, Iterator
from typing import TypeAlias

from jaxtyping import PyTree

from ntkdiag.monitor.schedule import log_spaced

# A tree to be saved is made only where the step is due.
MakeTree: TypeAlias = Callable[[], PyTree]


@contextlib.contextmanager
def checkpointer(root: pathlib.Path, last: int) -> Iterator[Callable[[int, MakeTree], None]]:
    """Save with Orbax's CheckpointManager at steps 0, 1, 2, 4, 8, ... and at the last one.

    Args:
        root: Root of the manager.
        last: The last step.

    Yields:
        `save(step, make_tree)`, which saves when the step is due.
    """
    import orbax.checkpoint as orbax

    with orbax.CheckpointManager(root.absolute()) as manager:

        def save(step: int, make_tree: MakeTree) -> None:
            if log_spaced(step) or step == last:
                manager.save(step, args=orbax.args.StandardSave(make_tree()))

        yield save
        manager.wait_until_finished()
