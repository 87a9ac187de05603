"""The margin of a sample with its error: against leaving out, redrawing and Jacobians by hand."""

import json
import re

import jax.numpy as jnp
import numpy as np
import pytest
import two_layers

import ntkdiag
from ntkdiag.analysis import sampled_margin
from ntkdiag.errors import InvalidInputError
from ntkdiag.losses import MSE
from ntkdiag.matrix_free import NTKOperator

N, D, W, C = 120, 4, 4, 2
RNG = np.random.default_rng(5)
# Inputs of different lengths: some examples contribute more than others.
X = (RNG.normal(size=(N, D)) * RNG.uniform(0.5, 2.0, size=(N, 1))).astype(np.float32)
PARAMS = {"a": RNG.normal(size=(D, W)).astype("f") / 3, "b": RNG.normal(size=(W, C)).astype("f")}
RULE = ntkdiag.Descent(0.3, momentum=0.9)


def net(params, x):
    return jnp.tanh(x @ params["a"]) @ params["b"]


def _jacobian():
    """[n c p] in float64."""
    parts = two_layers.jacobian(PARAMS["a"], PARAMS["b"], X)
    return np.concatenate(parts, axis=2)


def _softmax_hessians():
    """[n c c], diag(p) - p p^T of every example."""
    outputs = two_layers.outputs(PARAMS["a"], PARAMS["b"], X)
    p = np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True)
    return np.einsum("nc,cd->ncd", p, np.eye(C)) - np.einsum("nc,nd->ncd", p, p)


def _largest(per_example):
    """The largest eigenvalue of the mean of [n p p], and its vector."""
    values, vectors = np.linalg.eigh(per_example.mean(axis=0))
    return values[-1], vectors[:, -1]


@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
def test_the_error_is_that_of_leaving_examples_out(loss):
    J = _jacobian()
    hessians = np.broadcast_to(np.eye(C), (N, C, C)) if loss == "mse" else _softmax_hessians()
    of_examples = np.einsum("ncp,ncd,ndq->npq", J, hessians, J)  # J_i^T H_i J_i
    value, v = _largest(of_examples)
    found = sampled_margin(NTKOperator(net, PARAMS, X, batch_size=16), RULE, loss=loss)

    # eta h / tau, with tau = 2 (1 + 0.9).
    per_curvature = 0.3 / 3.8
    np.testing.assert_allclose(found.margin, per_curvature * value, rtol=1e-4)
    contributions = np.einsum("p,npq,q->n", v, of_examples, v)
    error = per_curvature * contributions.std(ddof=1) / N**0.5
    np.testing.assert_allclose(found.standard_error, error, rtol=1e-3)

    # The jackknife itself: every example left out once.
    left_out = np.array([_largest(np.delete(of_examples, i, axis=0))[0] for i in range(N)])
    jackknife = per_curvature * np.sqrt((N - 1) / N * ((left_out - left_out.mean()) ** 2).sum())
    # Where the second eigenvalue is near, as with the softmax here, first order is too careful.
    assert jackknife / 1.15 < found.standard_error < (1.15 if loss == "mse" else 1.5) * jackknife
    assert found.residual < 1e-5
    assert found.n_examples == N


def test_it_is_the_number_of_stability_margin():
    rule = ntkdiag.Descent(0.1, weight_decay=0.5, preconditioner=2.0)
    operator = NTKOperator(net, PARAMS, X, preconditioner=2.0)
    found = sampled_margin(operator, rule, loss="mse")
    expected = ntkdiag.stability_margin(operator, rule, loss="mse")
    np.testing.assert_allclose(found.margin, expected, rtol=1e-6)
    assert float(found) == found.margin
    # The decay has no error: without it all but the margin is the same.
    without = sampled_margin(operator, ntkdiag.Descent(0.1, preconditioner=2.0), loss="mse")
    np.testing.assert_allclose(found.margin - without.margin, 0.1 * 0.5 / 2, rtol=1e-5)
    assert found.standard_error == without.standard_error


def test_examples_that_are_all_alike_have_no_error():
    operator = NTKOperator(net, PARAMS, np.repeat(X[:1], 20, axis=0))
    found = sampled_margin(operator, 0.1, loss=MSE(denominator=20.0))
    assert found.standard_error < 1e-4 * found.margin


def test_one_example_that_makes_all_of_it():
    x = np.zeros((20, D), np.float32)
    x[3] = 10.0
    found = sampled_margin(NTKOperator(lambda w, x: x @ w, np.ones((D, 1)), x), 0.1, loss="mse")
    # One a_i is h and the others are zero: the error is h.
    np.testing.assert_allclose(found.standard_error, found.margin, rtol=1e-5)


def test_nothing_that_curves():
    operator = NTKOperator(lambda w, x: 0.0 * (x @ w), np.ones((D, 1)), X)
    found = sampled_margin(operator, 0.1, loss="mse")
    assert (found.margin, found.standard_error) == (0.0, 0.0)


def _scatter(params, f, x, n, loss, draws):
    """Samples of n examples with replacement: what was found in each."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(draws):
        chosen = x[rng.integers(0, len(x), n)]
        operator = NTKOperator(f, params, chosen, check=False)
        found.append(sampled_margin(operator, 0.1, loss=loss))
    return found


def test_the_error_is_the_scatter_of_redraws():
    found = _scatter(PARAMS, net, X, 64, "mse", draws=40)
    scatter = np.std([each.margin for each in found], ddof=1)
    claimed = np.mean([each.standard_error for each in found])
    # Of 40 draws a standard deviation is known to 11 %; three times that.
    np.testing.assert_allclose(claimed, scatter, rtol=0.35)


def test_what_it_shows_of_itself():
    found = sampled_margin(NTKOperator(net, PARAMS, X), 0.1, loss="mse")
    number = r"[0-9.e-]+"
    assert re.fullmatch(rf"SampledMargin\({number} \+- {number} of 120 examples\)", repr(found))
    content = json.loads(json.dumps(found.to_dict()))
    assert content["standard_error"] == found.standard_error
    assert found.products < 60


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: sampled_margin(NTKOperator(net, PARAMS, X[:5]), 0.1, loss="mse"),
            "expected 8 examples or more, from whose scatter the error comes; got 5. Take more "
            "examples, or stability_margin for the number alone.",
        ),
        (
            lambda: sampled_margin(np.eye(4), 0.1, loss="mse"),
            "expected `operator` as NTKOperator(f, params, x) of the training examples; got ndarray",
        ),
        (
            lambda: sampled_margin(NTKOperator(net, PARAMS, X), 0.1),
            "expected",
        ),
        (
            lambda: sampled_margin(NTKOperator(net, PARAMS, X), ntkdiag.Descent(), loss="mse"),
            "expected a learning rate in `descent`; got none.",
        ),
        (
            lambda: sampled_margin(
                NTKOperator(net, PARAMS, X), ntkdiag.Descent(0.1, preconditioner=2.0), loss="mse"
            ),
            "expected the kernel J P^-1 J^T beside a Descent with a preconditioner; got the kernel "
            "J J^T.",
        ),
    ],
)
def test_messages(call, message):
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        call()


def test_a_loss_that_is_not_convex_has_no_error_over_examples():
    operator = NTKOperator(net, PARAMS, X[:16])
    y = np.linspace(-1, 1, 16).astype(np.float32)
    loss = lambda f, y: jnp.mean(y * jnp.sum(f**2, axis=1))
    with pytest.raises(
        InvalidInputError, match="a loss that is convex in the outputs, whose examples each add"
    ):
        sampled_margin(operator, RULE, loss=loss, y=y)
    margin = ntkdiag.stability_margin(operator, RULE, loss=loss, y=y)
    kernel = np.asarray(ntkdiag.ntk(net, PARAMS, X[:16], reduction="full")).reshape(32, 32)
    largest = np.linalg.eigvals(np.repeat(2 * y / 16, C)[:, None] * kernel).real.max()
    np.testing.assert_allclose(margin, 0.3 * largest / 3.8, rtol=1e-4)


def test_weights_are_those_of_repeated_examples():
    """A weight of 2 is an example that comes twice, but for the error over examples, of which there are fewer."""
    weights = RNG.integers(0, 3, 40)
    targets = RNG.normal(size=(40, C)).astype(np.float32)
    kept = np.repeat(np.arange(40), weights)
    y = ntkdiag.losses.Weighted(targets, weights)
    weighted = sampled_margin(NTKOperator(net, PARAMS, X[:40]), RULE, loss="mse", y=y)
    repeated = sampled_margin(NTKOperator(net, PARAMS, X[:40][kept]), RULE, loss="mse")
    np.testing.assert_allclose(weighted.margin, repeated.margin, rtol=1e-5)
