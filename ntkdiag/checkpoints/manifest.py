"""Names of the leaves as an Orbax `_METADATA` file lists them, read before Orbax acts on them."""

import json

from ntkdiag.checkpoints.location import ITEM_FILE, Location, checkpoint_error

Keys = tuple[str, ...]


def leaf_names(location: Location) -> set[Keys]:
    """Keys of every stored leaf (empty containers and None left out).

    Orbax turns keys into file names, so they are checked here first; and it leaves out of its own metadata
    what it cannot find, so the caller compares.

    Args:
        location: What `locate` found.

    Returns:
        One tuple of strings per stored leaf.

    Raises:
        CheckpointError: The file is not what Orbax writes, or a key is a path out of the checkpoint.
    """
    file = location.folder / ITEM_FILE
    try:
        entries = list(json.loads(file.read_text())["tree_metadata"].values())
        names = {
            tuple(str(key["key"]) for key in entry["key_metadata"])
            for entry in entries
            if not entry["value_metadata"].get("skip_deserialize", False)
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        got = f"unreadable metadata ({type(error).__name__}: {str(error)[:160]})"
        raise checkpoint_error(location.root, got, "Use another step, or save it again.") from error
    for name in names:
        if any(key.startswith("/") or ".." in key.split("/") for key in name):
            got = f"the key {'/'.join(name)!r}, which names a file outside it"
            raise checkpoint_error(location.root, got, "Do not open it; save it again.")
    return names
