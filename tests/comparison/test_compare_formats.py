"""Sides that come from files of other formats than Orbax: the numbers are those of the same values in memory."""

import equinox as eqx
import flax.linen as nn
import flax.serialization
import jax
import numpy as np
import pytest

from ntkdiag import compare, functionalize, track
from ntkdiag.errors import StructureError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(5, 3)).astype(np.float32)
Y = np.array([0, 1, 0, 1, 1])


class LinenNet(nn.Module):
    width: int = 4

    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(nn.tanh(nn.Dense(self.width)(x)))


NET = LinenNet()


def linen_params(seed, net=NET):
    return net.init(jax.random.key(seed), X)["params"]


def flat(tree):
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {".".join(key.key for key in path): np.asarray(leaf) for path, leaf in leaves}


@pytest.fixture(scope="module")
def in_memory():
    return compare(linen_params(0), linen_params(1), model=NET, train=(X, Y), loss="mse")


def assert_same_numbers(comparison, expected):
    assert comparison.a.params_sha256 == expected.a.params_sha256
    assert comparison.b.params_sha256 == expected.b.params_sha256
    np.testing.assert_allclose(comparison.drift.relative, expected.drift.relative, rtol=1e-5)
    np.testing.assert_allclose(comparison.prediction.e1, expected.prediction.e1, rtol=1e-5)


@pytest.mark.slow
def test_msgpack_of_a_linen_model(tmp_path, in_memory):
    for step in (0, 10):
        content = flax.serialization.to_bytes({"params": linen_params(step // 10)})
        (tmp_path / f"run_{step}.msgpack").write_bytes(content)
    options = {"model": NET, "train": (X, Y), "loss": "mse"}
    comparison = compare(tmp_path / "run_0.msgpack", f"{tmp_path}@10", **options)
    assert_same_numbers(comparison, in_memory)
    assert comparison.b.label == "step 10"

    # A root of such files is tracked like any other, and so is a list of them.
    tracked = track(tmp_path, **options)
    assert tracked.steps == [0, 10]
    np.testing.assert_allclose(tracked.series("drift")[1], in_memory.drift.relative, rtol=1e-5)
    listed = track({step: tmp_path / f"run_{step}.msgpack" for step in (0, 10)}, **options)
    assert listed.steps == [0, 10]
    assert listed.series("trace").tolist() == tracked.series("trace").tolist()


def test_safetensors_of_a_linen_model(tmp_path, in_memory):
    save_file = pytest.importorskip("safetensors.numpy").save_file
    save_file(flat(linen_params(0)), tmp_path / "a.safetensors")
    save_file(flat({"params": linen_params(1)}), tmp_path / "b.safetensors")
    options = {"model": NET, "train": (X, Y), "loss": "mse"}
    comparison = compare(tmp_path / "a.safetensors", tmp_path / "b.safetensors", **options)
    assert_same_numbers(comparison, in_memory)

    # Names and layout of another library.
    arrays = {}
    for name, array in flat(linen_params(1)).items():
        name = name.replace("Dense_", "model.layers.").replace("kernel", "weight")
        arrays[name] = np.ascontiguousarray(array.T)
    save_file(arrays, tmp_path / "torch.safetensors")

    def from_torch(name, array):
        path = name.replace("model.layers.", "Dense_").replace("weight", "kernel")
        return path.replace(".", "/"), array.T

    options["parameter_names"] = from_torch
    comparison = compare(linen_params(0), tmp_path / "torch.safetensors", **options)
    assert_same_numbers(comparison, in_memory)
    tracked = track({0: linen_params(0), 9: tmp_path / "torch.safetensors"}, **options)
    np.testing.assert_allclose(tracked.series("drift")[1], in_memory.drift.relative, rtol=1e-5)


def test_every_difference_of_safetensors_is_listed(tmp_path):
    save_file = pytest.importorskip("safetensors.numpy").save_file
    save_file(flat(linen_params(0, LinenNet(5))), tmp_path / "b.safetensors")
    with pytest.raises(StructureError) as caught:
        compare(linen_params(0), tmp_path / "b.safetensors", model=NET, train=(X, Y))
    for part in (
        "got 3 differences",
        "Dense_0/kernel: expected float32[4, 2], got float32[5, 2]",
        "Dense_1/bias: expected float32[4], got float32[5]",
        "Dense_1/kernel: expected float32[3, 4], got float32[3, 5]",
    ):
        assert part in str(caught.value)


def equinox_mlp(seed, width=4):
    return eqx.nn.MLP(3, 2, width, 1, key=jax.random.key(seed))


@pytest.mark.slow
def test_leaves_of_an_equinox_model(tmp_path):
    for step in (0, 10):
        eqx.tree_serialise_leaves(tmp_path / f"{step}.eqx", equinox_mlp(step // 10))
    options = {"train": (X, Y), "loss": "mse"}
    expected = compare(equinox_mlp(0), equinox_mlp(1), **options)
    for model in (equinox_mlp(7), functionalize(equinox_mlp(7))):
        comparison = compare(f"{tmp_path}@0", f"{tmp_path}@10", model=model, **options)
        assert_same_numbers(comparison, expected)
    tracked = track(tmp_path, model=equinox_mlp(7), **options)
    np.testing.assert_allclose(tracked.series("drift")[1], expected.drift.relative, rtol=1e-5)
    with pytest.raises(StructureError, match=r"3 differences: layers/0/weight: expected"):
        compare(f"{tmp_path}@0", f"{tmp_path}@10", model=equinox_mlp(7, width=6), **options)


@pytest.mark.slow
def test_leaves_and_state_of_an_equinox_model(tmp_path):
    norm = eqx.nn.make_with_state(eqx.nn.BatchNorm)
    model, state = norm(3, "batch", mode="batch")

    def moved(tree, by):
        return jax.tree.map(lambda leaf: leaf + by if eqx.is_inexact_array(leaf) else leaf, tree)

    first, second = (moved(model, 0.1), moved(state, 0.2)), (moved(model, 0.4), moved(state, 0.3))
    eqx.tree_serialise_leaves(tmp_path / "0.eqx", first)
    eqx.tree_serialise_leaves(tmp_path / "1.eqx", second)
    options = {"model": (model, state), "train": (X, None)}
    expected = compare(first, second, **options)
    assert expected.fixed_arrays is not None
    assert_same_numbers(compare(tmp_path / "0.eqx", tmp_path / "1.eqx", **options), expected)
    tracked = track(tmp_path, **options)
    np.testing.assert_allclose(
        tracked.series("trace"), [expected.a.trace, expected.b.trace], rtol=1e-5
    )
