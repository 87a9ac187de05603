"""Layouts that training scripts of today write: which part of a checkpoint is what, and what cannot be told."""

import io
import json
import os
import warnings
import zipfile

import equinox as eqx
import flax
import flax.serialization
import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from checkpoint_files import assert_same, refused
from flax import nnx, traverse_util
from flax.training import checkpoints
from flax.training.train_state import TrainState
from internals import read_contents, restored_state

from ntkdiag import load_params
from ntkdiag.errors import StructureError

ADAM = optax.adam(1e-3)


def params_of(seed):
    rng = np.random.default_rng(seed)
    return {
        "dense": {
            "bias": rng.normal(size=3).astype("f"),
            "kernel": rng.normal(size=(2, 3)).astype("f"),
        },
        "scale": rng.normal(size=()).astype("f"),
    }


PARAMS = params_of(0)


def assert_restored(saved, tx, params):
    """The saved state is that of an optimizer, in its own containers, with the numbers it had."""
    expected = stepped(tx, params)
    got = restored_state(tx, params, saved, "it").state
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for left, right in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(left, right)


def stepped(tx, params):
    params = jax.tree.map(jax.numpy.asarray, params)
    gradient = jax.tree.map(lambda leaf: leaf / 10, params)
    return tx.update(gradient, tx.init(params), params)[1]


def save_orbax(path, tree):
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, tree)


def save_msgpack(path, tree):
    path.write_bytes(flax.serialization.to_bytes(tree))


# Model and optimizer in one tree.

OPTIMIZERS = {
    "clipped adamw with a schedule": optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(optax.constant_schedule(1e-3))
    ),
    "MultiSteps": optax.MultiSteps(ADAM, 2),
    "two groups": optax.partition(
        {"a": ADAM, "b": optax.set_to_zero()}, {"dense": "a", "scale": "b"}
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_pair_of_parameters_and_the_state_of_any_optimizer(tmp_path, name):
    tx = OPTIMIZERS[name]
    save_msgpack(tmp_path / "a", (PARAMS, stepped(tx, PARAMS)))
    assert_same(load_params(tmp_path / "a"), PARAMS)
    contents = read_contents(tmp_path / "a", with_optimizer=True)
    assert_same(contents.params, PARAMS)
    assert contents.collections == {}
    assert_restored(contents.optimizer_state, tx, PARAMS)


LAYOUTS = {
    "model, optimizer": lambda params, state: {"model": params, "optimizer": state},
    "model of params": lambda params, state: {"model": {"params": params}, "optimizer": state},
    "state, history": lambda params, state: {
        "state": {"params": params, "opt_state": state},
        "history": {"a": np.ones(2)},
    },
    "triple with a dictionary": lambda params, state: (params, state, {"count": np.int32(3)}),
    "TrainState": lambda params, state: TrainState(3, None, params, ADAM, state),
}


@pytest.mark.parametrize("save", [save_orbax, save_msgpack], ids=["orbax", "msgpack"])
def test_parameters_beside_the_state_of_the_optimizer(tmp_path, save):
    state = stepped(ADAM, PARAMS)
    for name, layout in LAYOUTS.items():
        save(tmp_path / name, layout(PARAMS, state))
        contents = read_contents(tmp_path / name, with_optimizer=True)
        assert_same(contents.params, PARAMS)
        assert_restored(contents.optimizer_state, ADAM, PARAMS)
        # Not asked for, the state stays on disk.
        assert read_contents(tmp_path / name).optimizer_state is None


def test_nnx_states_of_model_optimizer_and_metrics(tmp_path):
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, ADAM, wrt=nnx.Param)
    params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    optimizer.update(model, jax.tree.map(lambda leaf: leaf / 10, nnx.state(model, nnx.Param)))
    now = jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    metrics = nnx.MultiMetric(loss=nnx.metrics.Average())
    save_orbax(tmp_path / "a", nnx.state((model, optimizer, metrics)))
    contents = read_contents(tmp_path / "a", with_optimizer=True)
    assert_same(contents.params, now)
    assert_restored(contents.optimizer_state, ADAM, params)


# What cannot be told.


def test_several_trees_are_named(tmp_path):
    state = stepped(ADAM, PARAMS)
    do = 'Choose one: load_params(path, at="actor").'
    cases = {
        "dictionary": (
            {"actor": PARAMS, "critic": PARAMS, "opt_state": state},
            "actor, critic",
            do,
        ),
        "triple": ((PARAMS, params_of(1), state), "0, 1", 'at="0"'),
        "deep": (
            {"a": {"params": PARAMS}, "b": {"params": PARAMS}, "optimizer": state},
            "a/params, b/params",
            'at="a/params"',
        ),
    }
    for name, (tree, names, do) in cases.items():
        save_orbax(tmp_path / name, tree)
        refused(tmp_path / name, f"got several parameter trees: {names}. ", do)
    assert_same(load_params(tmp_path / "dictionary", at="critic"), PARAMS)
    assert_same(load_params(tmp_path / "triple", at="1"), params_of(1))


# Items of a CheckpointManager.


def save_items(root, **items):
    with ocp.CheckpointManager(root) as manager:
        for step in (0, 100):
            args = {
                name: ocp.args.StandardSave(jax.tree.map(lambda leaf, step=step: leaf + step, tree))
                for name, tree in items.items()
            }
            manager.save(step, args=ocp.args.Composite(**args))


def test_items_of_model_and_optimizer(tmp_path):
    save_items(tmp_path / "run", weights=PARAMS, optimizer=stepped(ADAM, PARAMS))
    for path, step in (("run", 0), ("run/0", None), ("run/0/weights", None)):
        contents = read_contents(tmp_path / path, step, with_optimizer=True)
        assert_same(contents.params, PARAMS)
        assert_restored(contents.optimizer_state, ADAM, PARAMS)
    assert_same(
        load_params(tmp_path / "run")["dense"],
        jax.tree.map(lambda leaf: leaf + 100, PARAMS["dense"]),
    )


def test_collections_in_items_of_their_own(tmp_path):
    stats = {"norm": {"mean": np.zeros(3, np.float32)}}
    save_items(
        tmp_path / "run",
        params=PARAMS,
        batch_stats=stats,
        opt_state=stepped(ADAM, PARAMS),
        ema=stats,
    )
    contents = read_contents(tmp_path / "run", 0, with_optimizer=True)
    assert_same(contents.params, PARAMS)
    assert_same(contents.collections, {"batch_stats": stats})
    assert_restored(contents.optimizer_state, ADAM, PARAMS)
    assert_same(load_params(tmp_path / "run", 0, at="batch_stats/norm"), stats["norm"])


# Orbax's aggregate file.


def write_aggregate(folder, variables, metadata=True):
    folder.mkdir(parents=True)
    (folder / "checkpoint").write_bytes(flax.serialization.to_bytes(variables))
    leaves = {}
    for path in traverse_util.flatten_dict(variables):
        keys = [{"key": key, "key_type": 2} for key in path]
        value = {"value_type": "jax.Array", "skip_deserialize": True}
        leaves[str(path)] = {"key_metadata": keys, "value_metadata": value}
    if metadata:
        (folder / "_METADATA").write_text(json.dumps({"tree_metadata": leaves, "use_zarr3": False}))


@pytest.mark.parametrize("metadata", [True, False])
def test_the_aggregate_file(tmp_path, metadata):
    for place in ("checkpoint_{}", "{}", "{}/default", "{}/params"):
        root = tmp_path / place.replace("/", " ")
        for step in (0, 100):
            write_aggregate(root / place.format(step), {"params": params_of(step)}, metadata)
        for step in (0, 100):
            assert_same(load_params(root, step), params_of(step))
            assert_same(load_params(root / place.format(step)), params_of(step))
    by_orbax = ocp.PyTreeCheckpointer().restore(root / place.format(0))
    assert_same(by_orbax["params"], params_of(0))


def test_placeholders_that_lead_elsewhere_are_refused(tmp_path):
    write_aggregate(
        tmp_path / "run", {"params": {"w": "PLACEHOLDER://../../elsewhere", "b": np.ones(2)}}
    )
    refused(tmp_path / "run", "the key '../../elsewhere', which names a file outside it")


# Folders without Orbax.


@pytest.fixture
def without_orbax():
    flax.config.update("flax_use_orbax_checkpointing", False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Orbax is to be used now
        yield
    flax.config.update("flax_use_orbax_checkpointing", True)


@pytest.mark.usefixtures("without_orbax")
def test_files_of_flax_without_an_ending(tmp_path):
    prefix = "step="
    for step in (0, 100):
        state = TrainState(step, None, params_of(step), ADAM, stepped(ADAM, params_of(step)))
        checkpoints.save_checkpoint(tmp_path, state, step, prefix=prefix, keep=9)
    assert sorted(os.listdir(tmp_path)) == [f"{prefix}0", f"{prefix}100"]
    for step in (0, 100):
        contents = read_contents(tmp_path, step, with_optimizer=True)
        assert_same(contents.params, params_of(step))
        assert_restored(contents.optimizer_state, ADAM, params_of(step))
        assert contents.location.step == step
    assert_same(load_params(tmp_path), params_of(100))
    assert read_contents(tmp_path / f"{prefix}0").location.step == 0


def test_files_of_model_and_optimizer_beside_each_other(tmp_path):
    for step in (0, 100):
        save_msgpack(tmp_path / f"model-{step}", params_of(step))
        save_msgpack(tmp_path / f"optimizer-{step}", stepped(ADAM, params_of(step)))
    for step in (0, 100):
        contents = read_contents(tmp_path, step, with_optimizer=True)
        assert_same(contents.params, params_of(step))
        assert_restored(contents.optimizer_state, ADAM, params_of(step))
    # Where the file of the optimizer is gone, there is no state.
    (tmp_path / "optimizer-0").unlink()
    assert read_contents(tmp_path, 0, with_optimizer=True).optimizer_state is None
    save_msgpack(tmp_path / "critic-100", PARAMS)
    refused(tmp_path, "two checkpoints of step 100: critic-100 and model-100")
    (tmp_path / "critic-100").rename(tmp_path / "critic-50")
    refused(
        tmp_path, "steps of several checkpoints: critic..., model...", "a dictionary from steps"
    )


def test_a_folder_for_each_step_with_files_of_model_and_optimizer(tmp_path):
    for step in (0, 100):
        folder = tmp_path / f"step_{step}"
        folder.mkdir()
        save_msgpack(folder / "model.msgpack", params_of(step))
        save_msgpack(folder / "optimizer.msgpack", stepped(ADAM, params_of(step)))
        save_msgpack(folder / "ema.msgpack", PARAMS)
    for step in (0, 100):
        contents = read_contents(tmp_path, step, with_optimizer=True)
        assert_same(contents.params, params_of(step))
        assert_restored(contents.optimizer_state, ADAM, params_of(step))
    (folder / "model.msgpack").rename(folder / "critic.msgpack")
    refused(folder, "(it holds: critic.msgpack, ema.msgpack, optimizer.msgpack)")


def test_what_has_a_number_and_is_no_step(tmp_path):
    names = ("metrics_3.json", "log-7.txt", "model-00001-of-00002")
    # A number that is none of a step, but a hash or a time in nanoseconds behind another.
    save_msgpack(tmp_path / ("checkpoint_" + "1" * 200), PARAMS)
    names += ("run-2024-05-01", "9.orbax-checkpoint-tmp-1795604429905656")
    for name in names[:3]:
        (tmp_path / name).write_text("words")
    for name in names[3:]:
        save_orbax(tmp_path / "other", PARAMS)
        (tmp_path / "other").rename(tmp_path / name)
    save_msgpack(tmp_path / "checkpoint_5", PARAMS)
    assert read_contents(tmp_path).location.step == 5


# Arrays of NumPy under flat names.


@pytest.mark.parametrize(("save", "separator"), [(np.savez, "/"), (np.savez_compressed, ".")])
def test_npz(tmp_path, save, separator):
    for step in (0, 100):
        flat = traverse_util.flatten_dict({"params": params_of(step)}, sep=separator)
        save(tmp_path / f"run_{step}.npz", **flat)
    assert_same(load_params(tmp_path / "run_0.npz"), params_of(0))
    assert_same(load_params(tmp_path), params_of(100))
    assert_same(load_params(tmp_path, 0), params_of(0))


def test_npz_under_the_paths_of_jax(tmp_path):
    tree = {"params": PARAMS, "layers": [np.ones(2), np.zeros(3)]}
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    np.savez(tmp_path / "a.npz", **{jax.tree_util.keystr(path): leaf for path, leaf in flat})
    assert_same(load_params(tmp_path / "a.npz"), PARAMS)
    np.testing.assert_array_equal(load_params(tmp_path / "a.npz", at="layers")["1"], np.zeros(3))
    linear = eqx.nn.Linear(3, 2, key=jax.random.key(0))
    flat, _ = jax.tree_util.tree_flatten_with_path(linear)
    np.savez(tmp_path / "b.npz", **{jax.tree_util.keystr(path): leaf for path, leaf in flat})
    np.testing.assert_array_equal(load_params(tmp_path / "b.npz")["weight"], linear.weight)


def test_objects_in_npz_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", params=np.array({"w": 1}, dtype=object))
    refused(
        tmp_path / "a.npz",
        "an archive that cannot be read (ValueError: Object arrays cannot be loaded",
    )
    for content in (b"PK\x03\x04", b"", b"abc"):
        (tmp_path / "a.npz").write_bytes(content)
        refused(
            tmp_path / "a.npz",
            "an archive that cannot be read (",
        )


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_archive_with_two_arrays_of_one_name_is_refused(tmp_path):
    path = tmp_path / "a.weights"
    with zipfile.ZipFile(path, "w") as archive:
        for name, value in (("a/b", 0.0), ("w", 1.0), ("w", 2.0)):
            content = io.BytesIO()
            np.save(content, np.full(3, value, np.float32))
            archive.writestr(f"{name}.npy", content.getvalue())
    refused(path, "an archive with two arrays named 'w'")


def test_an_archive_that_unpacks_to_more_than_the_memory_is_refused(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", w=np.zeros(10_000))
    monkeypatch.setattr("ntkdiag.memory.host_memory", lambda: 10_000)
    assert (tmp_path / "a.npz").stat().st_size < 1000
    refused(tmp_path / "a.npz", "arrays of 80,128 bytes declared in its metadata")


# Files of Equinox with more than a module in them.


class Normed(eqx.Module):
    linear: eqx.nn.Linear
    norm: eqx.nn.BatchNorm

    def __init__(self, key):
        self.linear = eqx.nn.Linear(3, 2, key=key)
        self.norm = eqx.nn.BatchNorm(2, "batch", mode="batch")


def test_equinox_files_of_model_state_and_optimizer(tmp_path):
    model, state = eqx.nn.make_with_state(Normed)(jax.random.key(0))
    opt_state = stepped(ADAM, eqx.filter(model, eqx.is_inexact_array))
    layouts = {
        "model": (model, None, None),
        "(model, opt_state)": ((model, opt_state), None, opt_state),
        "(model, state)": ((model, state), state, None),
        "(model, state, opt_state)": ((model, state, opt_state), state, opt_state),
        "((model, state), opt_state)": (((model, state), opt_state), state, opt_state),
        "(model, opt_state, step)": ((model, opt_state, np.int32(3)), None, opt_state),
        "stateless": ((model, optax.sgd(0.1).init(None)), None, optax.sgd(0.1).init(None)),
    }
    for name, (saved, of_model, of_optimizer) in layouts.items():
        eqx.tree_serialise_leaves(tmp_path / "a.eqx", saved)
        # Other numbers in the same structure.
        skeleton = jax.tree.map(lambda leaf: leaf + 1 if eqx.is_array(leaf) else leaf, saved)
        contents = read_contents(tmp_path / "a.eqx", skeleton=skeleton)
        np.testing.assert_array_equal(contents.params.linear.weight, model.linear.weight)
        assert ("state" in contents.collections) == (of_model is not None), name
        assert (contents.optimizer_state is not None) == (of_optimizer is not None), name
        if of_optimizer is not None:
            assert_same(contents.optimizer_state, of_optimizer)
        if name != "model":
            parts = (
                "more arrays in the file than leaves in the model",
                "(model, opt_state) or (model, state)",
            )
            if jax.tree.leaves(saved[1]):
                refused(tmp_path / "a.eqx", *parts, error=StructureError, model=model)


def test_equinox_leaves_of_dtypes_that_numpy_does_not_name(tmp_path):
    for dtype in ("float8_e4m3fn", "bfloat16", "int4"):
        linear = eqx.nn.Linear(3, 2, key=jax.random.key(0))
        linear = jax.tree.map(lambda leaf, dtype=dtype: (8 * leaf).astype(dtype), linear)
        eqx.tree_serialise_leaves(tmp_path / "a.eqx", linear)
        got = load_params(tmp_path / "a.eqx", model=linear)
        assert_same(got.weight, np.asarray(linear.weight))
