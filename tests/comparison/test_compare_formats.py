"""Sides that come from files of other formats than Orbax: the numbers are those of the same values in memory."""

import flax.linen as nn
import jax
import numpy as np
import pytest

from ntkdiag import compare, track

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
