"""Run directories whose record does not fit their arrays: to_xarray and the page must say so, without a raw error."""

import os
import pathlib
import sys
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"
import numpy as np

import ntkdiag
from ntkdiag.runs.json_lines import checked_line_of
from ntkdiag.runs.run_writer import RunWriter

records = {
    "dims is a list": {"dims": [1]},
    "dims of another length": {"dims": {"kernel": ["a"]}},
    "one name for two lengths": {"dims": {"kernel": ["a", "a"]}},
    "coordinates too short": {"dims": {"kernel": ["a", "b"]}, "coordinates": {"a": [1]}},
    "coordinates are text": {"dims": {"kernel": ["a", "b"]}, "coordinates": "abc"},
}
bad = []
for name, record in records.items():
    root = pathlib.Path(tempfile.mkdtemp()) / "run"
    with RunWriter.open(root, {"dims": {}}) as writer:
        writer.write(0, {"trace": 1.0}, {"kernel": np.ones((3, 4))})
    lines = (root / "track.jsonl").read_text().splitlines()
    lines[0] = checked_line_of({"record": record})
    (root / "track.jsonl").write_text("\n".join(lines) + "\n")
    try:
        ntkdiag.open_run(root).to_xarray()
    except ntkdiag.errors.NtkdiagError:
        pass
    except Exception as error:
        bad.append(f"{name}: {type(error).__name__}")
print("ok" if not bad else f"FAILS: {len(bad)} of {len(records)}: {'; '.join(bad)}")
sys.exit(bool(bad))
