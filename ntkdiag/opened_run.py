"""A run directory as users have it: what was measured over one training, and its report."""

import dataclasses
import os

from ntkdiag import errors
from ntkdiag.runs.run_reader import RunReader, require_run


@errors.public
def open_run(path: str | os.PathLike[str]) -> "Run":
    """Open a run directory for reading; whoever writes to it is not disturbed.

    Files of `JsonLines`, as a watched optimizer writes them, are streams without arrays.

    Args:
        path: The folder.

    Returns:
        The run. It looks at the folder whenever it is asked, so that it grows with it.

    Raises:
        CheckpointError: There is no such folder, or no stream in it.
    """
    return Run(require_run(path))


@dataclasses.dataclass(frozen=True, repr=False)
class Run(RunReader):
    """What was measured over one training, read from its directory.

    A directory holds streams, each with the rows that one writer wrote: "track", "watch".

    Attributes:
        root: The directory.
    """
