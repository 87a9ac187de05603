"""Names of the leaves as an Orbax `_METADATA` file lists them, read before Orbax acts on them.

Orbax turns the keys of a leaf into the name of a file, so that a key that climbs out of the
checkpoint is refused here. And Orbax leaves out of its own description what it cannot find, so
that a reader has to compare that with this list.
"""

from typing import Any, TypeAlias

from ntkdiag.checkpoints.formats import checkpoint_error
from ntkdiag.checkpoints.json_file import JSON_ERRORS, read_json
from ntkdiag.checkpoints.location import ITEM_FILE, Location
from ntkdiag.checkpoints.path_sandbox import MOST_LEVELS, require_contained_keys, too_deep_error

Keys: TypeAlias = tuple[str, ...]


def leaf_names(location: Location) -> set[Keys]:
    """Keys of every stored leaf; empty containers and None, which have no data, are left out."""
    try:
        names = _names_in(read_json(location.folder / ITEM_FILE))
    except JSON_ERRORS as error:
        raise checkpoint_error(
            location.root,
            f"unreadable metadata ({type(error).__name__}: {str(error)[:160]})",
            "Use another step, or save it again.",
        ) from error
    # Before anything is opened by such a name.
    for name in names:
        if len(name) > MOST_LEVELS:
            raise too_deep_error(location)
        require_contained_keys(location, name)
    return names


def _names_in(metadata: dict[str, Any]) -> set[Keys]:
    """The keys of every leaf with data, from the content of a metadata file."""
    # {"tree_metadata": {a name: {"key_metadata": [{"key": ...}, ...], "value_metadata": {...}}}}
    names = set()
    for entry in metadata["tree_metadata"].values():
        if not entry["value_metadata"].get("skip_deserialize", False):
            names.add(tuple(str(key["key"]) for key in entry["key_metadata"]))
    return names
