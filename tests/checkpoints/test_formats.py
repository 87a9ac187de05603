"""Checkpoints of other formats than Orbax: each comes back as it was saved, all else is one clear error."""

import json
import pickle

import equinox as eqx
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checkpoint_files import assert_same, refused
from internals import read_contents

from ntkdiag import load_params
from ntkdiag.errors import MissingDependencyError, StructureError

PARAMS = {
    "Dense_0": {
        "kernel": np.arange(6.0, dtype=np.float32).reshape(2, 3),
        "bias": np.ones(3, np.float32),
    },
    "Dense_1": {"kernel": np.full((3, 1), 0.5, jnp.bfloat16), "scale": np.ones((), np.float16)},
}
STATS = {"norm": {"mean": np.full(3, 0.25, np.float32)}}


def flat(tree, separator):
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {separator.join(key.key for key in path): leaf for path, leaf in leaves}


# Safetensors.


@pytest.fixture
def save_safetensors():
    return pytest.importorskip("safetensors.numpy").save_file


def test_names_of_safetensors_are_paths(tmp_path, save_safetensors):
    for number, (tree, separator) in enumerate(((PARAMS, "."), ({"params": PARAMS}, "/"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        save_safetensors(flat(tree, separator), folder / "model.safetensors")
        assert_same(load_params(folder / "model.safetensors"), PARAMS)
        assert_same(load_params(folder), PARAMS)  # a directory of Hugging Face


def test_shards_are_found_by_their_index(tmp_path, save_safetensors):
    arrays = flat(PARAMS, ".")
    shards = {}
    for number, (name, array) in enumerate(arrays.items(), start=1):
        shards[name] = f"model-{number:05}-of-{len(arrays):05}.safetensors"
        save_safetensors({name: array}, tmp_path / shards[name])
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    assert_same(load_params(tmp_path), PARAMS)
    assert_same(load_params(index), PARAMS)

    (tmp_path / shards["Dense_0.bias"]).unlink()
    refused(tmp_path, f"no file {shards['Dense_0.bias']}, which its index names", "Copy all shards")
    index.write_text(json.dumps({"weight_map": {"a": "../model.safetensors"}}))
    refused(tmp_path, "an index that names a file outside its directory: '../model.safetensors'")
    index.unlink()
    refused(tmp_path, "no finished checkpoint in it (it holds: model-00002-of-00004.safetensors")


def write_shards(folder, shards, weight_map):
    """Shards by hand: file -> arrays, and an index that says what it is told."""
    from safetensors.numpy import save_file

    for name, arrays in shards.items():
        save_file(arrays, folder / name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


ONE, TWO = np.ones(2, np.float32), np.full(2, 2, np.float32)


SHARDS = [
    # In two shards, of which the index means the first.
    (
        {"a.safetensors": {"v": ONE}, "b.safetensors": {"v": TWO, "w": TWO}},
        {"v": "a.safetensors", "w": "b.safetensors"},
        "the array v in b.safetensors, where its index does not list it",
    ),
    # Listed, and not there.
    (
        {"a.safetensors": {"v": ONE}},
        {"v": "a.safetensors", "w": "a.safetensors"},
        "no array w in a.safetensors, where its index lists it",
    ),
    ({}, {}, "an index that names no array"),
]


@pytest.mark.usefixtures("save_safetensors")
def test_shards_that_are_not_those_of_their_index(tmp_path):
    for number, (shards, weight_map, said) in enumerate(SHARDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_shards(folder, shards, weight_map)
        refused(folder, said)


@pytest.mark.usefixtures("save_safetensors")
def test_an_array_comes_from_the_shard_that_the_index_names(tmp_path):
    shards = {"a.safetensors": {"v": ONE}, "b.safetensors": {"w": TWO}, "c.safetensors": {"v": TWO}}
    write_shards(tmp_path, shards, {"v": "a.safetensors", "w": "b.safetensors"})
    assert_same(load_params(tmp_path), {"v": ONE, "w": TWO})  # c is no part of it


def test_names_by_a_function_that_transposes(tmp_path, save_safetensors):
    kernel = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    save_safetensors(
        {"fc.weight": np.ascontiguousarray(kernel.T), "position_ids": np.arange(4)},
        tmp_path / "a.safetensors",
    )

    def from_torch(name, array):
        if name == "position_ids":
            return None
        return "Dense_0/kernel", array.T

    got = load_params(tmp_path / "a.safetensors", parameter_names=from_torch)
    assert_same(got, {"Dense_0": {"kernel": kernel}})
    wrong = {
        "Return (path, array)": lambda name, array: name,
        "two arrays for 'w'": lambda name, array: ("w", array),
    }
    for part, translate in wrong.items():
        refused(tmp_path / "a.safetensors", part, parameter_names=translate)
    save_safetensors({"a": kernel, "a.b": kernel}, tmp_path / "a.safetensors")
    refused(tmp_path / "a.safetensors", "'a' is an array and the beginning of other names")


# Flax msgpack.


def test_msgpack(tmp_path):
    (tmp_path / "flax_model.msgpack").write_bytes(flax.serialization.to_bytes({"params": PARAMS}))
    assert_same(load_params(tmp_path), PARAMS)  # that of Hugging Face


def test_msgpack_in_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(flax.serialization, "MAX_CHUNK_SIZE", 8)
    (tmp_path / "a.msgpack").write_bytes(flax.serialization.to_bytes(PARAMS))
    monkeypatch.undo()
    assert b"__msgpack_chunked_array__" in (tmp_path / "a.msgpack").read_bytes()
    assert_same(load_params(tmp_path / "a.msgpack"), PARAMS)


# Leaves of Equinox.


class Net(eqx.Module):
    mlp: eqx.nn.MLP
    rate: float
    table: np.ndarray

    def __init__(self, key, width=4, depth=1):
        self.mlp = eqx.nn.MLP(3, 2, width, depth, key=key)
        self.rate = 0.5
        self.table = np.arange(3)

    def __call__(self, x):
        return self.mlp(x)


def net(seed, **options):
    return Net(jax.random.key(seed), **options)


@pytest.mark.parametrize("settings", [b"", b'{"width": 4}\n'])
def test_leaves_of_equinox(tmp_path, settings):
    """Some scripts write a line of settings first."""
    with (tmp_path / "a.eqx").open("wb") as file:
        file.write(settings)
        eqx.tree_serialise_leaves(file, net(1))
    got = load_params(tmp_path / "a.eqx", model=net(0))
    want = eqx.filter(net(1), eqx.is_array)
    for left, right in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert isinstance(left, np.ndarray)
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)


def test_leaves_of_another_module(tmp_path):
    eqx.tree_serialise_leaves(tmp_path / "a.eqx", net(0))
    refused(
        tmp_path / "a.eqx",
        "3 difference(s)",
        "mlp/layers/0/weight: expected float32[5, 3], got float32[4, 3]",
        "mlp/layers/1/weight: expected float32[2, 5], got float32[2, 4]",
        error=StructureError,
        model=net(0, width=5),
    )
    # The layers that a shallower module has are the first ones here, which Equinox would read.
    deep = eqx.nn.MLP(4, 4, 4, 2, key=jax.random.key(0))
    shallow = eqx.nn.MLP(4, 4, 4, 1, key=jax.random.key(0))
    eqx.tree_serialise_leaves(tmp_path / "deep.eqx", deep)
    eqx.tree_deserialise_leaves(tmp_path / "deep.eqx", shallow)
    parts = ("2 more arrays in the file than leaves in the model",)
    refused(tmp_path / "deep.eqx", *parts, error=StructureError, model=shallow)
    eqx.tree_serialise_leaves(tmp_path / "shallow.eqx", shallow)
    parts = ("layers/2/weight: missing, layers/2/bias: missing",)
    refused(tmp_path / "shallow.eqx", *parts, error=StructureError, model=deep)


def test_leaves_of_equinox_need_a_module(tmp_path):
    eqx.tree_serialise_leaves(tmp_path / "a.eqx", net(0))
    refused(tmp_path / "a.eqx", "leaves of Equinox, which have no names", "Pass model=")
    refused(tmp_path / "a.eqx", "at='params'", at="params", model=net(0))


class Trap:
    """Leaves a trace where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_objects_among_leaves_are_not_unpickled(tmp_path):
    with (tmp_path / "a.eqx").open("wb") as file:
        np.save(file, np.array([Trap(tmp_path / "trace")], dtype=object), allow_pickle=True)
    refused(tmp_path / "a.eqx", "array 1 of the file damaged", "Object arrays", model=net(0))
    assert not (tmp_path / "trace").exists()


# What no reader takes.


def test_pickles_are_refused_whatever_their_name(tmp_path):
    for name in ("a.pkl", "a.safetensors", "a.msgpack", "a.eqx", "a"):
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            (tmp_path / name).write_bytes(pickle.dumps(Trap(tmp_path / "trace"), protocol))
            refused(tmp_path / name, "a pickle, or an archive that may contain one")
    assert not (tmp_path / "trace").exists()


READER = """
import pathlib

import numpy

from ntkdiag.errors import CheckpointError


def read(path, at):
    number, kind = pathlib.Path(path).read_bytes()[2:].decode().split()
    if kind == "refused":
        raise CheckpointError("as the reader has it")
    scale = 1.0 if at is None else 2.0
    return {"Dense_0.kernel": numpy.full(3, scale * float(number), numpy.float32)}
"""


@pytest.fixture
def declared_reader(tmp_path, monkeypatch):
    """A distribution that declares a reader for `.tower`, on the path."""
    site = tmp_path / "site"
    info = site / "ntkdiag_declared-0.1.dist-info"
    info.mkdir(parents=True)
    (site / "ntkdiag_declared.py").write_text(READER)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ntkdiag-declared\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(
        "[ntkdiag.checkpoints]\ntower = ntkdiag_declared:read\nnobody = ntkdiag_of_nobody:read\n"
    )
    monkeypatch.syspath_prepend(site)


@pytest.mark.usefixtures("declared_reader")
def test_files_that_another_distribution_reads(tmp_path):
    root = tmp_path / "run"
    root.mkdir()
    for step in (1, 2):
        (root / f"net_{step}.tower").write_bytes(b"\x80\x02" + f"{step} fine".encode())
    assert_same(load_params(root), {"Dense_0": {"kernel": np.full(3, 2.0, np.float32)}})
    first = root / "net_1.tower"
    assert_same(load_params(root, 1), load_params(first))
    assert_same(load_params(first, at="ema"), load_params(root, 2))
    renamed = load_params(first, parameter_names=lambda name, array: ("a/b", array))
    assert_same(renamed, {"a": {"b": np.full(3, 1.0, np.float32)}})


@pytest.mark.usefixtures("declared_reader")
def test_files_that_another_distribution_does_not_read(tmp_path):
    path = tmp_path / "a.tower"
    path.write_bytes(b"\x80\x02no numbers")
    refused(path, "a file that ntkdiag_declared cannot read (ValueError", "save it again")
    path.write_bytes(b"\x80\x021 refused")
    refused(path, "as the reader has it")
    path = path.rename(tmp_path / "a.nobody")
    parts = ("ntkdiag_of_nobody:read to import", "Install what it needs")
    refused(path, *parts, error=MissingDependencyError)


# Roots of numbered files.


def test_steps_of_a_root_of_files(tmp_path):
    for step in (0, 100):
        tree = jax.tree.map(lambda leaf, step=step: leaf + step, STATS)
        (tmp_path / f"run_{step}.msgpack").write_bytes(flax.serialization.to_bytes(tree))
    assert load_params(tmp_path)["norm"]["mean"][0] == 100.25
    assert load_params(tmp_path, 0)["norm"]["mean"][0] == 0.25
    assert read_contents(tmp_path / "run_0.msgpack").location.step == 0
    refused(tmp_path, "got no step 7", "Finished steps there: 0, 100", step=7)
    refused(tmp_path / "run_0.msgpack", "a single checkpoint, and step=1", step=1)
    (tmp_path / "best_0.msgpack").write_bytes(b"")
    refused(tmp_path, "two checkpoints of step 0: best_0.msgpack and run_0.msgpack")


def test_steps_of_a_trainer_beside_its_last_weights(tmp_path, save_safetensors):
    for folder, value in (("checkpoint-500", 1.0), ("checkpoint-1000", 2.0), (".", 3.0)):
        (tmp_path / folder).mkdir(exist_ok=True)
        save_safetensors({"w": np.full(2, value)}, tmp_path / folder / "model.safetensors")
    assert load_params(tmp_path)["w"][0] == 3.0
    assert load_params(tmp_path, 500)["w"][0] == 1.0
    assert read_contents(tmp_path / "checkpoint-1000").location.step == 1000
