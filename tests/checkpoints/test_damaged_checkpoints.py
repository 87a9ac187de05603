"""Damaged and hostile checkpoints: one of our errors, no abort, no hang, nothing run, no other numbers in silence."""

import collections
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys

import equinox as eqx
import flax.serialization
import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
import tensorstore
from checkpoint_files import refused
from flax import traverse_util
from internals import describe, leaves_by_path

import ntkdiag
from ntkdiag import load_params
from ntkdiag.errors import CheckpointError

INDEX = "model.safetensors.index.json"
PARAMS = {"w": np.arange(600, dtype=np.float32).reshape(20, 30), "b": np.ones(3, np.float32)}

# On damaged data Orbax abandons asyncio tasks, which Python reports when it collects them.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def safetensors_with(name):
    header = json.dumps({name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(4)


def npy_with(header):
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text)) + text


# Nested without end.

DEEP = "arrays nested more than 100 levels deep"


def test_names_of_thousands_of_parts(tmp_path):
    pytest.importorskip("safetensors")
    for separator in "/.":
        file = put(tmp_path / "a.safetensors", safetensors_with(separator.join("a" * 3000)))
        refused(file, DEEP)
    np.savez(tmp_path / "a.npz", **{"/".join("a" * 101): np.ones(1)})
    refused(tmp_path / "a.npz", DEEP)


def test_msgpack_nested_without_end(tmp_path):
    for levels in (101, 900, 2000):
        for open_level in (b"\x81\xa1a", b"\x91"):  # dictionaries, and lists
            content = b"\x81\xa1a" + open_level * levels + b"\x00"
            for path in (tmp_path / "a.msgpack", tmp_path / "b" / "checkpoint"):
                put(path, content)
                with pytest.raises(CheckpointError):
                    load_params(path if path.suffix else path.parent)


@pytest.mark.parametrize(
    ("name", "said"),
    [("_METADATA", "unreadable metadata ("), (INDEX, " that cannot be read (")],
)
def test_json_of_any_kind(tmp_path, name, said):
    for text in ("[" * 100_000, '{"a":' * 100_000, "1" * 5000, '"\\ud800"', "", "\x00"):
        for key in ("weight_map", "tree_metadata"):
            for content in (text, f'{{"{key}": {text}', f'{{"{key}": {text}}}'):
                refused(put(tmp_path / name, content.encode()).parent, said)


HEADERS = (
    "(" * 9000,
    "{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999999999999999,), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
    "__import__('os').system('touch ran')",
)


def test_headers_of_numpy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = eqx.nn.Linear(3, 2, key=jax.random.key(0))
    for header in HEADERS:
        file = put(tmp_path / "a.eqx", npy_with(header))
        refused(file, "array 1 of the file damaged (", model=model)
    assert not (tmp_path / "ran").exists()


# What is no file.


def test_pipes_are_not_opened(tmp_path):
    os.mkfifo(tmp_path / "fifo.safetensors")
    for path in (tmp_path / "fifo.safetensors", "/dev/zero"):
        refused(path, "neither a file nor a directory", "A pipe or a device")
    refused(tmp_path, "no finished checkpoint in it")
    for name in (INDEX, "_METADATA", "checkpoint", "checkpoint_7"):
        folder = tmp_path / f"with {name}"
        folder.mkdir()
        os.mkfifo(folder / name)
        refused(folder, "no finished checkpoint in it")
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "orbax", {"params": PARAMS})
    os.mkfifo(tmp_path / "orbax" / "pipe")
    refused(tmp_path / "orbax", "neither a file nor a directory: pipe")


# Arrays of Orbax that ask for more than there is.


def save_zarr(path, *, use_zarr3=False):
    handler = ocp.PyTreeCheckpointHandler(use_zarr3=use_zarr3, use_ocdbt=False)
    with ocp.Checkpointer(handler) as checkpointer:
        checkpointer.save(path, {"params": PARAMS})
    return path / "params.w" / ("zarr.json" if use_zarr3 else ".zarray")


def edited(file, change):
    metadata = json.loads(file.read_text())
    change(metadata)
    file.write_text(json.dumps(metadata))


ZARR_EDITS = {
    "chunks without end": lambda m: m.update(chunks=[10**6, 10**6]),
    "chunks of nothing": lambda m: m.update(chunks=[0, 30]),
    "blosc": lambda m: m.update(
        compressor={"id": "blosc", "cname": "lz4", "clevel": 1, "shuffle": 1}
    ),
}


def check_edits(root, file, edits):
    """Each edit of the metadata of an array is refused, in a copy of the checkpoint."""
    name = file.relative_to(root)
    for what, edit in edits.items():
        copy = shutil.copytree(root, root.with_name(what))
        edited(copy / name, edit)
        refused(copy, f"metadata of an array that Orbax does not write: {name}: ")


def test_zarr_metadata_that_orbax_does_not_write(tmp_path):
    check_edits(tmp_path / "a", save_zarr(tmp_path / "a"), ZARR_EDITS)


ZARR3_EDITS = {
    "chunks without end": lambda m: m["chunk_grid"]["configuration"].update(
        chunk_shape=[10**6, 10**6]
    ),
    "shards in shards without end": lambda m: m["codecs"][0]["configuration"].update(
        codecs=[m["codecs"][0] | {"configuration": {"chunk_shape": [10**6, 1]}}]
    ),
}


def test_zarr_3_metadata_that_orbax_does_not_write(tmp_path):
    check_edits(tmp_path / "a", save_zarr(tmp_path / "a", use_zarr3=True), ZARR3_EDITS)


def test_metadata_inside_the_database_is_looked_at_too(tmp_path):
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "a", {"params": PARAMS})
    spec = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{tmp_path}/a/"}}
    store = tensorstore.KvStore.open(spec).result()
    metadata = json.loads(store["params.w/.zarray"])
    store["params.w/.zarray"] = json.dumps({**metadata, "chunks": [10**6, 10**6]}).encode()
    refused(tmp_path / "a", "params.w/.zarray: shape [20, 30], in chunks of [1000000, 1000000]")


def test_arrays_in_many_chunks_are_read(tmp_path):
    """As a job on many devices writes them."""
    file = save_zarr(tmp_path / "a")
    spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{file.parent}/"}}
    metadata = json.loads(file.read_text())
    spec |= {"metadata": {**metadata, "chunks": [7, 4]}, "create": True, "delete_existing": True}
    tensorstore.open(spec).result().write(PARAMS["w"]).result()
    np.testing.assert_array_equal(load_params(tmp_path / "a")["w"], PARAMS["w"])


# Files that grew: zeros, which take no room on the disk, of which all would be read.

GROWN = 10**13


def grown(file):
    os.truncate(file, GROWN)
    return file


@pytest.mark.parametrize("layout", ["zarr3", "manager"])
def test_no_file_of_an_orbax_checkpoint_is_read_however_long_it_is(tmp_path, layout):
    whole = tmp_path / "whole" / layout
    if layout == "manager":
        with ocp.CheckpointManager(whole) as manager:
            manager.save(0, args=ocp.args.StandardSave({"params": PARAMS}))
    else:
        save_zarr(whole, use_zarr3=True)
    n_refused = 0
    for file in sorted(path for path in whole.rglob("*") if path.is_file()):
        copy = tmp_path / "copy"
        shutil.copytree(whole, copy)
        grown(copy / file.relative_to(whole))
        # Of a database parts are read, and what is behind them is not; others are only there.
        is_beside = layout == "manager" and "default" not in file.parts
        if file.parent.name == "d" or is_beside:
            assert_params(load_params(copy))
        else:
            refused(copy, f"{GROWN:,} bytes in ")
            n_refused += 1
        shutil.rmtree(copy)
    assert n_refused > 3


def assert_params(params):
    np.testing.assert_array_equal(params["w"], PARAMS["w"])
    np.testing.assert_array_equal(params["b"], PARAMS["b"])


def test_keys_of_a_database_lead_to_no_files(tmp_path):
    file = grown(put(tmp_path / "elsewhere" / "0.0", b""))
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "a", {"params": PARAMS})
    spec = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{tmp_path}/a/"}}
    store = tensorstore.KvStore.open(spec).result()
    for key in (f"{file.parent}/.zarray", "../elsewhere/.zarray"):
        store[key] = store["params.w/.zarray"]
    assert_params(load_params(tmp_path / "a"))


def test_no_other_file_is_read_however_long_it_is(tmp_path):
    refused(grown(put(tmp_path / "a" / INDEX, b"{")).parent, f"{GROWN:,} bytes of text")
    free = "where "
    model = eqx.nn.Linear(3, 2, key=jax.random.key(0))
    for content in (b"{", npy_with("{'descr': '|u1', 'fortran_order': False, 'shape': (9,), }")):
        refused(grown(put(tmp_path / "a.eqx", content)), free, model=model)
    for name in ("a.msgpack", "b/checkpoint"):
        file = grown(put(tmp_path / name, b"\x81\xa1a"))
        refused(file if name == "a.msgpack" else file.parent, free)
    refused(grown(put(tmp_path / "a.safetensors", safetensors_with("w"))), free)
    refused(grown(put(tmp_path / "a.npz", b"PK\x03\x04")), "an archive that cannot be read (")


# A hundred mutated checkpoints.

MODEL_KEY = 3


def skeleton():
    model = eqx.nn.MLP(3, 2, 16, 2, key=jax.random.key(MODEL_KEY))
    return model, optax.adam(1e-3).init(eqx.filter(model, eqx.is_array))


def write_all(root):
    """One checkpoint of every format."""
    tree = {"params": PARAMS, "opt_state": optax.adam(1e-3).init(PARAMS), "step": np.int32(3)}
    with ocp.CheckpointManager(root / "manager") as manager:
        manager.save(0, args=ocp.args.StandardSave(tree))
    save_zarr(root / "zarr")
    save_zarr(root / "zarr3", use_zarr3=True)
    aggregate = root / "aggregate" / "0" / "default"
    put(aggregate / "checkpoint", flax.serialization.to_bytes(tree))
    put(root / "flax" / "checkpoint_0", flax.serialization.to_bytes(tree))
    flat = traverse_util.flatten_dict({"params": PARAMS}, sep="/")
    (root / "numpy").mkdir()
    np.savez(root / "numpy" / "run_0.npz", **flat)
    np.savez_compressed(root / "numpy" / "run_1.npz", **flat)
    (root / "equinox").mkdir()
    eqx.tree_serialise_leaves(root / "equinox" / "0.eqx", skeleton())
    save_file = pytest.importorskip("safetensors.numpy").save_file
    (root / "hugging").mkdir()
    save_file({"params.w": PARAMS["w"]}, root / "hugging" / "a.safetensors")
    save_file({"params.b": PARAMS["b"]}, root / "hugging" / "b.safetensors")
    weight_map = {"params.w": "a.safetensors", "params.b": "b.safetensors"}
    put(root / "hugging" / INDEX, json.dumps({"weight_map": weight_map}).encode())


def mutated(content, rng):
    """The bytes of a file, damaged in one of the ways that disks and people damage them."""
    place = int(rng.integers(0, max(1, len(content))))
    begin, behind = content[:place], content[place:]
    digits = [k for k, byte in enumerate(content) if 0x30 <= byte <= 0x39] or [0]
    digit = digits[int(rng.integers(0, len(digits)))]
    number = b"%d" % rng.integers(0, 10**9)
    damage = [
        begin,  # cut off
        begin + bytes([(behind or b"x")[0] ^ 1 << int(rng.integers(0, 8))]) + behind[1:],  # one bit
        begin + bytes(min(64, len(behind))) + behind[64:],  # a block of zeros
        begin + rng.bytes(16) + behind[16:],
        content[:digit] + number + content[digit + 1 :],  # a digit that is another number
        content + rng.bytes(32),
        b"",
    ]
    return damage[int(rng.integers(0, len(damage)))]


READ = """
import pathlib, sys, time
sys.path[:0] = sys.argv[2:]
from ntkdiag.checkpoints import load_params
from ntkdiag.errors import NtkdiagError
from test_damaged_checkpoints import difference, skeleton, whole
for path in map(pathlib.Path, sys.stdin.read().split("\\n")):
    begun = time.monotonic()
    try:
        params = load_params(path, model=skeleton() if path.name == "equinox" else None)
        said = difference(params, whole(path.name))
    except NtkdiagError as error:
        said = "refused"
    except BaseException as error:
        said = f"raw {type(error).__name__}: {error}"
    print(f"{path}\\t{time.monotonic() - begun:.1f}\\t{said}", flush=True)
"""
# Formats whose arrays have a sum beside them: a byte that changed is noticed.
WITH_SUMS = ("numpy",)


def whole(name):
    """What a checkpoint of `write_all` has in it."""
    if name != "equinox":
        return PARAMS
    model, _ = skeleton()
    return eqx.filter(model, eqx.is_array)


def difference(params, expected):
    """What a tree has otherwise: nothing, arrays that `compare` refuses by name, or numbers alone."""
    got, want = leaves_by_path(params), leaves_by_path(expected)
    if {path: describe(leaf) for path, leaf in got.items()} != {
        path: describe(leaf) for path, leaf in want.items()
    }:
        return "other arrays"
    same = all(np.array_equal(got[path], want[path], equal_nan=True) for path in want)
    return "the same" if same else "other numbers"


@pytest.mark.slow
def test_a_hundred_mutated_checkpoints(tmp_path):
    """One file of each is damaged. A byte of an array that changed is not noticed where the format has no sums."""
    rng = np.random.default_rng(0)
    write_all(tmp_path / "whole")
    names = [path.name for path in sorted((tmp_path / "whole").iterdir())]
    paths, damaged = [], {}
    for number in range(150):
        name = names[number % len(names)]
        copy = tmp_path / "mutated" / str(number) / name
        shutil.copytree(tmp_path / "whole" / name, copy)
        files = sorted(path for path in copy.rglob("*") if path.is_file())
        file = files[int(rng.integers(0, len(files)))]
        file.write_bytes(mutated(file.read_bytes(), rng))
        paths.append(copy)
        damaged[str(copy)] = file.name
    tests = pathlib.Path(__file__).parent
    package = pathlib.Path(ntkdiag.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", READ, "-", package, tests, tests.parent / "support"],
        input="\n".join(map(str, paths)),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert (done.returncode, len(lines)) == (0, len(paths)), (
        done.stdout[-300:],
        done.stderr[-300:],
    )
    counts = collections.Counter(said for _, _, said in lines)
    assert set(counts) <= {"refused", "the same", "other arrays", "other numbers"}, lines
    assert not [line for line in lines if float(line[1]) > 10]
    # The damage was no small one: most are refused.
    assert counts["refused"] > 50, counts
    for path, _, said in lines:
        if said == "other numbers":
            assert pathlib.Path(path).name not in WITH_SUMS, path
            assert not damaged[path].endswith((".json", "_METADATA", ".zarray")), path
