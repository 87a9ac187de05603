"""Models, selectors and the self-check under settings of JAX that forbid what is sloppy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

import ntkdiag
from ntkdiag.models import functionalize

X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
SETTINGS = {
    "jax_numpy_dtype_promotion": "strict",
    "jax_disable_jit": True,
    "jax_enable_x64": True,
}


@pytest.fixture(params=SETTINGS)
def setting(request):
    """One of the settings, for the time of a test."""
    before = getattr(jax.config, request.param)
    jax.config.update(request.param, SETTINGS[request.param])
    yield request.param
    jax.config.update(request.param, before)


def models():
    """One layer without a bias, which Flax itself adds by rank promotion."""
    linen = nn.Dense(2, use_bias=False)
    return {
        "linen": (linen, linen.init(jax.random.key(0), X)),
        "nnx": (nnx.Linear(3, 2, use_bias=False, rngs=nnx.Rngs(0)),),
        "equinox": (eqx.nn.Linear(3, 2, use_bias=False, key=jax.random.key(0)),),
        "plain": (lambda params, x: x @ params, jnp.ones((3, 2), jnp.float32)),
    }


@pytest.mark.slow
def test_every_library(setting):
    for library, model in models().items():
        fn = functionalize(*model)
        assert fn(fn.params, X).shape == (4, 2), library
    assert ntkdiag.selfcheck(*models()["plain"], X).ok
