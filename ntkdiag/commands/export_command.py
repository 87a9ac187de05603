"""`ntkdiag export RUN`: the numbers of a stream for other programs."""

import csv
import io
import json
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ntkdiag.commands.printing import say
from ntkdiag.commands.shared_options import RunArgument, StreamOption, examples
from ntkdiag.commands.streams_of_run import opened_one, rows_of, tracked
from ntkdiag.commands.usage import usage_error
from ntkdiag.comparison.tracked import Track
from ntkdiag.display import PlainValue, spreadsheet_cell
from ntkdiag.runs.json_lines import finite_or_null
from ntkdiag.runs.run_reader import RunReader

if TYPE_CHECKING:
    import xarray

EXAMPLES = examples(
    "ntkdiag export run --format csv > run.csv",
    "ntkdiag export run --format netcdf --out run.nc",
    "ntkdiag export run/watch.jsonl --format json --out watch.json",
)


def export(
    run: RunArgument,
    form: Annotated[
        Literal["csv", "json", "netcdf"],
        typer.Option("--format", help="csv has the numbers of each step, netcdf arrays, too."),
    ] = "csv",
    stream: StreamOption = None,
    out: Annotated[
        pathlib.Path | None, typer.Option(help="File to write; default: standard output.")
    ] = None,
) -> None:
    """Write the numbers of a run as a table, as JSON or as netCDF.

    A run with several streams gives "track", unless --stream says otherwise.
    """
    opened, name = opened_one(run, stream, "export")
    if form == "netcdf":
        if out is None:
            raise usage_error(
                f"ntkdiag export {run} --format netcdf", "--out FILE.nc for binary data", "no --out"
            )
        _dataset(opened, name).to_netcdf(out)
    elif form == "json":
        _write(json.dumps(_content(opened, name), allow_nan=False) + "\n", out)
    else:
        _write(_as_csv(rows_of(opened, name)), out)
    if out is not None:
        say(f"written: {out}")


def _dataset(run: RunReader, name: str) -> "xarray.Dataset":
    """The numbers of a stream with their axes; those of `track` with all pairs of checkpoints."""
    if tracked(run, name) is None:
        return run.to_xarray(name)
    return Track.of_run(run).to_xarray()


def _content(run: RunReader, name: str) -> PlainValue:
    """The numbers of a stream; those of `track` as ``ntkdiag track --json`` prints them."""
    track = tracked(run, name)
    if track is not None:
        return track.to_dict()
    return finite_or_null({"record": run.record(name), "rows": run.rows(name)})


def _as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line a step: lists entry by entry, an empty cell for what is not known."""
    lines = [_cells(row) for row in rows]
    names: dict[str, None] = {}  # in the order first seen
    for line in lines:
        names.update(dict.fromkeys(line))
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(map(spreadsheet_cell, names))
    for line in lines:
        writer.writerow(spreadsheet_cell(line.get(name, "")) for name in names)
    return file.getvalue()


def _cells(row: Mapping[str, Any]) -> dict[str, Any]:
    """The cells of a row by column; dictionaries, such as the convention, have none."""
    cells = {}
    for name, value in finite_or_null(row).items():
        if isinstance(value, dict):
            continue
        if isinstance(value, list):
            cells |= {f"{name}.{place}": entry for place, entry in enumerate(value)}
        else:
            cells[name] = value
    return cells


def _write(text: str, out: pathlib.Path | None) -> None:
    if out is None:
        sys.stdout.write(text)
    else:
        # Names of bytes that are no letters are in it as they are.
        out.write_text(text, encoding="utf-8", errors="replace")
