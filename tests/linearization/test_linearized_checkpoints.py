"""Linearized models in either coordinates, at other checkpoints, in the last layer, through Orbax and back."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from orbax.checkpoint import v1 as orbax

from ntkdiag import functionalize, taylor_expand
from ntkdiag.errors import InvalidInputError, StructureError
from ntkdiag.linearization import last_layer, linearize, linearized_model

N, D, C = 5, 3, 2
X = np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)
LINEN = nn.Sequential([nn.Dense(6), jnp.tanh, nn.Dense(C)])


class NNX(nnx.Module):
    def __init__(self, rngs):
        self.hidden, self.out = nnx.Linear(D, 6, rngs=rngs), nnx.Linear(6, C, rngs=rngs)

    def __call__(self, x):
        return self.out(jnp.tanh(self.hidden(x)))


class Library:
    """One network of one library, and what a user of that library does with its linearization."""

    def __init__(self, name):
        self.name = name
        if name == "linen":
            self.model, self.variables = LINEN, jax.jit(LINEN.init)(jax.random.key(0), X)
        else:
            eqx_model = lambda: eqx.nn.MLP(D, C, 6, 1, activation=jnp.tanh, key=jax.random.key(0))
            self.model, self.variables = NNX(nnx.Rngs(0)) if name == "nnx" else eqx_model(), None
        self.functional = functionalize(self.model, self.variables)

    def linearized(self, **options):
        return linearized_model(self.model, self.variables, **options)

    def outputs(self, lin):
        if self.name == "linen":
            return lin.apply(lin.init(jax.random.key(0), X), X)
        return lin(X) if self.name == "nnx" else jax.vmap(lin)(X)

    def state(self, lin):
        """What is saved to a checkpoint."""
        if self.name == "linen":
            return lin.init(jax.random.key(0), X)
        return (
            nnx.to_pure_dict(nnx.state(lin, nnx.Param))
            if self.name == "nnx"
            else eqx.filter(lin, eqx.is_array)
        )

    def with_state(self, lin, state):
        """The model with a restored state, as a function of the batch, and the network with its parameters."""
        if self.name == "linen":
            return lambda x: lin.apply(state, x), lambda: lin.network(state)
        if self.name == "nnx":
            target = nnx.state(lin, nnx.Param)
            nnx.replace_by_pure_dict(target, state)
            nnx.update(lin, target)
            return lin, lin.network
        lin = eqx.combine(jax.tree.map(jnp.asarray, state), lin)
        return jax.vmap(lin), lin.network


@pytest.fixture(
    scope="module",
    params=["linen", *[pytest.param(name, marks=pytest.mark.slow) for name in ("nnx", "equinox")]],
)
def library(request):
    return Library(request.param)


def _other(functional):
    """Parameters of a later checkpoint."""
    return jax.tree.map(lambda p: p + 0.1 * jnp.cos(9 * p), functional.params)


@pytest.mark.slow
def test_post_hoc_linearization(library):
    f, a = library.functional
    b = _other(library.functional)
    expected = jax.jit(linearize(f, a))(b, X)
    lin = library.linearized(start=b)
    np.testing.assert_allclose(library.outputs(lin), expected, rtol=1e-5, atol=1e-6)
    there = library.linearized(at=b)
    np.testing.assert_allclose(library.outputs(there), f(b, X), rtol=1e-5, atol=1e-6)
    back = library.linearized(at=library.functional.restore(b), start=a, degree=2)
    expected = jax.jit(taylor_expand(f, b, 2))(a, X)
    np.testing.assert_allclose(library.outputs(back), expected, rtol=1e-5, atol=1e-6)


def test_orbax_round_trip_and_conversion_back(library, tmp_path):
    f, params = library.functional
    lin = library.linearized()
    start = library.state(lin)
    moved = jax.tree.map(
        lambda leaf: leaf + 0.01 * np.arange(np.size(leaf)).reshape(leaf.shape).astype("f"), start
    )
    orbax.save(tmp_path / "lin", moved)
    restored = orbax.load(tmp_path / "lin", moved)
    call, network = library.with_state(lin, restored)
    p = jax.tree.map(
        lambda leaf: leaf + 0.01 * np.arange(leaf.size).reshape(leaf.shape).astype("f"), params
    )
    np.testing.assert_allclose(call(X), linearize(f, params)(p, X), rtol=1e-5, atol=1e-6)
    again = functionalize(LINEN, network()) if library.name == "linen" else functionalize(network())
    np.testing.assert_allclose(again(again.params, X), f(p, X), rtol=1e-5, atol=1e-6)


def test_last_layer_only(library):
    f, params = library.functional
    paths = last_layer(f, params, X)
    assert len(paths) == 2
    lin = library.linearized(trainable=paths)
    (shapes,) = ([leaf.shape for leaf in jax.tree.leaves(lin.expansion.functional.params)],)
    assert sorted(shapes) in ([(2,), (6, 2)], [(2,), (2, 6)])
    b = _other(library.functional)
    # Linear in the last layer: the linear model is the network with the features of A and the last layer of B.
    head = lin.expansion.functional
    shown = library.linearized(trainable=paths, start=b)
    np.testing.assert_allclose(
        library.outputs(shown), head(shown.expansion.start, X), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(library.outputs(lin), f(params, X), rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("wrong_types")
def test_messages():
    variables = jax.jit(LINEN.init)(jax.random.key(0), X)
    with pytest.raises(
        StructureError, match=re.escape("layers_0/bias: missing, expected float32[6]")
    ):
        linearized_model(
            LINEN, variables, at={"layers_0": variables["params"]["layers_0"]["kernel"]}
        )
    f = lambda p, x: x @ p
    message = (
        "expected no `start` for a function, which is handed its parameters in every call; got"
    )
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        linearized_model(f, jnp.ones((D, C)), start=jnp.ones((D, C)))
    message = (
        "last_layer(f, params, x): expected a network with a matrix product or convolution by a"
    )
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        last_layer(lambda p, x: x * p, jnp.ones(D), X)
