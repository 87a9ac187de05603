"""Which parts of the parameters are layers: leaves, and slices of leaves that a scan takes apart."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from internals import layers_of
from jax.ad_checkpoint import checkpoint_name
from step_contexts import context_of

from ntkdiag.monitor import LayerNorms

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
    layers = layers_of(f, params, X)
    assert layers.names == (*OF_BLOCKS, "out/kernel")
    assert layers.stacked == (axis, None)

    stacked, last = (np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(params))
    expected = [np.linalg.norm(np.take(stacked, i, axis)) for i in range(3)]
    expected.append(np.linalg.norm(last))
    np.testing.assert_allclose(layers.sums_of_squares(params), np.square(expected), rtol=1e-6)


def scanned(kernels, x):
    return jax.lax.scan(lambda h, kernel: (jnp.tanh(h @ kernel), None), x, kernels)[0]


MOVES = {
    "cast": lambda kernels: kernels.astype(jnp.bfloat16).astype(jnp.float32),
    "copied": lambda kernels: jax.jit(jnp.copy)(kernels),
    "named": lambda kernels: checkpoint_name(kernels, "kernels"),
    "given an axis": lambda kernels: kernels[None][0],
}


# What is computed with, or whose axes are joined, before the scan is one layer.
COMPUTED = {
    "divided": (lambda kernels: kernels / jnp.linalg.norm(kernels), (3, 4, 4)),
    "joined": (lambda kernels: kernels.reshape(6, 4, 4), (3, 2, 4, 4)),
    "of more than 512 slices": (lambda kernels: kernels[:, :1, :1], (600, 4, 4)),
}


def test_leaves_are_followed_through_what_moves_axes():
    for name, move in MOVES.items():
        f = lambda p, x, move=move: scanned(move(p["k"]), x)
        assert layers_of(f, {"k": np.ones((3, 4, 4))}, X).names == ("k[0]", "k[1]", "k[2]"), name
    for name, (move, shape) in COMPUTED.items():
        x = X[:, :1] if name.startswith("of") else X
        f = lambda p, x, move=move: scanned(move(p["k"]), x)
        layers = layers_of(f, {"k": np.ones(shape)}, x)
        assert layers.names == ("k",), name
        np.testing.assert_allclose(layers.sums_of_squares({"k": np.ones(shape)}), [np.prod(shape)])


def test_leaves_are_followed_into_branches_and_loops_over_examples():
    def f(params, x):
        def of_example(example):
            return jax.lax.cond(
                example.sum() > 0, lambda: scanned(params["k"], example), lambda: 0 * example
            )

        return jax.lax.map(of_example, x)

    assert layers_of(f, {"k": np.ones((3, 4, 4))}, X).names == ("k[0]", "k[1]", "k[2]")


def many(groups, leaves):
    """Parameters of `groups` modules with `leaves` leaves each, all of them ones."""
    return {f"m{g}": {f"w{i}": np.ones(2) for i in range(leaves)} for g in range(groups)}


def summed(params, x):
    return x * sum(leaf.sum() for leaf in jax.tree.leaves(params))


def test_more_than_512_layers_are_joined():
    for groups, leaves, n_layers, first, square in [
        (2, 256, 512, "m0/w0", 2),
        (3, 200, 3, "m0", 400),
        (600, 1, 1, "all", 1200),
    ]:
        params = many(groups, leaves)
        layers = layers_of(summed, params, X)
        assert len(layers.names) == n_layers
        assert layers.names[0] == first
        np.testing.assert_allclose(layers.sums_of_squares(params), n_layers * [square])


def test_norms_of_gradient_update_and_parameters():
    f, params = linen(1)
    gradient = jax.tree.map(lambda leaf: 2 * leaf, params)
    update = jax.tree.map(lambda leaf: (-3 * leaf).astype(jnp.bfloat16), params)
    context = context_of(f, params, X, gradient=gradient, update=update)
    estimates, memory = LayerNorms().measure(context, ())
    norms = jnp.sqrt(layers_of(f, params, X).sums_of_squares(params))
    np.testing.assert_allclose(estimates["layer_parameter"].value, norms)
    np.testing.assert_allclose(estimates["layer_gradient"].value, 2 * norms, rtol=1e-6)
    np.testing.assert_allclose(estimates["layer_update"].value, 3 * norms, rtol=0.01)
    for estimate in estimates.values():
        assert estimate.is_exact
        assert estimate.value.dtype == jnp.float32
    assert memory == ()
    without, _ = LayerNorms().measure(context_of(f, params, X), ())
    assert without.keys() == {"layer_parameter", "parameter_norm"}
