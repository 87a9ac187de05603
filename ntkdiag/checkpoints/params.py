"""Parameters from a checkpoint of any format.

A path is read in four steps: `location` finds the directory or file with the arrays, and its
format; for Orbax, `path_sandbox` refuses links that lead out of it and `orbax` describes what is
stored there and loads a part of it, and each other format has a reader of its own; `tree_parts`
finds the parameters in the tree that a training script happened to save; `contents` reads them.
"""

import os

from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.checkpoints.contents import read_contents
from ntkdiag.checkpoints.formats import NAMED, checkpoint_error
from ntkdiag.checkpoints.named_arrays import ParameterNames
from ntkdiag.path_argument import as_path


@errors.public
def load_params(
    path: str | os.PathLike[str],
    step: int | None = None,
    *,
    at: str | None = None,
    parameter_names: ParameterNames | None = None,
    model: PyTree = None,
) -> PyTree:
    """Read the parameters of a checkpoint into numpy.

    Reads what both Orbax APIs write and wrote (Standard, PyTree, CheckpointManager, v1; the
    aggregate file of 2023), saved on any number of devices; safetensors, as a file or a Hugging
    Face directory with shards; msgpack files of `flax.serialization` and
    `flax.training.checkpoints`; archives of `numpy.savez`; and leaves of Equinox. The format is
    told by what is in a file. Pickles are refused unless an installed distribution reads files of
    their suffix (ntkdiag-torch, a `state_dict`). No format here runs code.

    Structure comes back as it was stored: nested dicts and lists, without NNX's `value` level and
    without optimizer state. The parameters are the tree under the key `params`; without that, what
    stands beside the state of an optimizer, in a dictionary such as ``{"model": ..., "optimizer":
    ...}``, in items, in files `model-100` and `optimizer-100`, or first in a pair; else all. No
    format stores a checksum: a flipped bit in the data is not detected.

    Cost: one read of the parameters; other parts of a train state in Orbax stay on disk.

    Args:
        path: Checkpoint, step or item directory, a file, or a root of numbered checkpoints such as
            that of a CheckpointManager. Links leading out of an Orbax checkpoint are refused.
        step: Step of a root; None takes the latest finished one.
        at: Where the parameters stand, such as ``"ema/params"``, when they are not found or
            others are meant; its first part may be the name of an item.
        parameter_names: A function of name and array that returns ``(path, array)``, or None to
            leave it out: what paths the names of a safetensors or .npz file have, and where arrays
            of another layout are transposed. None splits names at slashes or, without, at dots.
        model: For a file of Equinox: a module of the structure that was saved, or what was saved
            with it: (module, state), (module, opt_state).

    Returns:
        Nested dicts and lists with numpy leaves, of the shapes and dtypes that were saved; of a
        file of Equinox, the module with these arrays and None for all else.

    Raises:
        CheckpointError: The path is missing, empty, unfinished, damaged, a pickle or of no known
            format; the step does not exist; or the parameters cannot be told apart from the rest.
        StructureError: The arrays of a file of Equinox are not those of `model`.
        MissingDependencyError: safetensors is not installed.

    Example:
        >>> import numpy, tempfile
        >>> from orbax.checkpoint import v1
        >>> path = tempfile.mkdtemp() + "/100"
        >>> v1.save(path, {"params": {"w": numpy.ones(3)}, "step": 100})
        >>> load_params(path)
        {'w': array([1., 1., 1.])}
    """
    as_path(path)  # refuses what is none
    contents = read_contents(
        path,
        step,
        at,
        parameter_names=parameter_names,
        skeleton=model,
        with_collections=False,
    )
    if parameter_names is not None and contents.location.format not in NAMED:
        raise checkpoint_error(
            path,
            f"a checkpoint of {contents.location.format}, and parameter_names=",
            "Leave it out: only safetensors and .npz files have no paths of their own.",
        )
    return contents.params
