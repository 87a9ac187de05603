"""`ntkdiag export RUN`: the numbers of a stream for other programs."""

import csv
import io
import json
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import typer

from ntkdiag.commands.printing import say
from ntkdiag.commands.shared_options import RunArgument, StreamOption, examples
from ntkdiag.commands.streams_of_run import opened_one, rows_with_motion
from ntkdiag.commands.usage import usage_error
from ntkdiag.runs.json_lines import finite_or_null

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
        opened.to_xarray(name).to_netcdf(out)
    elif form == "json":
        rows = [dict(row) for row in rows_with_motion(opened, name)]
        content = finite_or_null({"record": opened.record(name), "rows": rows})
        _write(json.dumps(content, allow_nan=False) + "\n", out)
    else:
        _write(_as_csv(rows_with_motion(opened, name)), out)
    if out is not None:
        say(f"written: {out}")


def _as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line a step: lists entry by entry, an empty cell for what is not known."""
    lines = [_cells(row) for row in rows]
    names: dict[str, None] = {}  # in the order first seen
    for line in lines:
        names.update(dict.fromkeys(line))
    file = io.StringIO()
    writer = csv.DictWriter(file, list(names), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
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
        out.write_text(text, encoding="utf-8")
