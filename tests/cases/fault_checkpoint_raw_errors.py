"""Damaged or hostile checkpoints that end in a raw error instead of a CheckpointError."""

import json
import os
import pathlib
import struct
import sys
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"
import equinox
import jax

import ntkdiag

root = pathlib.Path(tempfile.mkdtemp())


def safetensors(name):
    header = json.dumps({name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(4)


def npy(header):
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text)) + text


def put(name, content):
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(content)
    return root / name


index = "model.safetensors.index.json"
model = equinox.nn.Linear(3, 2, key=jax.random.key(0))
os.mkfifo(root / "fifo.safetensors")
cases = {
    "safetensors, name of 3,000 parts": (
        put("a.safetensors", safetensors("/".join("a" * 3000))),
        {},
    ),
    "msgpack, 500 dictionaries deep": (put("b.msgpack", b"\x81\xa1a" * 500 + b"\x00"), {}),
    "index with a number for a file": (put(f"c/{index}", b'{"weight_map": {"a": 5}}').parent, {}),
    "index nested without end": (put(f"d/{index}", b'{"weight_map":' + b"[" * 100_000).parent, {}),
    "_METADATA nested without end": (put("e/_METADATA", b"[" * 100_000).parent, {}),
    "npy header of 9,000 signs": (put("f.eqx", npy("-" * 9000 + "1")), {"model": model}),
    "a named pipe": (root / "fifo.safetensors", {}),
}
bad = []
for name, (path, options) in cases.items():
    try:
        ntkdiag.load_params(path, **options)
    except ntkdiag.errors.NtkdiagError:
        pass
    except Exception as error:
        bad.append(f"{name}: {type(error).__name__}")
print("ok" if not bad else f"FAILS: {len(bad)} of {len(cases)}: {'; '.join(bad)}")
sys.exit(bool(bad))
