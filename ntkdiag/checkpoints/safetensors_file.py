"""A safetensors file, or the shards that an index names, as arrays in a tree.

An index is JSON with the shard of every array by name. Shards lie beside their index: a name that
leads elsewhere is refused. Links are followed, of which the cache of Hugging Face is made.
"""

import json
import pathlib

import numpy as np
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.checkpoints.contained import require_affordable
from ntkdiag.checkpoints.formats import INDEX, checkpoint_error
from ntkdiag.checkpoints.location import Location
from ntkdiag.checkpoints.named_arrays import ParameterNames, tree_of_named_arrays


def read_safetensors(location: Location, parameter_names: ParameterNames | None) -> PyTree:
    """Read every array of a safetensors checkpoint into nested dictionaries."""
    shards = [location.path]
    if location.path.name.endswith(INDEX):
        shards = _shards(location)
    require_affordable(location, sum(shard.stat().st_size for shard in shards))
    arrays: dict[str, np.ndarray] = {}
    for shard in shards:
        arrays |= _arrays_of(location, shard)
    return tree_of_named_arrays(location, arrays, parameter_names)


def _shards(location: Location) -> list[pathlib.Path]:
    """The files that an index names, all of which are there."""
    try:
        names = sorted(set(json.loads(location.path.read_text())["weight_map"].values()))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise checkpoint_error(
            location.root,
            f"an index that cannot be read ({type(error).__name__}: {str(error)[:160]})",
            "Save it once more, or pass one of its shards.",
        ) from error
    shards = []
    for name in names:
        if pathlib.PurePath(name).name != name:
            raise checkpoint_error(
                location.root,
                f"an index that names a file elsewhere: {name!r}",
                "Do not open it; save it again.",
            )
        shards.append(location.path.with_name(name))
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        raise checkpoint_error(
            location.root,
            f"no file {', '.join(missing[:8])}, which its index names",
            "Copy all shards into one directory.",
        )
    return shards


def _arrays_of(location: Location, file: pathlib.Path) -> dict[str, np.ndarray]:
    """The arrays of one file by name."""
    try:
        import safetensors
    except ImportError as error:
        raise errors.MissingDependencyError(
            expected="the library safetensors, which reads such files",
            got="no safetensors",
            do='Run: pip install "ntkdiag[safetensors]"',
        ) from error
    try:
        with safetensors.safe_open(file, framework="numpy") as stored:
            names = stored.keys()
            return {name: stored.get_tensor(name) for name in names}
    except (safetensors.SafetensorError, OSError, TypeError, ValueError, KeyError) as error:
        raise checkpoint_error(
            location.root,
            f"{file.name} damaged, or of a dtype that NumPy has not ({str(error)[:160]})",
            "Save it once more.",
        ) from error
