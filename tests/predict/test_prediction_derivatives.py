"""Closed-form predictions are differentiable by the kernel, whatever its eigenvalues."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntkdiag import predict

ROWS, WEIGHTS, CHANGE = (
    np.random.default_rng(4).normal(size=shape) for shape in ((12, 4), (4, 5), (4, 5))
)


def _with_deficient_rank(t):
    """9 rows of rank 5."""
    rows = jnp.sin(ROWS @ (WEIGHTS + t * CHANGE))
    return rows[:9] @ rows[:9].T, rows[9:] @ rows[:9].T


def _with_coinciding_eigenvalues(t):
    """K kron I_3, with a change that couples the copies."""
    train, test = (jnp.kron(part, jnp.eye(3)) for part in _with_deficient_rank(0.0))
    draw = np.random.default_rng(5).normal(size=(27, 27))
    return train + 0.1 * jnp.eye(27) + t * (draw + draw.T), test


LAWS = {
    "flow": lambda k, y, **o: predict.gradient_flow(k, y, [0.0, 0.3, 30.0], **o),
    "descent to its end": lambda k, y, **o: predict.gradient_descent(k, y, 0.5, np.inf, **o),
    "descent": lambda k, y, **o: predict.gradient_descent(k, y, 0.02, [3, 40], ridge=0.1, **o),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("law", "kernels"),
    [
        ("flow", _with_deficient_rank),
        pytest.param("descent to its end", _with_deficient_rank, marks=pytest.mark.slow),
        pytest.param("descent", _with_coinciding_eigenvalues, marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore:.*above the critical")
def test_derivatives_by_the_kernel(law, kernels):
    y = np.random.default_rng(6).normal(size=(len(kernels(0.0)[0]), 1))

    def number(t):
        train, test = kernels(t)
        found = LAWS[law](train, y, kernel_test=test)
        return sum(jnp.sum(jnp.sin(part)) for part in jax.tree.leaves(found)[:4] if jnp.ndim(part))

    h, run = 1e-5, jax.jit(number)
    want = (run(h) - run(-h)) / (2 * h)
    assert abs(want) > 1e-3
    np.testing.assert_allclose(jax.jit(jax.grad(number))(0.0), want, rtol=1e-5)


@pytest.mark.slow
def test_derivatives_in_float32_of_a_decaying_spectrum():
    """Eigenvalues over eight decades, many of them below the noise floor and many nearly equal."""
    rng = np.random.default_rng(7)
    basis = np.linalg.qr(rng.normal(size=(40, 40)))[0]
    rows, y = basis * 10.0 ** -np.linspace(0, 4, 40), rng.normal(size=(40, 1))
    rows[:, 20:30] *= (
        rows[0, 20] / rows[0, 20:30] * basis[0, 20:30] / basis[0, 20]
    )  # ten equal ones
    change = rng.normal(size=(40, 40)) @ rows * 0.1

    def slope(dtype, time):
        j, d = (jnp.asarray(part, dtype) for part in (rows, change))
        kernel = lambda t: (j + t * d) @ (j + t * d).T
        number = lambda t: jnp.sum(
            jnp.sin(predict.gradient_flow(kernel(t), y.astype(dtype), time).train)
        )
        return jax.jit(jax.grad(number))(jnp.zeros((), dtype))

    for time in (40.0, 4e4):
        with jax.enable_x64(True):
            exact = float(slope(np.float64, time))
        np.testing.assert_allclose(slope(np.float32, time), exact, rtol=1e-3)
