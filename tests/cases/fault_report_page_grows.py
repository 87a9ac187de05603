"""The page of a run must stay usable however long the run is: it holds every number of every row. 10,000 rows made 20.7 MB, 1,000 rows 2.2 MB."""

import json
import os
import pathlib
import sys
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"
import ntkdiag

NAMES = (
    "trace",
    "loss",
    "gradient_norm",
    "spectral_position",
    "step_error",
    "margin",
    "drift",
    "distance_centred",
    "alignment",
    "participation_ratio",
)


def page(n):
    root = pathlib.Path(tempfile.mkdtemp()) / "run"
    root.mkdir()
    with (root / "watch.jsonl").open("w") as file:
        file.write(json.dumps({"record": {"call": "watch"}}) + "\n")
        for i in range(n):
            row = {
                f"{name}{end}": 1.0 + 0.1234567 * (i % 97)
                for name in NAMES
                for end in ("", "_lower", "_upper")
            }
            file.write(json.dumps({"step": 10 * i, "status": 1, **row}) + "\n")
    return ntkdiag.open_run(root).save(root.parent / "r.html").stat().st_size / 1e6


few, many = page(300), page(3000)
good = many < max(2 * few, 3.0)
print(
    "ok"
    if good
    else f"FAILS: {few:.1f} MB for 300 rows, {many:.1f} MB for 3,000: {1e3 * (many - few) / 2.7:.0f} bytes a row, so {(many - few) / 2.7 * 100:.0f} MB for 100,000"
)
sys.exit(not good)
