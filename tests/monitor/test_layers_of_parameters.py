"""Which parts of the parameters are layers: leaves, and slices of leaves that a scan takes apart."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from internals import layers_in

import ntkdiag

X = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
OF_BLOCKS = [f"blocks/layer/kernel[{i}]" for i in range(3)]


class LinenBlock(nn.Module):
    @nn.compact
    def __call__(self, h, _):
        return h + nn.tanh(nn.Dense(4, use_bias=False, name="layer")(h)), None


class LinenStack(nn.Module):
    axis: int

    @nn.compact
    def __call__(self, x):
        blocks = nn.scan(
            nn.remat(LinenBlock),
            variable_axes={"params": self.axis},
            split_rngs={"params": True},
            length=3,
        )
        h, _ = blocks(name="blocks")(x, None)
        return nn.Dense(2, use_bias=False, name="out")(h)


def linen(axis):
    model = LinenStack(axis)
    params = model.init(jax.random.key(0), X)["params"]
    return lambda params, x: model.apply({"params": params}, x), params


class EquinoxStack(eqx.Module):
    blocks: dict
    out: dict

    def __call__(self, x):
        @jax.checkpoint
        def block(h, kernel):
            return h + jnp.tanh(h @ kernel), None

        h, _ = jax.lax.scan(block, x, self.blocks["layer"]["kernel"])
        return h @ self.out["kernel"]


def equinox(axis):
    assert axis == 0
    rng = np.random.default_rng(1)
    kernels = [jnp.asarray(rng.normal(size=size), jnp.float32) for size in ((3, 4, 4), (4, 2))]
    model = EquinoxStack({"layer": {"kernel": kernels[0]}}, {"kernel": kernels[1]})
    return lambda params, x: jax.vmap(params)(x), model


@pytest.mark.parametrize(("library", "axis"), [(linen, 1), (equinox, 0)])
def test_layers_of_a_scan_are_told_apart(library, axis):
    f, params = library(axis)
    layers = layers_in(jax.make_jaxpr(f)(params, X), params)
    assert layers.names == (*OF_BLOCKS, "out/kernel")
    assert layers.stacked == (axis, None)

    stacked, last = (np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(params))
    expected = [np.linalg.norm(np.take(stacked, i, axis)) for i in range(3)]
    expected.append(np.linalg.norm(last))
    np.testing.assert_allclose(layers.sums_of_squares(params), np.square(expected), rtol=1e-6)


def test_norms_of_gradient_and_parameters():
    f, params = linen(1)
    gradient = jax.tree.map(lambda leaf: 2 * leaf, params)
    y = np.zeros((len(X), 2), np.float32)
    measured = ntkdiag.monitor.measure(f, train=(X, y), loss="mse", instruments="norms")
    numbers = measured(params, gradient=gradient)
    layers = layers_in(jax.make_jaxpr(f)(params, X), params)
    norms = np.sqrt(layers.sums_of_squares(params))
    for name, norm in zip(layers.names, norms, strict=True):
        np.testing.assert_allclose(numbers[f"layer_parameter/{name}"], norm, rtol=1e-6)
        np.testing.assert_allclose(numbers[f"layer_gradient/{name}"], 2 * norm, rtol=1e-6)
