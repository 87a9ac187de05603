"""Parameters from an Orbax checkpoint.

A path is read in four steps: `location` finds the directory with the arrays, `contained` refuses
links that lead out of it, `orbax` describes what is stored there and loads a part of it, and
`contents` finds the parameters in the tree that a training script happened to save.
"""

import os

from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.checkpoints.contents import read_contents


@errors.public
def load_params(
    path: str | os.PathLike[str], step: int | None = None, *, at: str | None = None
) -> PyTree:
    """Read the parameters of an Orbax checkpoint into numpy.

    Reads what both Orbax APIs write (Standard, PyTree, CheckpointManager, v1), saved on any number
    of devices. Structure comes back as Orbax stores it: nested dicts and lists, without NNX's
    `value` level and without optimizer state. Orbax stores no checksum: a flipped bit in the data
    is not detected.

    Cost: one read of the parameters; other parts of a train state stay on disk.

    Args:
        path: Checkpoint, step or item directory, or a CheckpointManager root. Links leading out of
            it are refused.
        step: Step of a manager root; None takes the latest finished one.
        at: Where the parameters stand in the tree, such as ``"ema/params"``, when it is not the
            key `params`.

    Returns:
        Nested dicts and lists with numpy leaves, of the shapes and dtypes that were saved.

    Raises:
        CheckpointError: The path is missing, empty, a file, unfinished, damaged or not an Orbax
            checkpoint; the step does not exist; or the parameters cannot be told apart from the
            rest.

    Example:
        >>> import numpy, tempfile
        >>> from orbax.checkpoint import v1
        >>> path = tempfile.mkdtemp() + "/100"
        >>> v1.save(path, {"params": {"w": numpy.ones(3)}, "step": 100})
        >>> load_params(path)
        {'w': array([1., 1., 1.])}
    """
    return read_contents(path, step, at).params
