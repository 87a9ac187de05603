"""Products whose factors are rounded, as accelerators do unless they are told otherwise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from internals import in_full_precision, roundoff_of_program

X = np.ones((2, 3), np.float32)
W = np.ones((3, 4), np.float32)
EPS = float(np.finfo(np.float32).eps)
TF32 = 2.0**-10


def roundoff_of(f, *arguments):
    return roundoff_of_program(jax.make_jaxpr(f)(*arguments))


def product(w, x):
    return x @ w


def convolution(w, x):
    return jax.lax.conv(x[:, :, None, None], w.T[:, :, None, None], (1, 1), "SAME")


def asking_for(precision):
    return lambda w, x: jnp.matmul(x, w, precision=precision)


@pytest.mark.parametrize(
    ("backend", "f", "expected"),
    [
        ("cpu", product, EPS),
        ("gpu", product, TF32),
        ("gpu", convolution, TF32),
        ("tpu", product, 2.0**-7),
        ("gpu", lambda w, x: jnp.tanh(x), EPS),
        ("gpu", lambda w, x: jax.lax.scan(lambda c, _: (product(w, x), None), x @ w, length=2)[0], TF32),
        ("gpu", asking_for("highest"), EPS),
        ("gpu", asking_for(jax.lax.DotAlgorithmPreset.F32_F32_F32), EPS),
        ("gpu", asking_for(jax.lax.DotAlgorithmPreset.TF32_TF32_F32), TF32),
        ("gpu", lambda w, x: product(w.astype(jnp.float16), x.astype(jnp.float16)), 2.0**-10),
    ],
)  # fmt: skip
def test_the_roundoff_of_a_function_is_that_of_its_products(monkeypatch, backend, f, expected):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    assert roundoff_of(f, W, X) == expected


def test_a_context_of_full_precision_counts(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with jax.default_matmul_precision("highest"):
        assert roundoff_of(product, W, X) == EPS
    assert roundoff_of(in_full_precision(product), W, X) == EPS


def test_products_of_float64_are_not_rounded(monkeypatch, x64):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert roundoff_of(product, W.astype(np.float64), X.astype(np.float64)) < EPS
