"""`in_training` is the function a training step differentiates."""

import dataclasses

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import models_contract
import numpy as np
import pytest
from flax import nnx
from internals import in_training
from reference import assert_close

from ntkdiag import errors
from ntkdiag.models import functionalize

N, D, H, C = 6, 3, 4, 2
RATE = 0.5


def batch(seed=0):
    x = np.random.default_rng(seed).standard_normal((N, D))
    return jnp.asarray(x + 0.5, jnp.result_type(float))


def moved(tree):
    """Parameters as later in training."""
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda leaf: leaf + 0.3 * rng.standard_normal(leaf.shape), tree)


class Residual(nn.Module):
    """One switch for everything."""

    rate: float = RATE

    @nn.compact
    def __call__(self, x, train=False):
        h = nn.Dense(H, param_dtype=x.dtype)(x)
        for _ in range(2):
            y = nn.BatchNorm(not train, momentum=0.9, param_dtype=x.dtype)(h)
            y = nn.Dropout(self.rate, deterministic=not train)(jnp.tanh(y))
            h = h + nn.Dense(H, param_dtype=x.dtype)(y)
        return nn.Dense(C, param_dtype=x.dtype)(h)


class Nnx(nnx.Module):
    def __init__(self, rate=RATE):
        rngs, dtype = nnx.Rngs(0), jnp.result_type(float)
        self.first = nnx.Linear(D, H, param_dtype=dtype, rngs=rngs)
        self.norm = nnx.BatchNorm(H, momentum=0.9, param_dtype=dtype, rngs=rngs)
        self.dropout = nnx.Dropout(rate, rngs=rngs)
        self.last = nnx.Linear(H, C, param_dtype=dtype, rngs=rngs)
        for statistic, value in ((self.norm.mean, 0.3), (self.norm.var, 2.0)):
            statistic.set_value(jnp.full(H, value, dtype))

    def __call__(self, x):
        return self.last(self.dropout(jnp.tanh(self.norm(self.first(x)))))


class Case:
    """A model as its library trains it, by hand, and as a Functional in evaluation."""

    def __init__(self, kind, **options):
        self.kind = kind
        make = getattr(self, f"_{kind.partition('-')[0]}")
        self.fn = make(kind.partition("-")[2], options)

    def _linen(self, kind, options):
        variables = Residual().init(jax.random.key(0), batch(), train=False)
        later = lambda leaf: jnp.asarray(2 * leaf + 0.3, jnp.result_type(float))
        statistics = jax.tree.map(later, variables["batch_stats"])
        self.held = {"batch_stats": statistics}
        return functionalize(Residual(), {**variables, **self.held}, **options)

    def _nnx(self, kind, options):
        return functionalize(Nnx(), **options)

    def _equinox(self, kind, options):
        self.mode = kind
        make = eqx.nn.make_with_state(models_contract.Equinox)
        module, state = make(jnp.result_type(float), kind)
        # Not the first step: some batches have been seen.
        for seed in range(3):
            _, state = self.equinox_step(module, state, batch(10 + seed))
        self.state = jax.tree.flatten(state)
        return functionalize(module, state=state, key=jax.random.key(3), **options)

    def equinox_step(self, module, state, x):
        module = eqx.tree_at(lambda module: module.dropout, module, eqx.nn.Dropout(0.0))
        call = jax.vmap(module, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
        return call(x, state)

    def trained(self, params, x):
        """Outputs in training without dropout."""
        if self.kind.startswith("linen"):
            net = Residual(rate=0.0)
            variables = {"params": params, **self.held}
            outputs, _ = net.apply(variables, x, train=True, mutable=["batch_stats"])
            return outputs
        if self.kind == "nnx":
            net = Nnx(rate=0.0)
            net.train()
            state = nnx.state(net, nnx.Param)
            nnx.replace_by_pure_dict(state, params)
            nnx.update(net, state)
            return net(x)
        outputs, _ = self.equinox_step(
            self.fn.restore(params), jax.tree.unflatten(self.state[1], self.state[0]), x
        )
        return outputs


KINDS = [
    "nnx",
    *(
        pytest.param(kind, marks=pytest.mark.slow)
        for kind in ("linen", "equinox-batch", "equinox-ema")
    ),
]


def gradient_of(f, params, x):
    """The gradient of one number in which all outputs count."""
    weights = jnp.arange(1.0, N * C + 1).reshape(N, C)
    objective = lambda params: jnp.sum(jnp.sin(f(params, x)) * weights)
    return jax.jit(jax.grad(objective))(params)


def assert_same_gradients(got, want):
    """Leaf by leaf; a bias that normalisation cancels has rounding for a gradient."""
    for leaf, expected in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(leaf, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_value_and_gradient_are_those_of_the_training_step(kind, x64):
    case = Case(kind)
    fn = in_training(case.fn)
    assert fn.joint
    assert fn.mode == "train, no dropout"
    assert jax.tree.structure(fn.params) == jax.tree.structure(case.fn.params)
    assert fn.fixed.keys() == case.fn.fixed.keys()
    x, f = batch(), jax.jit(fn.apply)
    for params in (case.fn.params, moved(case.fn.params)):
        want = jax.jit(lambda params, x: case.trained(params, x))(params, x)
        assert not np.allclose(case.fn(params, x), want, rtol=1e-2)
        for run in (fn.apply, f, fn.apply):
            assert_close(run(params, x), want)
        gradient = gradient_of(f, params, x)
        expected = gradient_of(lambda params, x: case.trained(params, x), params, x)
        assert_same_gradients(gradient, expected)


def test_a_functional_that_knows_no_modes_is_refused():
    other = dataclasses.replace(Case("nnx").fn, in_mode=None)
    with pytest.raises(errors.InvalidInputError, match='with mode="train"'):
        in_training(other)
