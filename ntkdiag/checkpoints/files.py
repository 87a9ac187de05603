"""Checkpoints in files, as trees of arrays of NumPy: no reader runs code or unpickles objects.

    safetensors     a file, or the shards that an index names; links are followed, of which the
                    cache of Hugging Face is made, but shards are next to their index
    npz             what `numpy.savez` writes
    msgpack         what `flax.serialization.to_bytes` writes
    equinox         what `equinox.tree_serialise_leaves` writes: arrays without names
    by suffix       read by the distribution that declares the suffix: see `formats`

Arrays under names such as `Dense_0.kernel` are put into a tree: the parts of a name are joined by
slashes or, where no name has one, by dots, or stand as `jax.tree_util.keystr` writes them. Names of
another library, and arrays in another layout, are translated by the user, array by array.
"""

import collections
import operator
import pathlib
import re
import zipfile
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

import jax
import numpy as np
from jaxtyping import PyTree

from ntkdiag import errors, plugins
from ntkdiag.checkpoints.formats import GROUP, INDEX
from ntkdiag.checkpoints.location import Location
from ntkdiag.checkpoints.names import keyed_leaves
from ntkdiag.checkpoints.safety import (
    MOST_BYTES_OF_JSON,
    damage,
    read_json,
    require_affordable,
    require_levels,
    require_shallow,
)
from ntkdiag.display import some_of

# (name, array) -> (path, array), None for an array that is left out.
ParameterNames: TypeAlias = Callable[[str, np.ndarray], tuple[str, np.ndarray] | None]

_Arrays: TypeAlias = Mapping[str, np.ndarray]
# One key in "['Dense_0']['kernel']" or ".layers[0].weight".
_KEY_OF_KEYSTR = r"\['([^']*)'\]|\[(\d+)\]|\.(\w+)"
_KEYSTR = re.compile(f"(?:{_KEY_OF_KEYSTR})+")
_MOST_LISTED = 12  # of more, the number is given


def read_file(location: Location, at: str | None, parameter_names: ParameterNames | None) -> PyTree:
    """Read a file of any format but Equinox's; `at` is for the reader of its suffix."""
    match location.format:
        case "msgpack":
            return read_tree_of_msgpack(location, location.path)
        case "safetensors":
            arrays = _arrays_of_safetensors(location)
        case "npz":
            arrays = _arrays_of_npz(location)
        case _:
            require_affordable(location, location.path.stat().st_size)
            read = plugins.offered(GROUP, location.path.suffix.removeprefix("."))
            with damage(location, f"a file that {read.__module__} cannot read"):
                arrays = read(str(location.path), at)
    return _tree_of_named_arrays(location, arrays, parameter_names)


# Safetensors.


def _arrays_of_safetensors(location: Location) -> _Arrays:
    """The arrays of a file, or of all shards, each from the one that the index names."""
    if not location.path.name.endswith(INDEX):
        require_affordable(location, location.path.stat().st_size)
        return _arrays_of_shard(location, location.path)
    shards = _shards(location)
    require_affordable(location, sum(shard.stat().st_size for shard in shards))
    arrays: dict[str, np.ndarray] = {}
    for shard, names in shards.items():
        stored = _arrays_of_shard(location, shard)
        missing = some_of(sorted(set(names) - stored.keys()), _MOST_LISTED)
        if missing:
            got = f"no array {missing} in {shard.name}, where its index lists it"
            raise location.error(got)
        unlisted = some_of(sorted(stored.keys() - set(names)), _MOST_LISTED)
        if unlisted:
            got = f"the array {unlisted} in {shard.name}, where its index does not list it"
            raise location.error(got)
        arrays |= stored
    return arrays


def _shards(location: Location) -> dict[pathlib.Path, list[str]]:
    """The files that an index names, all of which are there, with the names of their arrays."""
    with damage(location, "an index that cannot be read"):
        weight_map: Mapping[str, str] = read_json(location.path)["weight_map"]
        pairs = sorted(weight_map.items())
        # A number would be no part of a path.
        outside = [name for _, name in pairs if pathlib.PurePath(name).name != name]
    if not pairs:
        raise location.error("an index that names no array")
    shards: dict[pathlib.Path, list[str]] = {}
    for name, shard in pairs:
        if shard in ("", "..", *outside):
            raise location.error(f"an index that names a file outside its directory: {shard!r}")
        shards.setdefault(location.path.with_name(shard), []).append(name)
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        raise location.error(
            f"no file {', '.join(missing[:8])}, which its index names",
            "Copy all shards into one directory.",
        )
    return shards


def _arrays_of_shard(location: Location, file: pathlib.Path) -> dict[str, np.ndarray]:
    safetensors = plugins.imported("safetensors", "for such files", "ntkdiag[safetensors]")
    with (
        damage(location, f"{file.name} damaged, or of a dtype that NumPy does not have"),
        safetensors.safe_open(file, framework="numpy") as stored,
    ):
        names = stored.keys()  # the file is no dictionary
        return {name: stored.get_tensor(name) for name in names}


# Archives of NumPy.


def _arrays_of_npz(location: Location) -> _Arrays:
    """Every array of an archive, after the sizes that it declares for them were looked at."""
    with damage(location, "an archive that cannot be read"):
        with zipfile.ZipFile(location.path) as archive:
            require_affordable(location, sum(entry.file_size for entry in archive.infolist()))
        with np.load(location.path, allow_pickle=False) as stored:
            # If an archive has two arrays of one name, NumPy reads only one of them.
            counts = collections.Counter(stored.files)
            twice = [name for name, count in counts.items() if count > 1]
            if twice:
                raise location.error(f"an archive with two arrays named {twice[0]!r}")
            return {name: _as_bfloat16(stored[name]) for name in stored.files}


def _as_bfloat16(array: np.ndarray) -> np.ndarray:
    """What NumPy makes of bfloat16, which it knows as two bytes of nothing, as what it was."""
    return array.view(jax.numpy.bfloat16) if array.dtype == np.dtype("V2") else array


# Msgpack files of Flax.


def read_tree_of_msgpack(location: Location, file: pathlib.Path) -> PyTree:
    """Read what a msgpack file holds; lists may be dictionaries of their positions."""
    from flax import serialization

    require_affordable(location, file.stat().st_size)
    with damage(location, "a msgpack file that cannot be read"):
        tree = serialization.msgpack_restore(file.read_bytes())
    require_shallow(location, tree)
    return _with_arrays(tree)


def _with_arrays(tree: PyTree) -> PyTree:
    """The same tree with numbers of NumPy as arrays of no axes, as other formats have them."""
    if isinstance(tree, dict):
        return {str(key): _with_arrays(subtree) for key, subtree in tree.items()}
    if isinstance(tree, list | tuple):
        return [_with_arrays(subtree) for subtree in tree]
    return np.asarray(tree) if isinstance(tree, np.generic) else tree


# Leaves of Equinox.


def read_equinox_leaves(location: Location, skeleton: PyTree) -> PyTree:
    """Read the arrays of a file into the structure of `skeleton`; None at leaves that are none."""
    import equinox

    if skeleton is None:
        raise location.error(
            "leaves of Equinox, which have no names",
            "Pass model=, an Equinox model of the structure that was saved, (model, state) or "
            "(model, opt_state).",
        )
    # `equinox.tree_deserialise_leaves` would read a shallower module from the first layers of a
    # deeper one: here all arrays are read first, and compared with all leaves.
    arrays = _arrays_in_order(location)
    # Equinox writes numbers of Python, too; those of the skeleton stay.
    keyed = keyed_leaves(skeleton)
    written = [("/".join(keys), leaf) for keys, leaf in keyed if equinox.is_array_like(leaf)]
    for index, (_, leaf) in enumerate(written[: len(arrays)]):
        arrays[index] = _in_dtype_of(arrays[index], leaf)
    _require_fit(location, written, arrays)
    next_array = iter(arrays)
    leaves = []
    for _, leaf in keyed:
        array = next(next_array) if equinox.is_array_like(leaf) else None
        leaves.append(array if equinox.is_array(leaf) else None)
    return jax.tree.unflatten(jax.tree.structure(skeleton), leaves)


def _require_fit(
    location: Location, written: list[tuple[str, PyTree]], arrays: list[np.ndarray]
) -> None:
    """Refuse arrays unless they are those of the leaves, in number, shape and dtype."""
    lines = []
    for (path, leaf), array in zip(written, arrays, strict=False):
        # Of numbers of Python the dtype is a setting of JAX.
        is_number = not hasattr(leaf, "dtype") and array.shape == ()
        expected = f"{getattr(leaf, 'dtype', 'number')}{list(np.shape(leaf))}"
        got = f"{array.dtype}{list(array.shape)}"
        if expected != got and not is_number:
            lines.append(f"{path or '(the only leaf)'}: expected {expected}, got {got}")
    lines += [f"{path}: missing" for path, _ in written[len(arrays) :]]
    if len(arrays) > len(written):
        lines.append(
            f"{len(arrays) - len(written)} more arrays in the file than leaves in the model"
        )
    if lines:
        raise errors.StructureError(
            expected=f"the arrays of the model, in its order, in {str(location.path)!r}",
            got=f"{len(lines)} difference(s): {some_of(lines, _MOST_LISTED)}",
            do="Pass what was saved: the model, (model, opt_state) or (model, state). The file "
            "does not contain its structure.",
        )


def _in_dtype_of(array: np.ndarray, leaf: PyTree) -> np.ndarray:
    """Bytes of a dtype that NumPy does not name, such as float8, in that of their leaf."""
    dtype = getattr(leaf, "dtype", None)
    # Typed keys have a dtype of JAX's own.
    if not isinstance(dtype, np.dtype) or dtype.kind != "V":
        return array
    is_unnamed = array.dtype.kind == "V" and array.dtype.names is None
    return array.view(dtype) if is_unnamed and dtype.itemsize == array.itemsize else array


def _arrays_in_order(location: Location) -> list[np.ndarray]:
    """The arrays of a file of Equinox."""
    n_bytes = location.path.stat().st_size
    require_affordable(location, n_bytes)
    arrays: list[np.ndarray] = []
    with location.path.open("rb") as stream:
        # The guide of Equinox puts a line of settings in front of the arrays.
        if stream.read(1) == b"{":
            stream.readline(MOST_BYTES_OF_JSON)
        else:
            stream.seek(0)
        while stream.tell() < n_bytes:
            with damage(location, f"array {len(arrays) + 1} of the file damaged"):
                array = np.lib.format.read_array(stream, allow_pickle=False)
                arrays.append(_as_bfloat16(array))
    return arrays


# Names to trees.


def _tree_of_named_arrays(
    location: Location, arrays: _Arrays, parameter_names: ParameterNames | None
) -> PyTree:
    """Put arrays by name into nested dictionaries, under the paths that the user has for them."""
    if parameter_names is None:
        keys_of = _reader_of(arrays)
    else:
        arrays = _translated(location, arrays, parameter_names)
        keys_of = operator.methodcaller("split", "/")
    tree: dict[str, PyTree] = {}
    for path, array in arrays.items():
        keys = keys_of(path)
        require_levels(location, len(keys))
        parent = tree
        for depth, key in enumerate(keys[:-1]):
            parent = parent.setdefault(key, {})
            if not isinstance(parent, dict):
                raise _no_tree_error(location, keys[: depth + 1])
        if keys[-1] in parent:
            raise _no_tree_error(location, keys)
        parent[keys[-1]] = array
    return tree


def _reader_of(names: Collection[str]) -> Callable[[str], list[str]]:
    """What takes these names apart into keys."""
    if all(_KEYSTR.fullmatch(name) for name in names):
        return _keys_of_keystr
    return operator.methodcaller("split", "/" if any("/" in name for name in names) else ".")


def _keys_of_keystr(name: str) -> list[str]:
    """The keys in a path as `jax.tree_util.keystr` writes it."""
    return ["".join(parts) for parts in re.findall(_KEY_OF_KEYSTR, name)]


def _translated(location: Location, arrays: _Arrays, translate: ParameterNames) -> _Arrays:
    """The arrays that a function of name and array returns, by their paths."""
    renamed: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        translated = translate(name, array)
        if translated is None:
            continue
        is_pair = isinstance(translated, tuple) and len(translated) == 2
        if not is_pair or not isinstance(translated[0], str):
            raise location.error(
                f"{translated!r:.60} of parameter_names(name, array) for {name!r}",
                "Return (path, array), or None to leave it out.",
            )
        path, converted = translated
        if path in renamed:
            raise location.error(
                f"two arrays for {path!r} by parameter_names=", "Give each a path of its own."
            )
        renamed[path] = np.asarray(converted)
    return renamed


def _no_tree_error(location: Location, keys: list[str]) -> Exception:
    return location.error(
        f"names that form no tree: {'/'.join(keys)!r} is an array and the beginning of other names",
        "Pass parameter_names=, a function that gives each name its path.",
    )
