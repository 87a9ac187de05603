"""Critical learning rates and margins: against simulated optimizers, dense Gauss-Newton matrices, exact catapults."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntkdiag.analysis import critical_learning_rate, stability_margin, stability_threshold
from ntkdiag.errors import InvalidInputError
from ntkdiag.kernels import Convention, Kernel

N, C = 4, 3
RNG = np.random.default_rng(0)
JACOBIAN = RNG.normal(size=(N * C, 9))
MATRIX = JACOBIAN @ JACOBIAN.T
FULL = Kernel(MATRIX.reshape(N, C, N, C), Convention(outputs="full", n_outputs=C))
LOGITS = RNG.normal(size=(N, C))


def test_mse_formula_and_denominator():
    largest = np.linalg.eigvalsh(MATRIX)[-1]
    np.testing.assert_allclose(critical_learning_rate(FULL), 2 * N / largest, rtol=1e-12)
    np.testing.assert_allclose(critical_learning_rate(FULL, loss_denominator=N * C), 2 * N * C / largest, rtol=1e-12)
    np.testing.assert_allclose(critical_learning_rate(FULL.array), 2 * N / largest, rtol=1e-12)
    np.testing.assert_allclose(critical_learning_rate(MATRIX, loss_denominator=N), 2 * N / largest, rtol=1e-12)
    np.testing.assert_allclose(stability_margin(FULL, 0.1), 0.1 * largest / N / 2, rtol=1e-12)


def _losses(name):
    if name == "cross_entropy":
        return lambda f, y: -jax.nn.log_softmax(f)[y]
    return lambda f, y: jnp.sum(jax.nn.softplus(f)) - f[y]


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("loss", ["cross_entropy", "sigmoid_cross_entropy"])
def test_curvature_is_the_gauss_newton_matrix(loss):
    hessians = jax.vmap(jax.hessian(_losses(loss)))(jnp.asarray(LOGITS), jnp.arange(N) % C)  # [n o o]
    blocks = JACOBIAN.reshape(N, C, -1)
    gauss_newton = np.einsum("noP,nop,npQ->PQ", blocks, np.asarray(hessians), blocks) / N
    expected = 2 / np.linalg.eigvalsh(gauss_newton)[-1]
    for kernel in (FULL, FULL.array, MATRIX):
        np.testing.assert_allclose(critical_learning_rate(kernel, loss=loss, logits=LOGITS), expected, rtol=1e-10)
    jitted = jax.jit(lambda k, f: stability_margin(k, 0.3, loss=loss, logits=f))
    np.testing.assert_allclose(jitted(jnp.asarray(FULL.array), LOGITS), 0.3 / expected, rtol=1e-10)


def test_saturated_softmax_has_no_curvature():
    logits = np.array([[2000.0, 0.0, 0.0]] * N)
    assert critical_learning_rate(FULL, loss="cross_entropy", logits=logits) == np.inf
    assert stability_margin(FULL, 1.0, loss="cross_entropy", logits=logits) == 0.0


def _simulate(curvatures, eta, beta, kind, decay, steps=4000):
    """Run the optimizer, as its authors write it, on a quadratic with these curvatures."""
    w, v = np.ones_like(curvatures), np.zeros_like(curvatures)
    for _ in range(steps):
        g = curvatures * w
        v = beta * v + ((1 - beta) * g if kind == "ema" else g)
        w = w - eta * (g + beta * v if kind == "nesterov" else v) - eta * decay * w
        if np.abs(w).max() > 1e6:
            return True
    return False


@pytest.mark.parametrize("decay", [0.0, 0.4])
@pytest.mark.parametrize(
    ("beta", "kind"),
    [(0.0, "heavy-ball"), (0.9, "heavy-ball"), (0.5, "heavy-ball"), (0.9, "nesterov"), (0.5, "nesterov"), (0.9, "ema")],
)
def test_training_diverges_exactly_above_margin_one(beta, kind, decay):
    curvatures = np.linalg.eigvalsh(MATRIX / N)[-5:]
    options = {"momentum": beta, "momentum_kind": kind, "weight_decay": decay}
    eta = float(critical_learning_rate(FULL, **options))
    np.testing.assert_allclose(stability_margin(FULL, eta, **options), 1.0, rtol=1e-10)
    assert not _simulate(curvatures, 0.99 * eta, beta, kind, decay)
    assert _simulate(curvatures, 1.01 * eta, beta, kind, decay)


def test_thresholds():
    assert stability_threshold() == 2.0
    assert stability_threshold(0.9) == pytest.approx(3.8)
    assert stability_threshold(0.9, "nesterov") == pytest.approx(3.8 / 2.8)
    assert stability_threshold(0.9, "ema") == pytest.approx(38.0)


def _catapult(ratio):
    """Gradient descent on f = v u / sqrt(n), L = f^2 / 2, at ratio / lambda_0: |f| over time, final eta lambda."""
    rng = np.random.default_rng(0)
    n = 512
    u, v = rng.normal(size=n), rng.normal(size=n)
    lam = (u @ u + v @ v) / n
    kernel = Kernel(np.array([[lam]]), Convention())
    eta = ratio / 2 * float(critical_learning_rate(kernel))
    f, sizes = v @ u / np.sqrt(n), []
    for _ in range(4000):
        sizes.append(abs(f))
        f_new, lam_new = f * (1 - eta * lam + eta**2 * f**2 / n), lam + eta * f**2 / n * (eta * lam - 4)
        u, v = u - eta * f * v / np.sqrt(n), v - eta * f * u / np.sqrt(n)
        f, lam = v @ u / np.sqrt(n), (u @ u + v @ v) / n
        if not np.isfinite(f) or abs(f) > 1e6:
            return sizes, np.inf
        np.testing.assert_allclose([f, lam], [f_new, lam_new], atol=1e-10)
    return sizes, eta * lam


@pytest.mark.parametrize(("ratio", "peak", "final"), [(2.5, 7.1, 1.274), (3.0, 12.1, 0.244), (3.9, 19.1, 0.493)])
def test_above_critical_the_loss_grows_first_and_ends_below_critical(ratio, peak, final):
    sizes, eta_lambda = _catapult(ratio)
    assert max(sizes) / sizes[0] == pytest.approx(peak, rel=0.01)
    assert eta_lambda == pytest.approx(final, rel=0.01)
    assert sizes[-1] < 1e-6


@pytest.mark.parametrize("ratio", [1.5, 1.9])
def test_below_critical_the_loss_falls_monotonically(ratio):
    sizes, _ = _catapult(ratio)
    assert np.all(np.diff(sizes) <= 0)


def test_far_above_critical_diverges():
    assert _catapult(4.1)[1] == np.inf


def test_a_reduced_kernel_understates_the_largest_eigenvalue():
    mean = np.einsum("nomo->nm", FULL.array) / C
    assert np.linalg.eigvalsh(mean)[-1] < np.linalg.eigvalsh(MATRIX)[-1]


@pytest.mark.parametrize("outputs", ["mean", "trace", "sum-of-logits", "projection", "diagonal"])
def test_reduced_kernels_are_refused(outputs):
    kernel = Kernel(np.eye(N), Convention(outputs=outputs, n_outputs=C))
    message = (
        'critical_learning_rate(kernel): expected the full kernel (outputs="full") or that of a single output; got '
        f'outputs="{outputs}" of 3 outputs. lambda_max(reduced) <= lambda_max(full), up to the factor C of a trace, so '
        'the learning rate would be unsafe: compute `ntk(..., outputs="full")` or a matrix-free lambda_max.'
    )
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        critical_learning_rate(kernel)
    with pytest.raises(InvalidInputError, match="lambda_max\\(reduced\\)"):
        stability_margin(kernel, 0.1)


def test_reduced_kernels_of_one_output_are_full_kernels():
    kernel = Kernel(np.diag([2.0, 1.0]), Convention(outputs="mean", n_outputs=1))
    np.testing.assert_allclose(critical_learning_rate(kernel), 2.0, rtol=1e-14)


@pytest.mark.usefixtures("x64")
def test_works_under_jit_and_vmap():
    kernel = Kernel(jnp.asarray(FULL.array), FULL.convention)
    rates = jnp.array([0.1, 0.2])
    eager = [stability_margin(kernel, rate, momentum=0.9, weight_decay=0.1) for rate in (0.1, 0.2)]
    batch = jax.jit(jax.vmap(lambda rate: stability_margin(kernel, rate, momentum=0.9, weight_decay=0.1)))(rates)
    np.testing.assert_allclose(batch, eager, rtol=1e-12)
    traced = jax.jit(lambda b: critical_learning_rate(kernel, momentum=b))(0.9)
    np.testing.assert_allclose(traced, critical_learning_rate(kernel, momentum=0.9), rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: critical_learning_rate(MATRIX),
            "critical_learning_rate(kernel): expected `loss_denominator` beside a bare matrix, which does not say how "
            "many outputs an example has; got None. Pass the Kernel that `ntk` returned, the array [n o n o], or "
            "`loss_denominator=` (the number of examples for a mean loss).",
        ),
        (
            lambda: critical_learning_rate(FULL, loss="cross_entropy"),
            "critical_learning_rate(kernel): expected `logits` of shape [n o]: the curvature of cross-entropy depends "
            "on the outputs; got None. Pass `logits=f(params, x)` of the same examples as the kernel.",
        ),
        (
            lambda: critical_learning_rate(FULL, loss="cross_entropy", logits=np.ones((N, 2))),
            "critical_learning_rate(kernel): expected `logits` [n o] with n o = 12 rows of the kernel; got shape "
            "(4, 2). Pass the outputs of the same examples as the kernel, and the full kernel.",
        ),
        (
            lambda: critical_learning_rate(MATRIX, loss="cross_entropy", logits=np.float32(1)),
            "expected `logits` [n o] with n o = 12 rows of the kernel; got shape ().",
        ),
        (
            lambda: critical_learning_rate(MATRIX, loss="cross_entropy", logits=np.ones((5, 2))),
            "expected `logits` [n o] with n o = 12 rows of the kernel; got shape (5, 2).",
        ),
        (
            lambda: critical_learning_rate(FULL, loss="cross_entropy", logits=np.full((N, C), np.nan)),
            "critical_learning_rate(kernel): expected finite `logits`; got NaN or Inf. Look for overflow in the "
            "model's outputs.",
        ),
        (
            lambda: critical_learning_rate(np.eye(3), loss="cross_entropy", logits=np.ones((3, 1))),
            'critical_learning_rate(kernel): expected two or more logits for loss="cross_entropy"; got one (its softmax'
            ' is 1 and its curvature 0). Use loss="sigmoid_cross_entropy" for a single logit.',
        ),
        (
            lambda: critical_learning_rate(FULL, logits=LOGITS),
            'critical_learning_rate(kernel): expected no `logits` for loss="mse"; got logits. Did you mean '
            'loss="cross_entropy"?',
        ),
        (
            lambda: critical_learning_rate(FULL, loss="hinge", logits=LOGITS),
            'critical_learning_rate(kernel): expected `loss` "mse", "cross_entropy" or "sigmoid_cross_entropy"; got '
            "'hinge'. For another loss scale the kernel by Sigma^1/2 on both sides and use loss=\"mse\".",
        ),
        (
            lambda: stability_margin(FULL, -0.1),
            "stability_margin(kernel, learning_rate): expected a non-negative `learning_rate`; got -0.1. Its units "
            "stand in the docstring.",
        ),
        (
            lambda: stability_margin(FULL, 0.1, weight_decay=-1.0),
            "stability_margin(kernel, learning_rate): expected a non-negative `weight_decay`; got -1.0.",
        ),
        (
            lambda: stability_margin(FULL, 0.1, loss_denominator=0),
            "stability_margin(kernel, learning_rate): expected a positive `loss_denominator`; got 0.",
        ),
        (
            lambda: stability_margin(FULL, 0.1, momentum=1.0),
            "stability_threshold(momentum, momentum_kind): expected `momentum` in [0, 1); got 1.0. Pass the "
            "optimizer's beta (Adam: b1).",
        ),
        (
            lambda: stability_margin(FULL, 0.1, momentum_kind="adam"),
            'stability_threshold(momentum, momentum_kind): expected `momentum_kind` "heavy-ball", "nesterov" or '
            "\"ema\"; got 'adam'. optax.sgd(momentum=...) is heavy-ball, with nesterov=True nesterov; Adam is ema.",
        ),
    ],
)
def test_messages(call, message):
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        call()
