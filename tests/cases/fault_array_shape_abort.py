"""A run directory whose array states an absurd shape must be refused; the process must not be aborted."""

import os
import pathlib
import subprocess
import sys
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"
CODE = """
import sys, ntkdiag
try: ntkdiag.open_run(sys.argv[1]).array(0, "kernel"); print("read")
except ntkdiag.errors.CheckpointError: print("refused")
"""
import numpy as np

from ntkdiag.runs.run_writer import RunWriter

root = pathlib.Path(tempfile.mkdtemp()) / "run"
with RunWriter.open(root, {"dims": {}}) as writer:
    writer.write(0, {"trace": 1.0}, {"kernel": np.eye(3, dtype=np.float32)})
file = root / "arrays/track/0/kernel.npy"
content = file.read_bytes()
shape = b"(1000000, 1000000)"  # 4 TB; the file has 36 bytes of numbers
text = content[10:-36].replace(b"(3, 3)", shape).rstrip()
file.write_bytes(content[:8] + (len(text) + 1).to_bytes(2, "little") + text + b"\n" + content[-36:])
assert shape in file.read_bytes()
done = subprocess.run(
    [sys.executable, "-c", CODE, str(root)], capture_output=True, text=True, timeout=120
)
good = done.returncode == 0 and done.stdout.strip() == "refused"
print("ok" if good else f"FAILS: exit status {done.returncode}, {done.stderr.strip()[-80:]!r}")
sys.exit(not good)
