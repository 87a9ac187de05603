"""Losses as people train them: masks, weights, contrast, a policy.

Each case is a function of the parameters with its examples, labels and loss, and the same loss written once more
as a plain function of the outputs, from which the dense oracle makes its Hessian.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ntkdiag.losses import CrossEntropy, SigmoidCrossEntropy

N, T, V, D = 8, 3, 4, 5


@dataclasses.dataclass(frozen=True)
class LossCase:
    """A model, what it is trained on, and the loss in two ways: as ntkdiag takes it, and of the outputs alone."""

    f: Callable[..., Any]
    params: Any
    train: tuple
    loss: Any
    of_outputs: Callable[..., Any]


def _tokens():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, T, D)).astype(np.float32)
    params = {"a": rng.normal(size=(D, 6)), "b": rng.normal(size=(6, V))}
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)
    f = lambda params, x: jnp.tanh(x @ params["a"]) @ params["b"]
    return f, params, x, rng.integers(0, V, (N, T)), rng


def _mean_of(each, weights):
    return jnp.sum(each * weights) / jnp.sum(weights)


def masked_tokens():
    f, params, x, tokens, rng = _tokens()
    y = {"tokens": tokens, "weights": (rng.random((N, T)) < 0.6).astype(np.float32)}

    def loss(logits, y):
        each = optax.softmax_cross_entropy_with_integer_labels(logits, y["tokens"])
        return _mean_of(each, y["weights"])

    return LossCase(f, params, (x, y), loss, lambda logits: loss(logits, y))


def weighted_tokens():
    f, params, x, tokens, rng = _tokens()
    weights = rng.random((N, T)).astype(np.float32) * (rng.random((N, T)) < 0.7)

    def of_outputs(logits):
        each = optax.softmax_cross_entropy_with_integer_labels(logits, tokens)
        return _mean_of(each, weights)

    return LossCase(f, params, (x, tokens, weights), "cross_entropy", of_outputs)


def ignored_tokens():
    f, params, x, tokens, rng = _tokens()
    tokens = np.where(rng.random((N, T)) < 0.4, -100, tokens)

    def of_outputs(logits):
        labels = np.where(tokens == -100, 0, tokens)
        each = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return _mean_of(each, tokens != -100)

    return LossCase(f, params, (x, tokens), CrossEntropy(ignore=-100), of_outputs)


def missing_labels():
    """Labels of several tasks, some of them missing: a weight for every output."""
    f, params, x, _, rng = _tokens()
    labels = rng.integers(0, 2, (N, T, V)).astype(np.float32)
    known = rng.random((N, T, V)) < 0.5

    def of_outputs(logits):
        each = optax.sigmoid_binary_cross_entropy(logits, labels)
        return jnp.sum(each * known) / known.sum()

    loss = SigmoidCrossEntropy(denominator=known.sum())
    return LossCase(f, params, (x, labels, known), loss, of_outputs)


def contrastive():
    """CLIP: two towers, and each image is told from the captions of all others."""
    rng = np.random.default_rng(1)
    x = {name: rng.normal(size=(N, D)).astype(np.float32) for name in ("image", "caption")}
    params = {name: jnp.asarray(rng.normal(size=(D, 3)), jnp.float32) for name in x}

    def f(params, x):
        towers = [jnp.tanh(x[name] @ params[name]) for name in ("image", "caption")]
        return jnp.stack(
            [tower / jnp.linalg.norm(tower, axis=-1, keepdims=True) for tower in towers], axis=1
        )

    def loss(embeddings, y):
        del y
        logits = embeddings[:, 0] @ embeddings[:, 1].T / 0.2
        own = jnp.arange(len(logits))
        one = optax.softmax_cross_entropy_with_integer_labels
        return 0.5 * (one(logits, own).mean() + one(logits.T, own).mean())

    return LossCase(f, params, (x, None), loss, lambda embeddings: loss(embeddings, None))


def actor_critic():
    """A policy gradient, a value and an entropy: advantages have either sign, so the loss is not convex."""
    actions = 3
    rng = np.random.default_rng(4)
    x = rng.normal(size=(N, D)).astype(np.float32)
    y = {
        "action": rng.integers(0, actions, N),
        "advantage": rng.normal(size=N).astype(np.float32),
        "value": rng.normal(size=N).astype(np.float32),
    }
    params = {"a": rng.normal(size=(D, 4)), "b": rng.normal(size=(4, actions + 1))}
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)
    f = lambda params, x: jnp.tanh(x @ params["a"]) @ params["b"]

    def loss(outputs, y):
        log_p = jax.nn.log_softmax(outputs[:, :actions])
        taken = jnp.take_along_axis(log_p, y["action"][:, None], axis=1)[:, 0]
        entropy = -(jnp.exp(log_p) * log_p).sum(axis=1)
        of_value = 0.5 * (outputs[:, actions] - y["value"]) ** 2
        return jnp.mean(-y["advantage"] * taken + 0.5 * of_value - 0.01 * entropy)

    return LossCase(f, params, (x, y), loss, lambda outputs: loss(outputs, y))


CASES = {
    case.__name__: case
    for case in (
        masked_tokens,
        weighted_tokens,
        ignored_tokens,
        missing_labels,
        contrastive,
        actor_critic,
    )
}


def curvature_of(case):
    """The largest eigenvalue of J^T (d^2 L / df^2) J in float64, from dense matrices."""
    with jax.enable_x64(True):
        in_float64 = lambda leaf: leaf.astype(jnp.float64) if leaf.dtype == np.float32 else leaf
        params = jax.tree.map(in_float64, case.params)
        x = jax.tree.map(in_float64, case.train[0])
        flat, whole = jax.flatten_util.ravel_pytree(params)
        outputs = case.f(params, x)
        jacobian = jax.jacobian(lambda flat: case.f(whole(flat), x).reshape(-1))(flat)
        hessian = jax.hessian(lambda o: case.of_outputs(o.reshape(outputs.shape)))(
            outputs.reshape(-1)
        )
        return float(np.linalg.eigvalsh(np.asarray(jacobian.T @ hessian @ jacobian)).max())
