"""A file of another library, read by the distribution that declares its suffix: see `formats`."""

import numpy as np
from jaxtyping import PyTree

from ntkdiag import errors, plugins
from ntkdiag.checkpoints.formats import GROUP, checkpoint_error
from ntkdiag.checkpoints.location import Location
from ntkdiag.checkpoints.named_arrays import ParameterNames, tree_of_named_arrays
from ntkdiag.checkpoints.path_sandbox import require_affordable


def read_by_suffix(
    location: Location, at: str | None, parameter_names: ParameterNames | None
) -> PyTree:
    """Read the parameters of a file into nested dictionaries; `at` is for the reader."""
    require_affordable(location, location.path.stat().st_size)
    read = plugins.offered(GROUP, location.path.suffix.removeprefix("."))
    try:
        arrays: dict[str, np.ndarray] = read(str(location.path), at)
    except errors.NtkdiagError:
        raise
    # Damaged bytes raise whatever the part of the library raises that meets them first.
    except Exception as error:
        first_line = (str(error).strip() or "no message").splitlines()[0]
        raise checkpoint_error(
            location.root,
            f"a file that {read.__module__} cannot read ({type(error).__name__}: "
            f"{first_line[:160]})",
            "Save it once more.",
        ) from error
    return tree_of_named_arrays(location, arrays, parameter_names)
