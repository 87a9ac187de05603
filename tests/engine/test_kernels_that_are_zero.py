"""An f that no parameter reaches is told, from its trace; frozen parts of a network stay legal."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ntkdiag

X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
PARAMS = {"w": np.ones((3, 2), np.float32), "v": np.ones((2, 2), np.float32)}
CALLS = {
    "ntk": lambda f: ntkdiag.ntk(f, PARAMS, X).array,
    "plan": lambda f: 0 * ntkdiag.plan(f, PARAMS, X).flops,
    "jit": lambda f: jax.jit(lambda params: ntkdiag.ntk(f, params, X).array)(PARAMS),
    "NTKOperator": lambda f: ntkdiag.NTKOperator(f, PARAMS, X) @ np.ones(8, np.float32),
    "neural_tangents": lambda f: ntkdiag.neural_tangents.empirical_ntk_fn(f)(X, None, PARAMS),
}


def all_frozen(params, x):
    return jax.lax.stop_gradient(jnp.tanh(x @ params["w"]) @ params["v"])


def of_other_parameters(params, x):
    return jnp.tanh(x)[:, :2]


def rounded(params, x):
    return (x @ params["w"]).astype(jnp.int32).astype(jnp.float32)


def half_frozen(params, x):
    return jnp.tanh(x @ jax.lax.stop_gradient(params["w"])) @ params["v"]


def test_no_parameter_reaches_the_outputs():
    message = "no parameter reaches the outputs of f with a derivative, so that its kernel is exactly zero"
    rows = [(name, all_frozen) for name in CALLS]
    for name, f in [*rows, ("ntk", of_other_parameters), ("plan", rounded)]:
        with pytest.warns(UserWarning, match=message):
            assert not np.asarray(CALLS[name](f)).any(), name


def test_frozen_layers_are_no_fault():
    with warnings.catch_warnings(action="error"):
        for call in CALLS.values():
            call(half_frozen)
