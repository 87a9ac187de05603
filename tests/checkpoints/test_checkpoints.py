"""Reading Orbax checkpoints: every layout comes back, everything else is one clear error."""

import json
import logging
import os
import subprocess
import sys
import threading

import equinox as eqx
import jax
import numpy as np
import orbax.checkpoint as v0
import pytest
from checkpoint_files import assert_same, refused
from internals import read_contents
from orbax.checkpoint import v1

from ntkdiag import load_params

PARAMS = {
    "dense": {
        "kernel": np.arange(6.0, dtype=np.float32).reshape(2, 3),
        "bias": np.ones(3, np.float32),
    }
}
STATS = {"norm": {"mean": np.full(3, 0.5, np.float32)}}
VARIABLES = {"params": PARAMS, "batch_stats": STATS}


def save_v0(path, tree):
    with v0.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, tree)


def save_manager(root, steps, tree):
    with v0.CheckpointManager(root) as manager:
        for step in steps:
            scaled = jax.tree.map(lambda leaf, step=step: leaf + step, tree)
            manager.save(step, args=v0.args.StandardSave(scaled))
        manager.wait_until_finished()


@pytest.fixture
def saved(tmp_path):
    v1.save(tmp_path / "ckpt", VARIABLES)
    return tmp_path / "ckpt"


# On damaged data Orbax abandons asyncio tasks, which Python reports when it collects them.
damaged = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.mark.smoke
def test_v1_checkpoint_and_its_item(saved):
    assert_same(load_params(saved), PARAMS)
    assert_same(load_params(saved / "state"), PARAMS)


def test_manager_root_step_directory_and_item_directory(tmp_path):
    save_manager(tmp_path, (0, 3, 10), VARIABLES)
    for path, step, offset in [(tmp_path, None, 10), (tmp_path, 3, 3), (tmp_path / "3", None, 3)]:
        assert_same(
            load_params(path, step), jax.tree.map(lambda leaf, offset=offset: leaf + offset, PARAMS)
        )
    assert_same(
        load_params(tmp_path / "3" / "default"), jax.tree.map(lambda leaf: leaf + 3, PARAMS)
    )
    assert read_contents(tmp_path).location.step == 10


def test_a_parameter_called_value_keeps_its_name(tmp_path):
    v1.save(tmp_path / "a", {"params": {"scale": {"value": np.ones(2)}, "kernel": np.ones(2)}})
    assert set(load_params(tmp_path / "a")["scale"]) == {"value"}


@pytest.mark.smoke
def test_equinox_module(tmp_path):
    model = eqx.nn.MLP(2, 1, 3, 1, key=jax.random.key(0))
    save_v0(tmp_path / "a", eqx.filter(model, eqx.is_inexact_array))
    layer = load_params(tmp_path / "a")["layers"][0]
    np.testing.assert_array_equal(layer["weight"], model.layers[0].weight)


def assert_refused(path, *parts, **options):
    text = refused(path, *parts, **options)
    call = "load_params(path, step)" if options.get("step") is not None else "load_params(path)"
    assert text.startswith(f"{call}: expected a checkpoint at '{path}'; got ")


def test_what_is_no_checkpoint(tmp_path):
    assert_refused(tmp_path / "nowhere", "got no such path", "Check the spelling")
    assert_refused(tmp_path, "no finished checkpoint in it (it holds: nothing)")
    (tmp_path / "notes.txt").write_text("x")
    assert_refused(tmp_path, "(it holds: notes.txt)", "a step directory")
    assert_refused(tmp_path / "notes.txt", "a file of an unknown format", "Readable are Orbax")


def test_unfinished_save_is_refused_and_skipped_in_a_root(tmp_path):
    save_manager(tmp_path, (1,), VARIABLES)
    tmp = tmp_path / "2.orbax-checkpoint-tmp"
    (tmp_path / "1").rename(tmp)
    assert_refused(tmp, "a save that never finished", "Use an earlier step")
    assert_refused(tmp_path, "no finished checkpoint in it")
    save_manager(tmp_path, (7,), VARIABLES)
    assert read_contents(tmp_path).location.step == 7


@damaged
def test_truncated_arrays_with_whole_metadata(tmp_path):
    v0.PyTreeCheckpointer(use_ocdbt=False).save(tmp_path / "a", {"params": PARAMS})
    chunk = tmp_path / "a" / "params.dense.kernel" / "0.0"
    chunk.write_bytes(chunk.read_bytes()[:10])
    assert_refused(
        tmp_path / "a", "unreadable or missing data", "Use another step, or save it again"
    )
    chunk.unlink()
    assert_refused(tmp_path / "a", "unreadable or missing data")


def test_optimizer_state_without_params(tmp_path):
    v1.save(tmp_path / "a", {"opt_state": PARAMS, "step": 3})
    assert_refused(
        tmp_path / "a", "the state of an optimizer without parameters (it holds: opt_state, step)"
    )


def test_symlink_out_of_the_checkpoint_is_refused(saved, tmp_path):
    target = tmp_path / "elsewhere"
    first = next(file for file in saved.rglob("d/*") if file.is_file())
    first.rename(target)
    first.symlink_to(target)
    assert_refused(saved, f"a symlink that leads outside it: {first.relative_to(saved)}")


def test_symlink_to_the_checkpoint_itself_is_followed(saved, tmp_path):
    os.symlink(saved, tmp_path / "latest")
    assert_same(load_params(tmp_path / "latest"), PARAMS)


def rename(saved, before, name):
    """Another name for the last key of a leaf in the metadata."""
    file = saved / "state" / "_METADATA"
    metadata = json.loads(file.read_text())
    for entry in metadata["tree_metadata"].values():
        if entry["key_metadata"][-1]["key"] == before:
            entry["key_metadata"][-1]["key"] = name
    file.write_text(json.dumps(metadata))


def test_key_that_climbs_out_is_refused(saved):
    before = "bias"
    for name in ("../../elsewhere", "/etc/elsewhere", ".."):
        rename(saved, before, name)
        assert_refused(saved, f"the key 'params/dense/{name}', which names a file outside it")
        before = name


def test_declared_size_beyond_memory_is_refused(saved, monkeypatch):
    monkeypatch.setattr("ntkdiag.memory.host_memory", lambda: 16)
    assert_refused(saved, "arrays of 36 bytes declared in its metadata, where 16 are free")


SAVE_SHARDED = """
import pathlib, sys
import jax, numpy
import orbax.checkpoint as v0
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from orbax.checkpoint import v1

root = pathlib.Path(sys.argv[1])
assert len(jax.devices()) == 8
mesh = Mesh(numpy.array(jax.devices()).reshape(4, 2), ("data", "model"))

def placed(array, *axes):
    return jax.device_put(array, NamedSharding(mesh, PartitionSpec(*axes)))

w = numpy.arange(32.0, dtype="float32").reshape(8, 4)
params = {
    "w": placed(w, "data", "model"),
    "half": placed(w.astype("bfloat16"), ("data", "model")),
    "b": placed(w[0]),  # a copy on every device
    "key": jax.random.key(3),
}
without_key = {name: leaf for name, leaf in params.items() if name != "key"}
state = {"params": without_key, "opt_state": {"mu": params["w"]}, "step": 7}

v1.save(root / "v1", {"params": params})
v1.save(root / "v1_bare", params)
with v0.StandardCheckpointer() as checkpointer:
    checkpointer.save(root / "standard", state)
v0.PyTreeCheckpointer(use_ocdbt=False).save(root / "zarr_files", state)
v0.Checkpointer(v0.PyTreeCheckpointHandler(use_zarr3=True)).save(root / "zarr3", state)
with v0.CheckpointManager(root / "manager") as manager:
    manager.save(5, args=v0.args.StandardSave(state))
with v0.CheckpointManager(root / "named") as manager:
    items = v0.args.Composite(params=v0.args.StandardSave(without_key), step=v0.args.JsonSave({"step": 5}))
    manager.save(5, args=items)
with v0.CheckpointManager(root / "state") as manager:
    manager.save(5, args=v0.args.Composite(state=v0.args.PyTreeSave(state)))
with v1.training.Checkpointer(root / "v1_root") as checkpointer:
    checkpointer.save_pytree(5, state)
"""


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    """Checkpoints that another process wrote from eight devices."""
    root = tmp_path_factory.mktemp("sharded")
    flags = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    subprocess.run(
        [sys.executable, "-c", SAVE_SHARDED, root],
        env={**os.environ, **flags},
        check=True,
        capture_output=True,
    )
    return root


@pytest.mark.slow
def test_checkpoints_sharded_over_eight_devices_are_read_on_one(sharded):
    assert len(jax.devices()) == 1
    w = np.arange(32.0, dtype=np.float32).reshape(8, 4)
    for layout in sorted(path.name for path in sharded.iterdir()):
        expected = {"w": w, "half": w.astype(jax.numpy.bfloat16), "b": w[0]}
        if layout in ("v1", "v1_bare"):
            expected["key"] = np.asarray(jax.random.key_data(jax.random.key(3)))  # as raw integers
        assert_same(load_params(sharded / layout), expected)


def test_readers_side_by_side_leave_the_logger_as_it_was(tmp_path):
    v1.save(tmp_path / "one", {"w": np.ones((2, 2), np.float32)})
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.INFO)
    try:
        readers = [threading.Thread(target=lambda: load_params(tmp_path / "one")) for _ in range(6)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        assert logger.level == logging.INFO
    finally:
        logger.setLevel(before)
