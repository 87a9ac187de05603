"""The checkpoints of a training that is going on, one after the other as they are finished."""

import os
import time
from collections.abc import Iterator

from ntkdiag import errors
from ntkdiag.checkpoints.location import finished_steps
from ntkdiag.path_argument import as_path

POLL_SECONDS = 1.0


@errors.public
def new_steps(root: str | os.PathLike[str], patience: float = 600) -> Iterator[tuple[int, str]]:
    """Yield each checkpoint of a root as soon as it is finished, for `track`.

        for step, path in ntkdiag.checkpoints.new_steps("run/checkpoints"):
            params = ntkdiag.load_params(path)

    A save under way has another name and does not count. Those that are there already come first,
    in the order of their steps.

    Args:
        root: A root of numbered checkpoints, which may not be there yet.
        patience: Seconds without a new checkpoint after which it ends.

    Yields:
        The step, and the path of its checkpoint.
    """
    folder = as_path(root)
    seen: set[int] = set()
    end = time.monotonic() + patience
    while True:
        steps = finished_steps(folder) if folder.is_dir() else {}
        new = [step for step in steps if step not in seen]
        if new:
            # One at a time: training may remove old ones while this one is measured.
            step = min(new)
            seen.add(step)
            yield step, os.fspath(steps[step])
            end = time.monotonic() + patience
        elif time.monotonic() >= end:
            return
        else:
            time.sleep(min(POLL_SECONDS, patience))
