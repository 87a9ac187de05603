"""What the compatible calls refuse, and the remedy that they name."""

import re

import jax.numpy as jnp
import numpy as np
import pytest
from internals import _warn_about_switches

import ntkdiag
from ntkdiag import errors
from ntkdiag import neural_tangents as nt
from ntkdiag.neural_tangents import predict

X = np.ones((3, 4), np.float32)
Z = np.ones((2, 4), np.float32)
W = np.ones((4, 2), np.float32)


def f(params, x, **_):
    return x @ params


def ntk(f=f, *arguments, x1=X, x2=None, params=W, **options):
    return nt.empirical_ntk_fn(f, *arguments, **options)(x1, x2, params)


def batch_norm(params, x):
    h = x @ params
    return (h - h.mean(0)) / jnp.sqrt(h.var(0) + 1.0)


CALLS = {
    "axes in both": (lambda: ntk(diagonal_axes=(1,)), "a diagonal one appears once: choose."),
    "axes of different lengths": (
        lambda: ntk(f, (), (0,), x2=Z),
        "Only axes that x1 and x2 share can be traced or diagonal.",
    ),
    "axes out of range": (
        lambda: ntk(lambda p, x: {"a": f(p, x)}, (2,)),
        "`trace_axes` among the 2 axes of the output at ['a'] of shape (3, 2); got axis 2. "
        "Pass trace_axes=() to leave all axes as they are.",
    ),
    "vmap_axes, aggregated": (
        lambda: ntk(lambda p, x: f(p, x).sum(0, keepdims=True), vmap_axes=0),
        "Do not reduce over examples inside f.",
    ),
    "variables of Flax": (
        lambda: ntk(lambda p, x: x @ p["params"], params={"params": W, "batch_stats": W}),
        "or use ntkdiag.functionalize(model, variables)",
    ),
    "nngp": (
        lambda: nt.empirical_nngp_fn(f)(X[0], None, W),
        "nngp_fn(x1, x2, params): expected an output axis",
    ),
}


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize(
    ("call", "message"), [pytest.param(*row, id=name) for name, row in CALLS.items()]
)
def test_calls(call, message):
    with pytest.raises(errors.InvalidInputError, match=re.escape(message)):
        call()


def test_examples_that_interact():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    with pytest.raises(errors.ExamplesInteractError) as caught:
        ntk(batch_norm, x1=x, vmap_axes=0)
    assert "got outputs that change by 1.2 (scale 0)" in str(caught.value)
    assert "or pass vmap_axes=None, which differentiates the batch as a whole" in str(caught.value)


def test_batch_of_an_unknown_function():
    with pytest.raises(errors.UnsupportedModelError, match="wrap f, not the kernel"):
        nt.batch(lambda x1, x2, params: x1 @ x1.T, 2)


def test_switches_warn_once():
    _warn_about_switches.cache_clear()
    with pytest.warns(
        UserWarning,
        match="^_j_rules, _s_rules and _fwd switched internals of neural-tangents; the tangent ",
    ):
        nt.empirical_ntk_fn(f, _j_rules=False)
    nt.empirical_kernel_fn(f, _s_rules=True, _fwd=False)  # warnings are errors here


K = np.eye(3, dtype=np.float32)
Y = np.ones((3, 1), np.float32)


def squared(f, y):
    return ((f - y) ** 2).sum()


def mse(*arguments, k=K, **options):
    return predict.gradient_descent_mse(k, Y, **options)(*arguments)


def flow(*arguments, loss=squared, **options):
    return predict.gradient_descent(loss, K, Y, **options)(*arguments)


PREDICT = {
    "kernel and targets": (
        lambda: mse(trace_axes=()),
        "Pass the trace_axes that the kernel was computed with.",
    ),
    "negative eigenvalues": (lambda: mse(k=-K), "got 3 eigenvalues below minus the noise floor"),
    "loss": (lambda: flow(loss=lambda f, y: (f - y) ** 2), "Sum or average in it."),
    "a Kernel": (
        lambda: predict.max_learning_rate(ntkdiag.ntk(f, W, X), 6),
        "Compute it by nt.empirical_ntk_fn.",
    ),
}


@pytest.mark.parametrize(
    ("call", "message"), [pytest.param(*row, id=name) for name, row in PREDICT.items()]
)
def test_predict(call, message):
    with pytest.raises(errors.InvalidInputError, match=re.escape(message)):
        call()
