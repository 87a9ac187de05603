"""`ntkdiag export`: the numbers of a run as CSV, JSON and netCDF."""

import csv
import io
import json
import math
import pathlib

import numpy as np
import pytest
from internals import RunWriter

import ntkdiag
from ntkdiag.comparison import Track

pytest_plugins = ["shell"]
RECORD = {"source": "watch", "call": "watch"}
ROWS = [
    {"step": 0, "trace": 3.0, "eigenvalues": [2.0, 1.0], "note": 'a "word", or two'},
    {"step": 5, "trace": math.nan, "eigenvalues": [2.5, 0.5], "options": {"a": 1}},
]


@pytest.fixture
def log(tmp_path, monkeypatch):
    """A log of `JsonLines` in the working directory."""
    monkeypatch.chdir(tmp_path)
    writer = ntkdiag.JsonLines("logs/watch.jsonl")
    writer.start(RECORD)
    for row in ROWS:
        writer.write(row["step"], {name: value for name, value in row.items() if name != "step"})
    return tmp_path / "logs"


def table(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_csv(shell, log):
    status, out, err = shell("export", "logs")
    assert (status, err) == (0, "")
    first, second = table(out)
    assert first == {
        "step": "0",
        "trace": "3.0",
        "eigenvalues.0": "2.0",
        "eigenvalues.1": "1.0",
        "note": 'a "word", or two',
    }
    # What is not known is an empty cell, not a number.
    assert (second["trace"], second["note"], second["eigenvalues.1"]) == ("", "", "0.5")


FORMULA = '=HYPERLINK("http://example.org","more")'


def test_cells_that_a_spreadsheet_would_compute_are_text(shell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = {
        FORMULA: f"'{FORMULA}",
        "+1+cmd|' /C calc'!A0": "'+1+cmd|' /C calc'!A0",
        "-2+3": "'-2+3",
        "@SUM(A1)": "'@SUM(A1)",
        "\t=1": "'\t=1",
        "＝1": "'＝1",
        "-0.5": "-0.5",
        "+1e-3": "+1e-3",
        "a = b": "a = b",
        "": "",
    }
    writer = ntkdiag.JsonLines("logs/watch.jsonl")
    writer.start(RECORD)
    rows = [{"below": -1.5, "list": [-2, "=1"], FORMULA: text} for text in texts]
    for step, row in enumerate(rows):
        writer.write(step, row)
    status, out, _ = shell("export", "logs", "--out", "rows.csv")
    assert (status, out) == (0, "")
    lines = table(pathlib.Path("rows.csv").read_text())
    assert [line[f"'{FORMULA}"] for line in lines] == list(texts.values())
    # Numbers below zero stay numbers.
    assert {(line["below"], line["list.0"], line["list.1"]) for line in lines} == {
        ("-1.5", "-2", "'=1")
    }


def test_a_file_of_the_log_alone(shell, log):
    _, of_folder, _ = shell("export", "logs")
    status, out, err = shell("export", "logs/watch.jsonl", "--out", "rows.csv")
    assert (status, out, err) == (0, "", "written: rows.csv\n")
    assert (log.parent / "rows.csv").read_text() == of_folder


def test_json(shell, log):
    status, out, err = shell("export", "logs", "--format", "json")
    assert (status, err) == (0, "")
    content = json.loads(out, parse_constant=pytest.fail)
    assert content["record"] == RECORD
    assert content["rows"][1] == {**ROWS[1], "trace": None}


def test_netcdf(shell, log):
    xarray = pytest.importorskip("xarray")
    status, out, err = shell("export", "logs", "--format", "netcdf", "--out", "x.nc")
    assert (status, out, err) == (0, "", "written: x.nc\n")
    with xarray.open_dataset("x.nc") as dataset:
        np.testing.assert_array_equal(dataset["step"], [0, 5])
        np.testing.assert_array_equal(dataset["trace"], [3.0, np.nan])
        assert dataset.attrs["call"] == "watch"


def test_what_track_stored(shell, checkpoints):
    xarray = pytest.importorskip("xarray")
    words = ("track", "run", "--case", "net_for_shell.py:case", "--out", "tracked")
    _, printed, _ = shell(*words, "--json")
    tracked = Track.of_run(ntkdiag.open_run("tracked"))
    _, out, _ = shell("export", "tracked", "--format", "json")
    assert json.loads(out) == json.loads(printed)
    _, out, _ = shell("export", "tracked")
    assert float(table(out)[1]["drift"]) == tracked.series("drift")[1]
    shell("export", "tracked", "--format", "netcdf", "--stream", "track", "--out", "x.nc")
    with xarray.open_dataset("x.nc") as dataset:
        np.testing.assert_array_equal(dataset["e1"], tracked.matrix("e1"))
        np.testing.assert_array_equal(dataset["eigenvalues"], tracked.eigenvalues)


def test_streams(shell, log):
    for name in ("first", "second"):
        with RunWriter.open("two", {"of": name}, name=name) as writer:
            writer.write(0, {"trace": 1.0}, {})
    assert shell("export", "two")[0::2] == (
        2,
        "ntkdiag: ntkdiag export two: expected --stream with one of first, second; got several streams. "
        "See: ntkdiag export --help\n",
    )
    assert shell("export", "two", "--stream", "third")[0::2] == (
        2,
        "ntkdiag: ntkdiag export two --stream third: expected a stream of the run: first, second; got third. "
        "See: ntkdiag export --help\n",
    )
    _, out, _ = shell("export", "two", "--stream", "second", "--format", "json")
    assert json.loads(out)["record"] == {"of": "second"}


def test_words_that_cannot_be_used(shell, log):
    assert shell("export", "logs", "--format", "netcdf") == (
        2,
        "",
        "ntkdiag: ntkdiag export logs --format netcdf: expected --out FILE.nc for binary data; got no --out. "
        "See: ntkdiag export --help\n",
    )
    assert shell("export", "logs", "--format", "xlsx")[0] == 2
    status, out, err = shell("export", "nowhere")
    assert (status, out) == (1, "")
    assert "expected a run directory at 'nowhere'; got no such path" in err
