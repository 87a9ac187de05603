"""Where under a checkpoint path the arrays are, found from the names of files and directories.

Orbax writes arrays into an *item*, a directory with a `_METADATA` file. A checkpoint is an item,
or a directory of items, some of them with names such as `params` or `state`. The root of a
CheckpointManager is a directory of checkpoints whose names end with their step. A path may lead to
any of the three; a directory that Orbax has not finished has a mark in its name and does not count.
"""

import dataclasses
import os
import pathlib
import re

from ntkdiag import errors

ITEM_FILE = "_METADATA"
CHECKPOINT_FILE = "_CHECKPOINT_METADATA"
UNFINISHED = ".orbax-checkpoint-tmp"  # in the name of a directory until a save completes
# Of several items the first of these is meant: names that scripts, or Orbax, give to parameters.
PREFERRED_ITEMS = ("params", "state", "default")
# A number alone, or at the end of a name: "100", "checkpoint_100".
_STEP = re.compile(r"^(?:.*_)?(\d+)$")


@dataclasses.dataclass(frozen=True)
class Location:
    """One Orbax item on disk.

    Attributes:
        root: The path that was asked for, or the checkpoint around it where that is an item;
            nothing outside it is opened.
        directory: The directory Orbax is asked to open.
        item: Name of the item inside `directory`; None when the arrays lie in `directory` itself.
        step: Step number when the item was found through a manager root or lies in a numbered
            directory.
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
        if self.step is not None:
            return f"step {self.step}"
        return "/".join(self.directory.parts[-2:])


def checkpoint_error(path: str | os.PathLike[str], got: str, do: str) -> errors.CheckpointError:
    """What every checkpoint error expects: an Orbax checkpoint at that path."""
    return errors.CheckpointError(
        expected=f"an Orbax checkpoint at {os.fspath(path)!r}", got=got, do=do
    )


def locate(path: str | os.PathLike[str], step: int | None = None) -> Location:
    """Find the one Orbax item that `path` (and `step`) means, without opening a file.

    `path` is a checkpoint of any layout, a step or an item of one, or a manager root, of which
    `step` selects a step; without it the latest finished one is taken.
    """
    # Links are not resolved: the user's name for the directory is the one for messages.
    root = pathlib.Path(os.path.abspath(os.path.expanduser(os.fspath(path))))
    _require_finished_directory(root)
    # 1. The path is a checkpoint, or an item of one: there is nothing to choose.
    if _is_item(root) or _items(root):
        if step is not None:
            raise checkpoint_error(
                root,
                f"a single checkpoint, and step={step}",
                "Leave step out, or pass the manager root.",
            )
        return _location_within(root, root, _step_number(root))

    # 2. It is the root of a manager, and holds one checkpoint for every step.
    steps = finished_steps(root)
    if not steps:
        raise _nothing_found_error(root)
    if step is None:
        step = max(steps)
    if step not in steps:
        raise checkpoint_error(
            root, f"no step {step}", f"Finished steps there: {_listed(sorted(steps))}."
        )
    return _location_within(root, steps[step], step)


def finished_steps(root: pathlib.Path) -> dict[int, pathlib.Path]:
    """Finished steps of a manager root, by number; unfinished directories are left out."""
    steps = {}
    for child in sorted(root.iterdir()):
        number = _step_number(child)
        if number is None or not child.is_dir():
            continue
        if _is_item(child) or _items(child):
            steps[number] = child
    return steps


def _require_finished_directory(root: pathlib.Path) -> None:
    """Refuse what is no directory, or one in which no save was completed."""
    if not root.exists():
        raise checkpoint_error(
            root, "no such path", "Check the spelling and the working directory."
        )
    if not root.is_dir():
        raise checkpoint_error(
            root,
            "a plain file",
            "Pass the checkpoint directory; Orbax checkpoints are directories.",
        )
    if UNFINISHED in root.name:
        raise checkpoint_error(
            root,
            "a save that never finished",
            "Use an earlier step; Orbax renames the directory when a save completes.",
        )
    if not any(root.iterdir()):
        raise checkpoint_error(
            root, "an empty directory", "Pass the directory the checkpoint was saved to."
        )


def _nothing_found_error(root: pathlib.Path) -> errors.CheckpointError:
    """The error for a directory in which neither an item nor a finished step is found."""
    if any(UNFINISHED in child.name for child in root.iterdir()):
        return checkpoint_error(
            root, "only saves that never finished", "Save again, or use another run."
        )
    return checkpoint_error(
        root,
        f"no {ITEM_FILE} file in it, in its items or in numbered steps",
        "Pass the directory given to Orbax when saving, a step directory, or a CheckpointManager "
        "root.",
    )


def _location_within(root: pathlib.Path, directory: pathlib.Path, step: int | None) -> Location:
    """The location of the item that is meant by a checkpoint directory, or by an item itself."""
    if _is_item(directory):
        checkpoint = directory.parent
        is_part_of_checkpoint = (checkpoint / CHECKPOINT_FILE).exists()
        if is_part_of_checkpoint and not (directory / CHECKPOINT_FILE).exists():
            # Orbax opens the checkpoint, and is told the name of the item in it.
            return Location(checkpoint, checkpoint, directory.name, _step_number(checkpoint))
        return Location(root, directory, None, step)
    items = _items(directory)
    for name in PREFERRED_ITEMS:
        if name in items:
            return Location(root, directory, name, step)
    if len(items) > 1:
        raise checkpoint_error(
            directory,
            f"several items: {', '.join(items)}",
            "Pass the directory of the item that holds the parameters.",
        )
    return Location(root, directory, items[0], step)


def _is_item(directory: pathlib.Path) -> bool:
    return (directory / ITEM_FILE).is_file()


def _items(directory: pathlib.Path) -> list[str]:
    """Names of the finished items in a checkpoint directory."""
    is_checkpoint = (directory / CHECKPOINT_FILE).exists()
    names = []
    for child in directory.iterdir():
        if UNFINISHED in child.name or not _is_item(child):
            continue
        # Numbered directories are items of a checkpoint, but elsewhere they are steps of a root.
        if is_checkpoint or not _STEP.match(child.name):
            names.append(child.name)
    return sorted(names)


def _step_number(directory: pathlib.Path) -> int | None:
    """The step that the name of a directory ends with, as in ``100`` and ``checkpoint_100``."""
    match = _STEP.match(directory.name)
    return int(match.group(1)) if match else None


def _listed(steps: list[int]) -> str:
    """Steps for a message; of many, how many there are."""
    text = ", ".join(map(str, steps[:12]))
    if len(steps) > 12:
        text += f", ... ({len(steps)} in all)"
    return text
