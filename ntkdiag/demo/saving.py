"""Orbax checkpoints of the demo, on a log-spaced schedule."""

import contextlib
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

from ntkdiag.monitor.schedule import LogSpaced


@contextlib.contextmanager
def checkpointer(root: pathlib.Path, last: int) -> Iterator[Callable[[int, Any], None]]:
    """Save with Orbax's CheckpointManager at steps 0, 1, 2, 4, 8, ... and at the last one.

    Args:
        root: Root of the manager.
        last: The last step.

    Yields:
        `save(step, tree)`, which saves when the step is due; the tree is a function without arguments.
    """
    import orbax.checkpoint as orbax

    due = LogSpaced()
    with orbax.CheckpointManager(root.absolute()) as manager:

        def save(step: int, tree: Callable[[], Any]) -> None:
            if due(step) or step == last:
                manager.save(step, args=orbax.args.StandardSave(tree()))

        yield save
        manager.wait_until_finished()
