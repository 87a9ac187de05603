"""compare(): tokens, sigmoid losses and dictionaries, every number against dense float64 algebra."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from ntkdiag import compare

N, T, V = 4, 3, 5
RNG = np.random.default_rng(3)
TOKENS = RNG.integers(0, V, (N, T))
NEXT = RNG.integers(0, V, (N, T))


def language_model(params, tokens):
    """Logits [N T V] of a model in which every token sees those before it."""
    h = jnp.cumsum(jnp.asarray(params["embedding"])[tokens], axis=1)
    return jnp.tanh(h) @ params["head"]


def parameters(seed):
    rng = np.random.default_rng(seed)
    return {"embedding": rng.normal(size=(V, 4)), "head": rng.normal(size=(4, V))}


@pytest.fixture(scope="module")
def tokens():
    """Two language models compared on next tokens."""
    a, b = parameters(0), parameters(1)
    with jax.enable_x64(True):
        options = {"model": language_model, "train": (TOKENS, NEXT), "descent": 0.1}
        return compare(a, b, loss="cross_entropy", **options), a, b


@pytest.mark.slow
def test_loss_and_accuracy_of_tokens_are_means_over_positions(tokens):
    comparison, a, b = tokens
    logits = np.asarray(language_model(a, TOKENS))
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    loss = -np.mean(np.take_along_axis(log_p, NEXT[..., None], axis=-1))
    np.testing.assert_allclose(comparison.a["loss"], loss, rtol=1e-6)
    assert comparison.a["accuracy"] == np.mean(logits.argmax(-1) == NEXT)
    assert comparison.facts["loss"] == "softmax cross-entropy, mean over examples and positions"
    assert comparison.classes is None
    predicted = comparison["outputs_linearized"].reshape(N, T, V).argmax(-1)
    actual = np.asarray(language_model(b, TOKENS)).argmax(-1)
    assert comparison["agreement"] == np.mean(predicted == actual)


@pytest.mark.slow
def test_sigmoid_losses(x64):
    """Several labels an example: curvature p (1 - p), decisions by the sign."""
    shape = (N, T)
    rng = np.random.default_rng(5)
    x = rng.normal(size=(N, 3))
    y = (rng.random(shape) > 0.5).astype(int)
    y.flat[:2] = 0, 1
    a, b = ({"w": rng.normal(size=(3, *shape[1:]))} for _ in range(2))
    f = lambda params, x: jnp.sin(x @ params["w"])
    options = {"loss": "sigmoid_cross_entropy", "descent": 0.1}
    comparison = compare(a, b, model=f, train=(x, y), **options)

    outputs = np.sin(x @ a["w"])
    p = 1 / (1 + np.exp(-outputs))
    entropies = -(y * np.log(p) + (1 - y) * np.log(1 - p))
    np.testing.assert_allclose(comparison.a["loss"], entropies.sum() / N, rtol=1e-10)
    jacobian = np.asarray(reference.jacobian(f, a, x)).reshape(y.size, -1)
    curvature = np.diag((p * (1 - p)).ravel())
    largest = np.linalg.eigvalsh(jacobian.T @ curvature @ jacobian / N)[-1]
    np.testing.assert_allclose(comparison.a["critical_learning_rate"], 2 / largest, rtol=1e-8)
    assert comparison.a["accuracy"] == np.mean((outputs > 0) == (y == 1))
    signs = np.sin(x @ b["w"]) > 0
    agreeing = comparison["outputs_linearized"].reshape(shape) > 0
    assert comparison["agreement"] == np.mean(signs == agreeing)


class Returns(nn.Module):
    """A module that returns its logits, alone or beside its features."""

    has_features: bool

    @nn.compact
    def __call__(self, x):
        features = jnp.tanh(nn.Dense(4)(x))
        logits = nn.Dense(2)(features)
        return {"features": features, "logits": logits} if self.has_features else logits


X = RNG.normal(size=(6, 3)).astype(np.float32)
Y = np.arange(6) % 2


def compared(model):
    a, b = (model.init(jax.random.key(seed), X) for seed in (0, 1))
    return compare(a, b, model=model, train=(X, Y), loss="cross_entropy")


@pytest.mark.slow
def test_models_that_return_a_dictionary():
    expected, comparison = compared(Returns(False)), compared(Returns(True))
    np.testing.assert_allclose(
        comparison.sides[0].kernel.matrix, expected.sides[0].kernel.matrix, rtol=1e-6
    )
    np.testing.assert_allclose(comparison["e1"], expected["e1"], rtol=1e-5)
    np.testing.assert_allclose(comparison.a["loss"], expected.a["loss"], rtol=1e-6)
    said = "The model returns features beside logits, which is compared: "
    assert [note for note in comparison.notes if note.startswith(said)]
