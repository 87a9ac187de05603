"""A safetensors file, or the shards that an index names, as arrays in a tree.

An index is JSON with the shard of every array by name: each comes from there, and from nowhere
else. Shards lie beside their index: a name that leads elsewhere is refused. Links are followed, of
which the cache of Hugging Face is made.
"""

import pathlib
from collections.abc import Mapping

import numpy as np
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.checkpoints.formats import INDEX, checkpoint_error
from ntkdiag.checkpoints.json_file import JSON_ERRORS, read_json
from ntkdiag.checkpoints.location import Location
from ntkdiag.checkpoints.named_arrays import ParameterNames, listed, tree_of_named_arrays
from ntkdiag.checkpoints.path_sandbox import require_affordable


def read_safetensors(location: Location, parameter_names: ParameterNames | None) -> PyTree:
    """Read every array of a safetensors checkpoint into nested dictionaries."""
    if location.path.name.endswith(INDEX):
        arrays = _arrays_of_index(location)
    else:
        require_affordable(location, location.path.stat().st_size)
        arrays = _arrays_of(location, location.path)
    return tree_of_named_arrays(location, arrays, parameter_names)


def _arrays_of_index(location: Location) -> dict[str, np.ndarray]:
    """The arrays of all shards, each from the one that the index names."""
    shards = _shards(location)
    require_affordable(location, sum(shard.stat().st_size for shard in shards))
    arrays: dict[str, np.ndarray] = {}
    for shard, names in shards.items():
        stored = _arrays_of(location, shard)
        _require_as_listed(location, shard.name, names, stored)
        arrays |= stored
    return arrays


def _shards(location: Location) -> dict[pathlib.Path, list[str]]:
    """The files that an index names, all of which are there, with the names of their arrays."""
    try:
        weight_map: Mapping[str, str] = read_json(location.path)["weight_map"]
        pairs = sorted(weight_map.items())
        # A number would be no part of a path.
        names = {shard: pathlib.PurePath(shard).name for _, shard in pairs}
    except JSON_ERRORS as error:
        raise checkpoint_error(
            location.root,
            f"an index that cannot be read ({type(error).__name__}: {str(error)[:160]})",
            "Save it once more, or pass one of its shards.",
        ) from error
    if not pairs:
        raise checkpoint_error(
            location.root,
            "an index that names no array",
            "Save it once more, or pass one of its shards.",
        )
    shards: dict[pathlib.Path, list[str]] = {}
    for name, shard in pairs:
        if names[shard] != shard or shard in ("", ".."):
            raise checkpoint_error(
                location.root,
                f"an index that names a file elsewhere: {shard!r}",
                "Do not open it; save it again.",
            )
        shards.setdefault(location.path.with_name(shard), []).append(name)
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        raise checkpoint_error(
            location.root,
            f"no file {', '.join(missing[:8])}, which its index names",
            "Copy all shards into one directory.",
        )
    return shards


def _require_as_listed(
    location: Location, shard: str, names: list[str], stored: Mapping[str, np.ndarray]
) -> None:
    """Refuse a shard without an array that the index has in it, or with one that it has not."""
    do = "Its shards are not of one checkpoint: copy them once more, or save it again."
    missing = sorted(set(names) - stored.keys())
    if missing:
        got = f"no array {listed(missing)} in {shard}, where its index has it"
        raise checkpoint_error(location.root, got, do)
    unlisted = sorted(stored.keys() - set(names))
    if unlisted:
        got = f"the array {listed(unlisted)} in {shard}, where its index has it not"
        raise checkpoint_error(location.root, got, do)


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
            names = stored.keys()  # the file is no dictionary
            return {name: stored.get_tensor(name) for name in names}
    except (safetensors.SafetensorError, OSError, TypeError, ValueError, LookupError) as error:
        raise checkpoint_error(
            location.root,
            f"{file.name} damaged, or of a dtype that NumPy has not ({str(error)[:160]})",
            "Save it once more.",
        ) from error
