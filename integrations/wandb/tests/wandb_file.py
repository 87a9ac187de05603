"""Reads the file of an offline run: records of protocol buffers in a log of LevelDB.

The file begins with seven bytes of its own. Then come blocks of 32 KiB, filled with chunks: a
checksum (4 bytes), a length (2), a kind (1) and the data. A record is one chunk (kind 1) or several
(first 2, middle 3, last 4). A rest of a block that is too short for a chunk is left empty.
"""

import dataclasses
import json
import pathlib
import struct
from collections.abc import Iterator

import wandb
from wandb.proto import wandb_internal_pb2

FILE_HEADER = 7
BLOCK = 32 * 1024
CHUNK_HEADER = struct.Struct("<IHB")
WHOLE, LAST = 1, 4


def records(path: pathlib.Path) -> Iterator[wandb_internal_pb2.Record]:
    """The records of a .wandb file, in the order written."""
    content = path.read_bytes()
    position = FILE_HEADER
    serialized = b""
    while position + CHUNK_HEADER.size <= len(content):
        left_in_block = BLOCK - position % BLOCK
        if left_in_block < CHUNK_HEADER.size:
            position += left_in_block
            continue
        _, length, kind = CHUNK_HEADER.unpack_from(content, position)
        position += CHUNK_HEADER.size
        serialized += content[position : position + length]
        position += length
        if kind in (WHOLE, LAST):
            yield wandb_internal_pb2.Record.FromString(serialized)
            serialized = b""


@dataclasses.dataclass
class StoredRun:
    """What one .wandb file holds."""

    run_id: str
    project: str
    config: dict
    rows: list[dict]  # without W&B's own entries, but its "_step"
    x_axes: dict[str, str]  # name or pattern of a metric -> the metric on its x-axis
    alerts: list[tuple[str, str, str]]  # title, text, level


def stored_runs(folder: pathlib.Path) -> list[StoredRun]:
    """The offline runs below a folder, in the order begun; ends the service that writes them."""
    wandb.teardown()  # until then it may not have written all
    return [stored_run(path) for path in sorted(folder.glob("wandb/offline-run-*/*.wandb"))]


def stored_run(path: pathlib.Path) -> StoredRun:
    """The run of one file."""
    run = StoredRun("", "", {}, [], {}, [])
    for record in records(path):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run.run_id, run.project = record.run.run_id, record.run.project
            run.config |= items(record.run.config.update)
        elif kind == "config":
            run.config |= items(record.config.update)
        elif kind == "history":
            row = items(record.history.item)
            run.rows.append({key: row[key] for key in row if key not in ("_timestamp", "_runtime")})
        elif kind == "metric" and record.metric.step_metric:
            metric = record.metric
            run.x_axes[metric.glob_name or metric.name] = metric.step_metric
        elif kind == "alert":
            run.alerts.append((record.alert.title, record.alert.text, record.alert.level))
    return run


def items(entries) -> dict:
    """Names and values of the entries of a record."""
    return {
        entry.key or "/".join(entry.nested_key): json.loads(entry.value_json) for entry in entries
    }
