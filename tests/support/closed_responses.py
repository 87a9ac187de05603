"""Responses of optimizers in closed form: E of an array from all of its gradients, in float64."""

import functools

import numpy as np
import optax

RATE = 0.01


def average(terms, decay):
    total = 0.0
    for term in terms:
        total = decay * total + (1 - decay) * term
    return total


def over(numerator, denominator):
    """0 where no gradient has arrived yet."""
    return np.where(denominator == 0.0, 0.0, numerator / np.where(denominator == 0, 1, denominator))


def swing(b1):
    return (1 - b1) / (2 * (1 + b1))


def adam(history, rate=RATE, b1=0.9, b2=0.999, eps=1e-8, eps_root=0.0, nesterov=False):
    root = np.sqrt(average([g**2 for g in history], b2) / (1 - b2 ** len(history)) + eps_root)
    share = b1 * swing(b1) + (1 - b1) / 2 if nesterov else swing(b1)
    return over(rate * share, root) * root / (root + eps)


def amsgrad(history):
    roots = []
    for n in range(1, len(history) + 1):
        roots.append(average([g**2 for g in history[:n]], 0.999) / (1 - 0.999**n))
    return over(RATE * swing(0.9), np.sqrt(np.max(roots, axis=0)))


def belief(history):
    momentum = moment = np.zeros_like(history[0])
    for gradient in history:
        momentum = 0.9 * momentum + 0.1 * gradient
        moment = 0.999 * moment + 0.001 * (gradient - momentum) ** 2 + 1e-16
    return RATE * swing(0.9) / (np.sqrt(moment / (1 - 0.999 ** len(history))) + 1e-16)


def adamax(history):
    largest = np.zeros_like(history[0])
    for gradient in history:
        largest = np.maximum(np.abs(gradient) + 1e-8, 0.999 * largest)
    return RATE * swing(0.9) / largest


def yogi(history):
    moment = np.full_like(history[0], 1e-6)
    for gradient in history:
        moment = moment - 0.001 * np.sign(moment - gradient**2) * gradient**2
    return RATE * swing(0.9) / (np.sqrt(moment / (1 - 0.999 ** len(history))) + 1e-3)


def rmsprop(history):
    moment = average([g**2 for g in history], 0.9)
    return np.where(moment == 0.0, 0.0, RATE / 2 / np.sqrt(moment + 1e-8))


def rmsprop_with_nesterov(history, momentum=0.7):
    moment = average([g**2 for g in history], 0.9) / (1 - 0.9 ** len(history))
    share = 1 + momentum * (1 - momentum / (1 + momentum))
    return np.where(moment == 0.0, 0.0, RATE / 2 * share / np.sqrt(moment + 1e-8))


def adagrad(history):
    return RATE / 2 / np.sqrt(0.1 + sum(g**2 for g in history) + 1e-7)


def constant(value):
    return lambda history: value


# Optimizer, E as a function of the gradients of an array, b.
FORMULAS = {
    "sgd": (optax.sgd(RATE), constant(RATE / 2), 0),
    "momentum": (optax.sgd(RATE, momentum=0.8), constant(RATE / 3.6), 0),
    "nesterov": (optax.sgd(RATE, 0.8, nesterov=True), constant(RATE * 2.6 / 3.6), 0),
    "average": (
        optax.chain(optax.ema(0.8), optax.scale(-RATE)),
        constant(RATE * swing(0.8)),
        0,
    ),
    "fast": (optax.adam(RATE, 0.6, 0.8), functools.partial(adam, b1=0.6, b2=0.8), 0),
    "adamw": (optax.adamw(RATE, weight_decay=0.1), adam, 0.1 * RATE),
    "nadam": (optax.nadam(RATE), functools.partial(adam, nesterov=True), 0),
    "amsgrad": (optax.amsgrad(RATE), amsgrad, 0),
    "adamax": (optax.adamax(RATE), adamax, 0),
    "yogi": (optax.yogi(RATE), yogi, 0),
    "belief": (optax.adabelief(RATE), belief, 0),
    "rmsprop": (optax.rmsprop(RATE), rmsprop, 0),
    "rmsprop, nesterov, bias": (
        optax.rmsprop(RATE, momentum=0.7, nesterov=True, bias_correction=True),
        rmsprop_with_nesterov,
        0,
    ),
    "adagrad": (optax.adagrad(RATE), adagrad, 0),
    "injected": (
        optax.inject_hyperparams(optax.adamw)(RATE, b1=0.5, weight_decay=0.2),
        functools.partial(adam, b1=0.5),
        0.2 * RATE,
    ),
    "finite": (optax.apply_if_finite(optax.adam(RATE), 3), adam, 0),
    "decay before momentum": (
        optax.chain(optax.add_decayed_weights(0.1), optax.sgd(RATE, momentum=0.8)),
        constant(RATE / 3.6),
        0.1 * 2 * RATE / 3.6,
    ),
}
