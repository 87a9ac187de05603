"""A run directory that is renamed while a writer has it open: what is written next must be readable, or refused; it is a stream without a record."""

import os
import pathlib
import sys
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"
import numpy as np

import ntkdiag
from ntkdiag.runs.run_writer import RunWriter

root = pathlib.Path(tempfile.mkdtemp()) / "run"
record = {"reduction": "trace", "dims": {}}
writer = RunWriter.open(root, record)
writer.write(0, {"trace": 1.0}, {"kernel": np.eye(3)})
root.rename(root.with_name("moved"))
got = "refused"
try:
    writer.write(1, {"trace": 2.0}, {"kernel": np.eye(3)})
    run = ntkdiag.open_run(root)
    got = f"steps {run.steps()} with the record {run.record()}"
    writer.close()
    RunWriter.open(root, record).close()
    good = run.record() == record
except ntkdiag.errors.NtkdiagError as error:
    good = got == "refused"
    got += f"; opened again: {' '.join(str(error).split())[:90]}"
print("ok" if good else f"FAILS: {got}")
sys.exit(not good)
