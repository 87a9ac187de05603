"""The streams that a command reads: of a run directory, or one file of JSON lines."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import ntkdiag
from ntkdiag.commands.usage import usage_error
from ntkdiag.comparison.stored_checkpoint import read_track
from ntkdiag.comparison.tracked import Track
from ntkdiag.runs.run_reader import RunReader

PREFERRED = "track"  # of several streams


def opened(path: pathlib.Path, stream: str | None, command: str) -> tuple[RunReader, list[str]]:
    """The run at a path and its streams: all of them, or the one that is asked for."""
    if path.suffix == ".jsonl" and path.is_file():
        run, names = ntkdiag.open_run(path.parent), [path.stem]
    else:
        run = ntkdiag.open_run(path)
        names = run.names
    if stream is None:
        return run, names
    if stream not in names:
        raise usage_error(
            f"ntkdiag {command} {path} --stream {stream}",
            f"a stream of the run: {', '.join(names)}",
            stream,
        )
    return run, [stream]


def opened_one(path: pathlib.Path, stream: str | None, command: str) -> tuple[RunReader, str]:
    """The run at a path and one stream of it: the one asked for, the only one, or "track"."""
    run, names = opened(path, stream, command)
    if len(names) == 1:
        return run, names[0]
    if PREFERRED in names:
        return run, PREFERRED
    raise usage_error(
        f"ntkdiag {command} {path}", f"--stream with one of {', '.join(names)}", "several streams"
    )


def tracked(run: RunReader, name: str) -> Track | None:
    """The checkpoints of a stream of `track`, without their arrays; None for other streams."""
    if run.record(name).get("source") != "track":
        return None
    # Drift and matrices follow from the numbers of pairs, which stand in the rows.
    contents = read_track(run.root, name)
    rows = [step.row for step in contents.committed.values()]
    no_array = np.zeros((len(rows), 0))
    return Track.of(contents.records[-1], rows, no_array, no_array)


def rows_of(run: RunReader, name: str) -> Sequence[Mapping[str, Any]]:
    """The rows of a stream; those of `track` with the drift from the first checkpoint."""
    track = tracked(run, name)
    return run.rows(name) if track is None else track.rows
