"""The steps of the torch.func tutorial on a small network of its shape, in float64, against dense Jacobians."""

import functools

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import neural_tangents_oracle as oracle
import numpy as np
import pytest
from neural_tangents_oracle import normal
from thin import thin

from ntkdiag import neural_tangents as nt

AXES = {"full": ((), ()), "trace": ((-1,), ()), "diagonal": ((), (-1,))}
INDICES = {"full": "namb->nmab", "trace": "nama->nm", "diagonal": "nama->nma"}


class CNN(nn.Module):
    @nn.compact
    def __call__(self, x):
        for _ in range(2):
            x = nn.relu(nn.Conv(3, (2, 2), padding="VALID", param_dtype=jnp.float64)(x))
        return nn.Dense(4, param_dtype=jnp.float64)(
            nn.Conv(2, (2, 2), padding="VALID")(x).reshape(x.shape[0], -1)
        )


def flax():
    """f, parameters, and what turns a batch [n 5 5 3] into inputs."""
    net = CNN()
    params = net.init(jax.random.key(0), jnp.zeros((1, 5, 5, 3)))["params"]
    return lambda p, x: net.apply({"params": p}, x), params, lambda x: x


def equinox():
    """As `flax`; examples are channels first."""
    keys = jax.random.split(jax.random.key(0), 3)
    relu = eqx.nn.Lambda(jax.nn.relu)
    layers = [
        eqx.nn.Conv2d(3, 3, 2, key=keys[0]),
        relu,
        eqx.nn.Conv2d(3, 2, 2, key=keys[1]),
        eqx.nn.Lambda(jnp.ravel),
    ]
    net = eqx.nn.Sequential([*layers, eqx.nn.Linear(18, 4, key=keys[2])])
    params, static = eqx.partition(net, eqx.is_inexact_array)
    return (
        lambda p, x: jax.vmap(eqx.combine(p, static))(x),
        params,
        lambda x: jnp.moveaxis(x, -1, 1),
    )


@functools.cache
def problem(make, tree):
    """f, parameters, inputs, and their dense kernel."""
    f, params, inputs = make()
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), params)
    x1, x2 = inputs(normal(4, 5, 5, 3)), inputs(normal(3, 5, 5, 3, seed=1))
    rows, columns = (oracle.jacobians(f, params, x, {}) for x in (x1, x2))
    full = oracle.full_kernels(rows, columns)[0, 0]
    if not tree:
        return f, params, x1, x2, full
    split = lambda x: {"half": x / 2, "rest": [x / 4, x / 4]}
    return lambda p, x: f(p, x["half"] + sum(x["rest"])), params, split(x1), split(x2), full


@pytest.mark.long
@pytest.mark.parametrize("make", thin([flax, equinox]))
@pytest.mark.parametrize("implementation", thin([0, 1, 2], keep=3))
@pytest.mark.parametrize("compute", thin(AXES))
def test_tutorial(make, implementation, compute, x64):
    f, params, x1, x2, full = problem(make, False)
    assert jax.tree.structure(params).num_leaves > 1
    found = nt.empirical_ntk_fn(f, *AXES[compute], 0, implementation)(x1, x2, params)
    wanted = np.einsum(INDICES[compute], full)
    oracle.assert_equal(
        found, wanted / 4 if compute == "trace" else wanted
    )  # a mean here, a sum there


@pytest.mark.slow
@pytest.mark.parametrize("make", thin([flax, equinox]))
@pytest.mark.parametrize("implementation", [1, 2])
def test_inputs_that_are_a_tree(make, implementation, x64):
    f, params, x1, x2, full = problem(make, True)
    found = nt.empirical_ntk_fn(f, (), vmap_axes=0, implementation=implementation)(x1, x2, params)
    oracle.assert_equal(found, np.einsum(INDICES["full"], full))
