"""A full disk while checkpoints are stored: an error of ntkdiag in one line, not a ValueError of tensorstore; then the run goes on.
The disk is a limit on the size of a file, which the system answers in the same place."""

import os
import pathlib
import resource
import signal
import sys
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"
import numpy as np

import ntkdiag
from ntkdiag.runs.run_writer import RunWriter

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
sys.dont_write_bytecode = True  # of modules imported on the full disk half would be written
root = pathlib.Path(tempfile.mkdtemp()) / "run"
kernel = np.random.default_rng(0).normal(size=(200, 200))
with RunWriter.open(root, {"dims": {}}) as writer:
    writer.write(0, {"trace": 1.0}, {"kernel": kernel})
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    try:
        writer.write(1, {"trace": 1.0}, {"kernel": kernel})
        got = "written"
    except (ntkdiag.errors.NtkdiagError, OSError) as error:
        got = "clear" if isinstance(error, ntkdiag.errors.NtkdiagError) else "OSError"
    except Exception as error:
        got = f"{type(error).__name__}: {str(error)[:70]} ... ({len(str(error))} characters)"
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    writer.write(1, {"trace": 1.0}, {"kernel": kernel})
good = got in ("clear", "OSError") and ntkdiag.open_run(root).steps() == [0, 1]
print("ok" if good else f"FAILS: {got}")
sys.exit(not good)
