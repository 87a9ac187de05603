"""Dropout that stays on in eval mode, because its switch is where nobody looks, is refused by name."""

import dataclasses

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import ntkdiag
from ntkdiag.errors import InvalidInputError
from ntkdiag.models import functionalize


@dataclasses.dataclass(frozen=True)
class Config:
    """Where many models keep their switch."""

    deterministic: bool = False


class LinenNet(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(nn.Dropout(0.5, deterministic=self.config.deterministic)(x))


class NNXNet(nnx.Module):
    def __init__(self):
        self.dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
        self.head = nnx.Linear(3, 2, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.head(self.dropout(x, deterministic=False))


class EquinoxNet(eqx.Module):
    head: eqx.nn.Linear

    def __init__(self):
        self.head = eqx.nn.Linear(3, 2, key=jax.random.key(0))

    def __call__(self, x, *, key=None):
        return self.head(eqx.nn.Dropout(0.5)(x, key=key, inference=False))


MESSAGE = "got a model that draws random numbers"


def x_of(count):
    return jnp.asarray(np.random.default_rng(0).normal(size=(count, 3)), jnp.float32)


def linen():
    """A model that is handed keys, and its options."""
    variables = LinenNet(Config(True)).init(jax.random.key(0), x_of(1))
    return (LinenNet(Config()), variables), {"rngs": {"dropout": jax.random.key(1)}}


def of_nnx():
    return (NNXNet(),), {}


def of_equinox():
    return (EquinoxNet(),), {"key": jax.random.key(1)}


@pytest.mark.parametrize("make", [linen, of_nnx, of_equinox])
def test_dropout_that_stays_on_is_an_error_in_eval_mode(make):
    model, options = make()
    fn = functionalize(*model, **options)
    x = x_of(4)
    for call in (lambda: fn(fn.params, x), lambda: ntkdiag.ntk(*fn, x)):
        with pytest.raises(InvalidInputError, match=MESSAGE):
            call()


class AnotherName(nn.Module):
    @nn.compact
    def __call__(self, x, enable_dropout=True):
        return nn.Dropout(0.5, deterministic=not enable_dropout)(nn.Dense(2)(x))


def test_a_switch_of_another_name_goes_in_call_kwargs():
    x, rngs = x_of(4), {"dropout": jax.random.key(1)}
    variables = AnotherName().init(jax.random.key(0), x, enable_dropout=False)
    with pytest.raises(InvalidInputError, match="draws random numbers"):
        ntkdiag.ntk(*functionalize(AnotherName(), variables, rngs=rngs), x)
    off = {"enable_dropout": False}
    fn = functionalize(AnotherName(), variables, rngs=rngs, call_kwargs=off)
    np.testing.assert_allclose(fn(fn.params, x), AnotherName().apply(variables, x, **off))
