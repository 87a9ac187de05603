"""An archive of NumPy with an array for each name, as `numpy.savez` writes it, as a tree.

The arrays are read one by one, after the sizes that the archive declares for them were looked at.
Objects, which NumPy would unpickle, are refused.
"""

import collections
import zipfile

import numpy as np
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.checkpoints.equinox_leaves import as_bfloat16
from ntkdiag.checkpoints.formats import checkpoint_error
from ntkdiag.checkpoints.location import Location
from ntkdiag.checkpoints.named_arrays import ParameterNames, tree_of_named_arrays
from ntkdiag.checkpoints.path_sandbox import require_affordable


def read_npz(location: Location, parameter_names: ParameterNames | None) -> PyTree:
    """Read every array of an archive into nested dictionaries."""
    arrays: dict[str, np.ndarray] = {}
    try:
        with zipfile.ZipFile(location.path) as archive:
            require_affordable(location, sum(entry.file_size for entry in archive.infolist()))
        with np.load(location.path, allow_pickle=False) as stored:
            _require_names_once(location, stored.files)
            for name in stored.files:
                arrays[name] = as_bfloat16(stored[name])
    except errors.NtkdiagError:
        raise
    # Damaged bytes raise what the part of zipfile, zlib or NumPy raises that meets them first.
    except Exception as error:
        first_line = (str(error).strip() or "no message").splitlines()[0]
        raise checkpoint_error(
            location.root,
            f"an archive that cannot be read ({type(error).__name__}: {first_line[:160]})",
            "Save it once more, with numpy.savez and arrays alone.",
        ) from error
    return tree_of_named_arrays(location, arrays, parameter_names)


def _require_names_once(location: Location, names: list[str]) -> None:
    """Refuse an archive that was saved to twice: NumPy reads one of two arrays of a name."""
    twice = [name for name, count in collections.Counter(names).items() if count > 1]
    if twice:
        raise checkpoint_error(
            location.root,
            f"an archive with two arrays named {twice[0]!r}",
            "Save it once more, to a new file.",
        )
