"""Where in a checkpoint path the arrays are: direct, item of a step, step of a manager root."""

import dataclasses
import os
import pathlib
import re

from ntkdiag import errors

ITEM_FILE = "_METADATA"
STEP_FILE = "_CHECKPOINT_METADATA"
UNFINISHED = ".orbax-checkpoint-tmp"
PREFERRED_ITEMS = ("params", "state", "default")
_STEP = re.compile(r"^(?:.*_)?(\d+)$")


@dataclasses.dataclass(frozen=True)
class Location:
    """One Orbax item on disk.

    Attributes:
        root: The path that was asked for; nothing outside it is opened.
        directory: The directory Orbax is asked to open.
        item: Name of the item inside `directory`; None when the arrays lie in `directory` itself.
        step: Step number when the item was found through a manager root or lies in a numbered directory.
    """

    root: pathlib.Path
    directory: pathlib.Path
    item: str | None
    step: int | None

    @property
    def folder(self) -> pathlib.Path:
        """The directory in which the arrays of the item lie."""
        return self.directory / self.item if self.item else self.directory

    @property
    def label(self) -> str:
        """Short name for tables: the step, or the last two parts of the directory."""
        return f"step {self.step}" if self.step is not None else "/".join(self.directory.parts[-2:])


def checkpoint_error(path: str | os.PathLike[str], reason: str, do: str) -> errors.CheckpointError:
    """The one shape of every checkpoint error: path, reason, what to do."""
    return errors.CheckpointError(
        errors.message("load_params", expected=f"an Orbax checkpoint at {os.fspath(path)!r}", got=reason, do=do)
    )


def locate(path: str | os.PathLike[str], step: int | None = None) -> Location:
    """Find the one Orbax item that `path` (and `step`) means, from directory names alone.

    `path` is a checkpoint directory (V0 or V1), a step directory of a manager, an item directory inside
    one, or a manager root. For a root, `step` selects the step; without it the latest finished one is taken.

    Args:
        path: Local directory; relative paths are taken from the working directory.
        step: Step number, only for a manager root.

    Returns:
        The location of the item that holds the arrays.

    Raises:
        CheckpointError: The path is missing, a file, empty, unfinished, holds no Orbax item, holds several
            items none of which is the usual one, or has no such step.
    """
    root = pathlib.Path(os.path.abspath(os.path.expanduser(os.fspath(path))))
    _require_directory(root)
    if _is_item(root) or _items(root):
        if step is not None:
            raise checkpoint_error(
                root, f"a single checkpoint, and step={step}", "Leave step out, or pass the manager root."
            )
        return _within(root, root, _step_number(root))
    steps = find_steps(root)
    if not steps:
        raise _nothing_found(root)
    chosen = max(steps) if step is None else step
    if chosen not in steps:
        raise checkpoint_error(root, f"no step {step}", f"Finished steps there: {_enumerate(sorted(steps))}.")
    return _within(root, steps[chosen], chosen)


def find_steps(root: pathlib.Path) -> dict[int, pathlib.Path]:
    """Finished steps of a manager root, by number; unfinished directories are left out."""
    found = {}
    for child in sorted(root.iterdir()):
        number = _step_number(child)
        if number is not None and child.is_dir() and (_is_item(child) or _items(child)):
            found[number] = child
    return found


def _require_directory(root: pathlib.Path) -> None:
    if not root.exists():
        raise checkpoint_error(root, "no such path", "Check the spelling and the working directory.")
    if not root.is_dir():
        raise checkpoint_error(
            root, "a plain file", "Pass the checkpoint directory; Orbax checkpoints are directories."
        )
    if UNFINISHED in root.name:
        raise checkpoint_error(
            root,
            "a save that never finished",
            "Use an earlier step; Orbax renames the directory when a save completes.",
        )
    if not any(root.iterdir()):
        raise checkpoint_error(root, "an empty directory", "Pass the directory the checkpoint was saved to.")


def _nothing_found(root: pathlib.Path) -> errors.CheckpointError:
    if any(UNFINISHED in child.name for child in root.iterdir()):
        return checkpoint_error(root, "only saves that never finished", "Save again, or use another run.")
    return checkpoint_error(
        root,
        f"no {ITEM_FILE} file in it, in its items or in numbered steps",
        "Pass the directory given to Orbax when saving, a step directory, or a CheckpointManager root.",
    )


def _within(root: pathlib.Path, directory: pathlib.Path, step: int | None) -> Location:
    if _is_item(directory):
        if (directory / STEP_FILE).exists() or not (directory.parent / STEP_FILE).exists():
            return Location(root, directory, None, step)
        step = _step_number(directory.parent)
        return Location(directory.parent, directory.parent, directory.name, step)
    items = _items(directory)
    named = [name for name in PREFERRED_ITEMS if name in items]
    if len(items) > 1 and not named:
        raise checkpoint_error(
            directory, f"several items: {', '.join(items)}", "Pass the directory of the item that holds the parameters."
        )
    return Location(root, directory, named[0] if named else items[0], step)


def _is_item(directory: pathlib.Path) -> bool:
    return (directory / ITEM_FILE).is_file()


def _items(directory: pathlib.Path) -> list[str]:
    names = [child.name for child in directory.iterdir() if UNFINISHED not in child.name and _is_item(child)]
    if (directory / STEP_FILE).exists():
        return sorted(names)
    return sorted(name for name in names if not _STEP.match(name))  # numbered: steps of a root, not items


def _step_number(directory: pathlib.Path) -> int | None:
    match = _STEP.match(directory.name)
    return int(match.group(1)) if match else None


def _enumerate(steps: list[int]) -> str:
    shown = ", ".join(map(str, steps[:12]))
    return shown if len(steps) <= 12 else f"{shown}, ... ({len(steps)} in all)"
