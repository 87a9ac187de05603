"""float8 arrays, as checkpoints of today have: read (ml_dtypes has the dtype) or refused with a CheckpointError, no AttributeError of numpy."""

import json
import os
import pathlib
import struct
import sys
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"
import ntkdiag

bad = []
for dtype in ("F8_E4M3", "F8_E5M2"):
    header = json.dumps({"a": {"dtype": dtype, "shape": [2, 3], "data_offsets": [0, 6]}}).encode()
    file = pathlib.Path(tempfile.mkdtemp()) / "m.safetensors"
    file.write_bytes(struct.pack("<Q", len(header)) + header + bytes(6))
    try:
        ntkdiag.load_params(file)
    except ntkdiag.errors.NtkdiagError:
        pass
    except Exception as error:
        bad.append(f"{dtype}: {type(error).__name__}: {error}")
print("ok" if not bad else f"FAILS: {'; '.join(bad)}")
sys.exit(bool(bad))
