"""Critical learning rates and margins: against simulated optimizers, dense Gauss-Newton matrices."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntkdiag import Descent, Kernel, critical_learning_rate, stability_margin
from ntkdiag.errors import InvalidInputError
from ntkdiag.kernel import Convention
from ntkdiag.losses import MSE, CrossEntropy

N, C = 4, 3
RNG = np.random.default_rng(0)
JACOBIAN = RNG.normal(size=(N * C, 9))
MATRIX = JACOBIAN @ JACOBIAN.T
FULL = Kernel(MATRIX.reshape(N, C, N, C), Convention(reduction="full", n_outputs=C))
LOGITS = RNG.normal(size=(N, C))


@pytest.mark.smoke
def test_mse_formula_and_denominator():
    largest = np.linalg.eigvalsh(MATRIX)[-1]
    for kernel, loss, denominator in (
        (FULL, "mse", N),
        (FULL, MSE(denominator=N * C), N * C),
        (FULL.array, "mse", N),
        (MATRIX, MSE(denominator=N), N),
    ):
        np.testing.assert_allclose(
            critical_learning_rate(kernel, loss=loss), 2 * denominator / largest, rtol=1e-12
        )
    np.testing.assert_allclose(
        critical_learning_rate(MATRIX, loss="mse", outputs=LOGITS), 2 * N / largest, rtol=1e-12
    )
    np.testing.assert_allclose(
        stability_margin(FULL, 0.1, loss="mse"), 0.1 * largest / N / 2, rtol=1e-12
    )


def _losses(name):
    if name == "cross_entropy":
        return lambda f, y: -jax.nn.log_softmax(f)[y]
    return lambda f, y: jnp.sum(jax.nn.softplus(f)) - f[y]


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("loss", ["cross_entropy", "sigmoid_cross_entropy"])
def test_curvature_is_the_gauss_newton_matrix(loss):
    hessians = jax.vmap(jax.hessian(_losses(loss)))(
        jnp.asarray(LOGITS), jnp.arange(N) % C
    )  # [n o o]
    blocks = JACOBIAN.reshape(N, C, -1)
    gauss_newton = np.einsum("noP,nop,npQ->PQ", blocks, np.asarray(hessians), blocks) / N
    expected = 2 / np.linalg.eigvalsh(gauss_newton)[-1]
    for kernel in (FULL, FULL.array, MATRIX):
        np.testing.assert_allclose(
            critical_learning_rate(kernel, loss=loss, outputs=LOGITS), expected, rtol=1e-10
        )
    jitted = jax.jit(lambda k, f: stability_margin(k, 0.3, loss=loss, outputs=f))
    np.testing.assert_allclose(jitted(jnp.asarray(FULL.array), LOGITS), 0.3 / expected, rtol=1e-10)


def _simulate(curvatures, eta, beta, kind, decay):
    """Run the optimizer, as its authors write it, on a quadratic with these curvatures."""
    w, v = np.ones_like(curvatures), np.zeros_like(curvatures)
    for _ in range(4000):
        g = curvatures * w
        v = beta * v + ((1 - beta) * g if kind == "ema" else g)
        w = w - eta * (g + beta * v if kind == "nesterov" else v) - eta * decay * w
        if np.abs(w).max() > 1e6:
            return True
    return False


def test_training_diverges_exactly_above_margin_one():
    for beta, kind, decay in [
        (0.0, "heavy-ball", 0.0),
        (0.9, "heavy-ball", 0.4),
        (0.9, "nesterov", 0.0),
        (0.5, "nesterov", 0.4),
        (0.9, "ema", 0.4),
    ]:
        curvatures = np.linalg.eigvalsh(MATRIX / N)[-5:]
        rule = Descent(momentum=beta, kind=kind, weight_decay=decay)
        eta = float(critical_learning_rate(FULL, rule, loss="mse"))
        at_the_edge = dataclasses.replace(rule, learning_rate=eta)
        np.testing.assert_allclose(stability_margin(FULL, at_the_edge, loss="mse"), 1.0, rtol=1e-10)
        assert not _simulate(curvatures, 0.99 * eta, beta, kind, decay)
        assert _simulate(curvatures, 1.01 * eta, beta, kind, decay)


def test_reduced_kernels_are_refused():
    for outputs in ["mean", "trace"]:
        kernel = Kernel(np.eye(N), Convention(reduction=outputs, n_outputs=C))
        remedy = 'compute `ntk(..., reduction="full")` or a matrix-free lambda_max.'
        with pytest.raises(InvalidInputError, match=re.escape(remedy)):
            critical_learning_rate(kernel, loss="mse")
        with pytest.raises(InvalidInputError, match="lambda_max\\(reduced\\)"):
            stability_margin(kernel, 0.1, loss="mse")


@pytest.mark.usefixtures("x64")
def test_a_softmax_at_every_position():
    """Outputs [n t v] have a loss at each of the n t positions."""
    outputs = LOGITS.reshape(2, 2, C)
    kernel = Kernel(
        MATRIX.reshape(2, 2 * C, 2, 2 * C), Convention(reduction="full", n_outputs=2 * C)
    )
    np.testing.assert_allclose(
        critical_learning_rate(kernel, loss="cross_entropy", outputs=outputs),
        critical_learning_rate(FULL, loss="cross_entropy", outputs=LOGITS),
        rtol=1e-12,
    )
    per_example = critical_learning_rate(kernel, loss=CrossEntropy(denominator=2), outputs=outputs)
    np.testing.assert_allclose(
        2 * per_example, critical_learning_rate(FULL, loss="cross_entropy", outputs=LOGITS)
    )


def test_messages():
    for call, message in [
        (
            lambda: stability_margin(FULL, 0.1),
            'Pass loss="mse", "cross_entropy", "sigmoid_cross_entropy", an object of ntkdiag.losses,',
        ),
        (
            lambda: critical_learning_rate(MATRIX, loss="mse"),
            "Pass the Kernel that `ntk` returned, the array [n o n o], outputs or targets",
        ),
        (
            lambda: stability_margin(FULL, Descent(0.1, preconditioner=2.0), loss="mse"),
            "stability_margin(kernel, descent): expected the kernel J P^-1 J^T for a Descent with",
        ),
    ]:
        with pytest.raises(InvalidInputError, match=re.escape(message)):
            call()
