"""Products whose factors are rounded, as accelerators do unless they are told otherwise."""

import jax
import jax.numpy as jnp
import numpy as np
from internals import roundoff_of_program

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


ROUNDED = [
    ("cpu", product, EPS),
    ("gpu", product, TF32),
    ("gpu", convolution, TF32),
    ("tpu", product, 2.0**-7),
    ("gpu", lambda w, x: jax.lax.scan(lambda c, _: (product(w, x), None), x @ w, length=2)[0], TF32),
    ("gpu", asking_for("highest"), EPS),
    ("gpu", asking_for(jax.lax.DotAlgorithmPreset.F32_F32_F32), EPS),
]  # fmt: skip


def test_the_roundoff_of_a_function_is_that_of_its_products(monkeypatch):
    for backend, f, expected in ROUNDED:
        monkeypatch.setattr(jax, "default_backend", lambda backend=backend: backend)
        assert roundoff_of(f, W, X) == expected, backend
