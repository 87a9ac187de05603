"""Where under a checkpoint path the arrays are, found from the names of files and directories.

Orbax writes arrays into an *item*, a directory with a `_METADATA` file. A checkpoint is an item,
or a directory of items, some of them with names such as `params` or `state`. Others write one file,
or a directory with one file of weights in it, which may be the index of several shards.

A root is a directory of checkpoints whose names end with their step. A path may lead to any of
these; a directory that Orbax has not finished has a mark in its name and does not count.
"""

import dataclasses
import os
import pathlib
import re

from ntkdiag import errors
from ntkdiag.checkpoints.formats import (
    INDEX,
    READABLE,
    Format,
    checkpoint_error,
    format_of_file,
    is_weights,
)

ITEM_FILE = "_METADATA"
CHECKPOINT_FILE = "_CHECKPOINT_METADATA"
UNFINISHED = ".orbax-checkpoint-tmp"  # in the name of a directory until a save completes
# Of several items the first of these is meant: names that scripts, or Orbax, give to parameters.
PREFERRED_ITEMS = ("params", "state", "default")
# The files of weights in a directory of Hugging Face; the first that is there is meant.
PREFERRED_FILES = (f"model{INDEX}", "model.safetensors", "flax_model.msgpack")
# A number alone, or at the end of a name: "100", "run_100", and of Hugging Face "checkpoint-100".
_STEP = re.compile(r"^(?:.*_|checkpoint-)?(\d+)$")


@dataclasses.dataclass(frozen=True)
class Location:
    """One checkpoint on disk: an Orbax item, or a file.

    Attributes:
        root: The path that was asked for, or the checkpoint around it where that is an item;
            of an Orbax checkpoint nothing outside it is opened.
        path: The directory Orbax is asked to open, or the file.
        item: Name of the Orbax item inside `path`; None when the arrays lie in `path` itself.
        step: Step number when it was found through a root or has one in its name.
        format: What wrote it.
    """

    root: pathlib.Path
    path: pathlib.Path
    item: str | None
    step: int | None
    format: Format = "orbax"

    @property
    def folder(self) -> pathlib.Path:
        """The directory in which the arrays of an Orbax item lie."""
        return self.path / self.item if self.item else self.path

    @property
    def label(self) -> str:
        """Short name for tables: the step, or the last two parts of the path."""
        if self.step is not None:
            return f"step {self.step}"
        return "/".join(self.path.parts[-2:])


def locate(path: str | os.PathLike[str], step: int | None = None) -> Location:
    """Find the one checkpoint that `path` (and `step`) means; of files the first bytes are read.

    `path` is a checkpoint of any layout, a step or an item of one, or a root, of which `step`
    selects a step; without it the latest finished one is taken.
    """
    # Links are not resolved: the user's name for the directory is the one for messages.
    root = pathlib.Path(os.path.abspath(os.path.expanduser(os.fspath(path))))
    _require_finished(root)
    # 1. The path is a checkpoint, or an item of one: there is nothing to choose.
    if root.is_file() or _is_item(root) or _items(root):
        if step is not None:
            raise checkpoint_error(
                root,
                f"a single checkpoint, and step={step}",
                "Leave step out, or pass the root of all steps.",
            )
        return _location_within(root, root, _step_number(root))

    # 2. It holds one checkpoint for every step, or weights of its own, or both.
    steps = finished_steps(root)
    weights = _weights_in(root)
    has_weights = weights is not None and (not steps or weights.name in PREFERRED_FILES)
    if has_weights and step is None:
        return _location_within(root, root, _step_number(root))
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
    """Finished steps of a root, by number; unfinished directories are left out."""
    steps: dict[int, pathlib.Path] = {}
    if not root.is_dir():
        return steps
    for child in sorted(root.iterdir()):
        number = _step_number(child)
        if number is None or not _is_checkpoint(child):
            continue
        if number in steps:
            raise checkpoint_error(
                root,
                f"two checkpoints of step {number}: {steps[number].name} and {child.name}",
                "Pass the one that is meant.",
            )
        steps[number] = child
    return steps


def _is_checkpoint(path: pathlib.Path) -> bool:
    """Whether a file or directory is a checkpoint by itself, as far as names tell."""
    if path.is_file():
        return is_weights(path)
    return path.is_dir() and (_is_item(path) or bool(_items(path)) or _weights_in(path) is not None)


def _weights_in(directory: pathlib.Path) -> pathlib.Path | None:
    """The file of weights in a directory; None where there is none, or several of one rank."""
    for name in PREFERRED_FILES:
        if (directory / name).is_file():
            return directory / name
    files = [child for child in directory.iterdir() if child.name.endswith(INDEX)]
    if not files:
        files = [child for child in directory.iterdir() if is_weights(child)]
    return files[0] if len(files) == 1 else None


def _require_finished(root: pathlib.Path) -> None:
    """Refuse what is not there, or a directory in which no save was completed."""
    if not root.exists():
        raise checkpoint_error(
            root, "no such path", "Check the spelling and the working directory."
        )
    if root.is_file():
        return
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
    files = sorted(child.name for child in root.iterdir() if is_weights(child))
    if files:
        return checkpoint_error(
            root, f"several files: {', '.join(files[:12])}", "Pass the one that is meant."
        )
    return checkpoint_error(
        root,
        f"no {ITEM_FILE} file in it, in its items or in numbered steps, and no file of weights",
        "Pass the directory given to Orbax when saving, a step directory, or the root of all "
        f"steps. {READABLE}",
    )


def _location_within(root: pathlib.Path, directory: pathlib.Path, step: int | None) -> Location:
    """The location of the item or file that is meant by a checkpoint, or by an item itself."""
    if directory.is_file():
        return Location(root, directory, None, step, format_of_file(directory))
    if _is_item(directory):
        checkpoint = directory.parent
        is_part_of_checkpoint = (checkpoint / CHECKPOINT_FILE).exists()
        if is_part_of_checkpoint and not (directory / CHECKPOINT_FILE).exists():
            # Orbax opens the checkpoint, and is told the name of the item in it.
            return Location(checkpoint, checkpoint, directory.name, _step_number(checkpoint))
        return Location(root, directory, None, step)
    items = _items(directory)
    weights = _weights_in(directory)
    if not items and weights is not None:
        return Location(root, weights, None, step, format_of_file(weights))
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


def _step_number(path: pathlib.Path) -> int | None:
    """The step that a name ends with, as in ``100``, ``checkpoint_100`` and ``run_100.eqx``."""
    name = path.stem if is_weights(path) else path.name
    match = _STEP.match(name)
    return int(match.group(1)) if match else None


def _listed(steps: list[int]) -> str:
    """Steps for a message; of many, how many there are."""
    text = ", ".join(map(str, steps[:12]))
    if len(steps) > 12:
        text += f", ... ({len(steps)} in all)"
    return text
