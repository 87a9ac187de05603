"""Names of the leaves as an Orbax `_METADATA` file lists them, read before Orbax acts on them.

Orbax turns the keys of a leaf into the name of a file, so that a key that climbs out of the
checkpoint is refused here. And Orbax leaves out of its own description what it cannot find, so
that a reader has to compare that with this list.
"""

import json
from typing import TypeAlias

from ntkdiag.checkpoints.formats import checkpoint_error
from ntkdiag.checkpoints.location import ITEM_FILE, Location

Keys: TypeAlias = tuple[str, ...]


def leaf_names(location: Location) -> set[Keys]:
    """Keys of every stored leaf; empty containers and None, which have no data, are left out."""
    file = location.folder / ITEM_FILE
    try:
        names = _names_in(file.read_text())
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise checkpoint_error(
            location.root,
            f"unreadable metadata ({type(error).__name__}: {str(error)[:160]})",
            "Use another step, or save it again.",
        ) from error
    # Before anything is opened by such a name.
    for name in names:
        if any(_climbs_out(key) for key in name):
            raise checkpoint_error(
                location.root,
                f"the key {'/'.join(name)!r}, which names a file outside it",
                "Do not open it; save it again.",
            )
    return names


def _names_in(metadata: str) -> set[Keys]:
    """The keys of every leaf with data, from the text of a metadata file."""
    # {"tree_metadata": {a name: {"key_metadata": [{"key": ...}, ...], "value_metadata": {...}}}}
    names = set()
    for entry in json.loads(metadata)["tree_metadata"].values():
        if not entry["value_metadata"].get("skip_deserialize", False):
            names.add(tuple(str(key["key"]) for key in entry["key_metadata"]))
    return names


def _climbs_out(key: str) -> bool:
    """Whether a key, as a part of a file name, leads out of the directory."""
    return key.startswith("/") or ".." in key.split("/")
