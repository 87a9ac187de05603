"""Where under a checkpoint path the arrays are, found from the names of files and directories.

Orbax writes arrays into an *item*, a directory with a `_METADATA` file, and of old one with a file
`checkpoint`. A checkpoint is an item, or a directory of items, some of them with names such as
`params` or `model`; the state of the optimizer has one of its own. Others write one file, or a
directory with one file of weights in it, which may be the index of several shards.

A root is a directory of checkpoints whose names end with their step. A path may lead to any of
these; a directory that Orbax has not finished has a mark in its name and does not count.
"""

import dataclasses
import os
import pathlib
import time
from collections.abc import Iterator

from ntkdiag import display, errors
from ntkdiag.checkpoints.formats import (
    INDEX,
    READABLE,
    Format,
    checkpoint_error,
    format_of_file,
    is_readable,
    is_tree_of_msgpack,
    is_weights,
)
from ntkdiag.checkpoints.names import NOT_COLLECTIONS, PARAMETERS, StepName, read_step_name
from ntkdiag.path_argument import as_path

ITEM_FILE = "_METADATA"
CHECKPOINT_FILE = "_CHECKPOINT_METADATA"
AGGREGATE_FILE = "checkpoint"  # all small arrays of an item in one file, until 2024
UNFINISHED = ".orbax-checkpoint-tmp"  # in the name of a directory until a save completes
# Of several items the first of these is meant: names that scripts, or Orbax, give to parameters.
PREFERRED_ITEMS = (*PARAMETERS, "state", "default")
# The files of weights in a directory of Hugging Face; the first that is there is meant.
PREFERRED_FILES = (f"model{INDEX}", "model.safetensors", "flax_model.msgpack")
POLL_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class Location:
    """One checkpoint on disk: an Orbax item, or a file."""

    # The path that was asked for, or the checkpoint around it where that is an item; of an Orbax
    # checkpoint nothing outside it is opened.
    root: pathlib.Path
    path: pathlib.Path  # the directory Orbax is asked to open, or the file
    # Name of the Orbax item inside `path`; None when the arrays lie in `path` itself.
    item: str | None
    step: int | None  # step number when it was found through a root or has one in its name
    format: Format = "orbax"  # what wrote it

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

    def error(self, *got_and_do: str) -> errors.CheckpointError:
        """The error of this checkpoint; the message names what was asked for."""
        return checkpoint_error(self.root, *got_and_do)

    @property
    def items_beside(self) -> list["Location"]:
        """The other items of the same checkpoint."""
        if self.item is None:
            return []
        names = [name for name in _items(self.path) if name != self.item]
        return [dataclasses.replace(self, item=name) for name in names]

    def beside(self, prefix: str) -> "Location | None":
        """What is called so and has the same step in its name, or none; None where nothing is."""
        checkpoint = self.path
        name = _step_name(checkpoint)
        if self.item is not None:
            return None
        if name is not None and name.prefix:  # model-100
            suffix = checkpoint.name.removeprefix(name.beside(name.prefix))
            neighbour = checkpoint.with_name(name.beside(prefix) + suffix)
        elif checkpoint.is_file() and checkpoint.stem in PARAMETERS:  # 100/model.msgpack
            neighbour = checkpoint.with_name(prefix + checkpoint.suffix)
        else:
            return None
        if not _is_checkpoint(neighbour):
            return None
        return _location_within(neighbour, neighbour, self.step)


def locate(
    path: str | os.PathLike[str], step: int | None = None, at: str | None = None
) -> Location:
    """Find the one checkpoint that `path` (and `step`) means; of files the first bytes are read."""
    # Links are not resolved: messages use the user's name for the directory.
    root = pathlib.Path(os.path.abspath(os.path.expanduser(os.fspath(path))))
    try:
        return _locate(root, step, at)
    except OSError as error:
        raise checkpoint_error(
            root, f"a path that cannot be opened ({error.strerror})", "Check its permissions."
        ) from error


def _locate(root: pathlib.Path, step: int | None, at: str | None) -> Location:
    """The checkpoint in a root, or what else the path leads to."""
    _require_finished(root)
    # 1. The path is a checkpoint, or an item of one: there is nothing to choose.
    if _is_one_checkpoint(root):
        if step is not None:
            raise checkpoint_error(
                root,
                f"a single checkpoint, and step={step}",
                "Leave step out, or pass the root of all steps.",
            )
        return _location_within(root, root, _step_number(root), at)

    # 2. It holds one checkpoint for every step, or weights of its own, or both.
    steps = finished_steps(root)
    weights = _weights_in(root)
    has_weights = weights is not None and (not steps or weights.name in PREFERRED_FILES)
    if has_weights and step is None:
        return _location_within(root, root, _step_number(root), at)
    if not steps:
        raise _nothing_found_error(root)
    if step is None:
        step = max(steps)
    if step not in steps:
        do = f"Finished steps there: {display.some_of(sorted(steps), 12)}."
        raise checkpoint_error(root, f"no step {step}", do)
    return _location_within(root, steps[step], step, at)


def _is_one_checkpoint(path: pathlib.Path) -> bool:
    """Whether a path is no root; beside the steps of one a directory may look like an item."""
    if path.is_file() or _is_item(path):
        return True
    is_marked = (path / CHECKPOINT_FILE).exists()
    return bool(_items(path)) and (is_marked or not finished_steps(path))


def finished_steps(root: pathlib.Path) -> dict[int, pathlib.Path]:
    """Finished steps of a root, by number; unfinished directories are left out."""
    steps: dict[int, pathlib.Path] = {}
    prefixes: set[str] = set()
    if not root.is_dir():
        return steps
    for child in sorted(root.iterdir()):
        name = _step_name(child)
        if name is None or name.prefix in NOT_COLLECTIONS or not _is_checkpoint(child):
            continue
        if name.step in steps:
            raise checkpoint_error(
                root,
                f"two checkpoints of step {name.step}: {steps[name.step].name} and {child.name}",
                "Pass the one that is meant.",
            )
        steps[name.step] = child
        prefixes.add(name.prefix)
    if len(prefixes) > 1:
        names = [f"{prefix}..." if prefix else "numbers" for prefix in sorted(prefixes)]
        raise checkpoint_error(
            root,
            f"steps of several checkpoints: {', '.join(names)}",
            "Pass the path of one step; for a run, a dictionary from steps to paths.",
        )
    return steps


@errors.public
def new_steps(root: str | os.PathLike[str], patience: float = 600) -> Iterator[tuple[int, str]]:
    """Yield each checkpoint of a root as soon as it is finished, for `track`.

        for step, path in ntkdiag.checkpoints.new_steps("run/checkpoints"):
            params = ntkdiag.load_params(path)

    A save under way has another name and does not count. Those that are there already come first,
    in the order of their steps.

    Args:
        root: A root of numbered checkpoints, which may not be there yet.
        patience: Seconds without a new checkpoint after which it ends.

    Yields:
        The step, and the path of its checkpoint.
    """
    folder = as_path(root)
    seen: set[int] = set()
    end = time.monotonic() + patience
    while True:
        steps = finished_steps(folder)
        new = [step for step in steps if step not in seen]
        if new:
            # One at a time: training may remove old ones while this one is measured.
            step = min(new)
            seen.add(step)
            yield step, os.fspath(steps[step])
            end = time.monotonic() + patience
        elif time.monotonic() >= end:
            return
        else:
            time.sleep(min(POLL_SECONDS, patience))


def _is_checkpoint(path: pathlib.Path) -> bool:
    """Whether a file or directory is a checkpoint by itself."""
    if UNFINISHED in path.name:
        return False
    if path.is_file():
        return is_weights(path) or is_readable(path)
    return path.is_dir() and (_is_item(path) or bool(_items(path)) or _weights_in(path) is not None)


def _weights_in(directory: pathlib.Path) -> pathlib.Path | None:
    """The file of weights in a directory; None where there is none, or several of one rank."""
    for name in PREFERRED_FILES:
        if (directory / name).is_file():
            return directory / name
    files = [child for child in directory.glob(f"*{INDEX}") if child.is_file()]
    if not files:
        files = [child for child in directory.iterdir() if is_weights(child)]
    # Next to "model.npz" there may be the state of its optimizer, and other files.
    if len(files) > 1:
        files = [file for file in files if file.stem in PARAMETERS]
    return files[0] if len(files) == 1 else None


def _require_finished(root: pathlib.Path) -> None:
    """Refuse what is not there, is no file, or a directory in which no save was completed."""
    if not root.exists():
        raise checkpoint_error(
            root, "no such path", "Check the spelling and the working directory."
        )
    if not root.is_file() and not root.is_dir():
        raise checkpoint_error(
            root, "neither a file nor a directory", "A pipe or a device is not opened: copy it."
        )
    if root.is_dir() and UNFINISHED in root.name:
        raise checkpoint_error(
            root,
            "a save that never finished",
            "Use an earlier step; Orbax renames the directory when a save completes.",
        )


def _nothing_found_error(root: pathlib.Path) -> errors.CheckpointError:
    """The error for a directory in which neither an item nor a finished step is found."""
    names = sorted(display.printable(child.name) for child in root.iterdir())
    return checkpoint_error(
        root,
        f"no finished checkpoint in it (it holds: {display.some_of(names, 12) or 'nothing'})",
        "Pass the directory given to Orbax when saving, a step directory, the root of all steps, "
        f"or the file of weights that is meant. {READABLE}",
    )


def _location_within(
    root: pathlib.Path, directory: pathlib.Path, step: int | None, at: str | None = None
) -> Location:
    """The location of the item or file that is meant by a checkpoint, or by an item itself."""
    if directory.is_file():
        return Location(root, directory, None, step, format_of_file(directory))
    if _is_item(directory):
        checkpoint = directory.parent
        is_part_of_checkpoint = (checkpoint / CHECKPOINT_FILE).exists()
        if is_part_of_checkpoint and not (directory / CHECKPOINT_FILE).exists():
            # Orbax opens the checkpoint, with the name of the item in it.
            return Location(checkpoint, checkpoint, directory.name, _step_number(checkpoint))
        return Location(root, directory, None, step)
    items = _items(directory)
    weights = _weights_in(directory)
    if not items and weights is not None:
        return Location(root, weights, None, step, format_of_file(weights))
    return Location(root, directory, _chosen_item(directory, items, at), step)


def _chosen_item(directory: pathlib.Path, items: list[str], at: str | None) -> str:
    """The item that holds the parameters, by its name or by what the others are called."""
    first_key = "" if at is None else at.split("/")[0]
    if first_key in items:
        return first_key
    for name in PREFERRED_ITEMS:
        if name in items:
            return name
    candidates = [name for name in items if name not in NOT_COLLECTIONS] or items
    if len(candidates) > 1:
        raise checkpoint_error(
            directory,
            f"several items: {', '.join(candidates)}",
            "Pass the directory of the item that holds the parameters, or its name: "
            f'load_params(path, at="{candidates[0]}").',
        )
    return candidates[0]


def _is_item(directory: pathlib.Path) -> bool:
    """Whether the arrays of an Orbax item lie in a directory."""
    if (directory / ITEM_FILE).is_file():
        return True
    # Other libraries use this name too: in TensorFlow's file there is a line of text.
    aggregate = directory / AGGREGATE_FILE
    return aggregate.is_file() and is_tree_of_msgpack(aggregate)


def _items(directory: pathlib.Path) -> list[str]:
    """Names of the finished items in a checkpoint directory."""
    is_checkpoint = (directory / CHECKPOINT_FILE).exists()
    names = []
    for child in directory.iterdir():
        if UNFINISHED in child.name or not _is_item(child):
            continue
        # Numbered directories are items of a checkpoint, but elsewhere they are steps of a root.
        if is_checkpoint or read_step_name(child.name) is None:
            names.append(child.name)
    return sorted(names)


def _step_name(path: pathlib.Path) -> StepName | None:
    """The step that a name ends with, as in ``100``, ``checkpoint_100`` and ``run_100.eqx``."""
    # "checkpoint_0.5" has no suffix, and no step.
    has_suffix = path.is_file() and not path.suffix[1:].isdigit()
    return read_step_name(path.stem if has_suffix else path.name)


def _step_number(path: pathlib.Path) -> int | None:
    name = _step_name(path)
    return None if name is None else name.step
