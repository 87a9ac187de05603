"""Examples needed to a loss against the batch, beside the noise scale: on digits, the rate tuned for each batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from internals import load_digits

import ntkdiag
from ntkdiag.losses import CrossEntropy

BATCHES = (8, 16, 32, 64, 128, 256, 512)
RATES = 2.0 ** np.arange(-6, 3)
N, WIDTH, MOST_STEPS = 600, 32, 1000
TARGET = 0.25


def f(params, x):
    return jnp.tanh(x @ params["a"]) @ params["b"] + params["c"]


def fresh(seed):
    keys = jax.random.split(jax.random.key(seed))
    return {
        "a": jax.random.normal(keys[0], (64, WIDTH)) / 8,
        "b": jax.random.normal(keys[1], (WIDTH, 10)) / WIDTH**0.5,
        "c": jnp.zeros(10),
    }


def steps_needed(x, y, batch, seed):
    """Steps of SGD to the target, at the best of the rates; and the path of that run."""
    loss = lambda params, x, y: CrossEntropy()(f(params, x), y)

    def run(rate):
        def step(state):
            params, count, _ = state
            rows = jax.random.randint(
                jax.random.fold_in(jax.random.key(seed), count), (batch,), 0, len(x)
            )
            gradient = jax.grad(loss)(params, x[rows], y[rows])
            params = jax.tree.map(lambda p, g: p - rate * g, params, gradient)
            return params, count + 1, loss(params, x, y)

        def goes_on(state):
            _, count, value = state
            return (value > TARGET) & (count < MOST_STEPS)

        return jax.lax.while_loop(goes_on, step, (fresh(seed), 0, jnp.inf))[1]

    counts = np.asarray(jax.jit(jax.vmap(run))(jnp.asarray(RATES, jnp.float32)))
    assert RATES[counts.argmin()] not in (RATES[0], RATES[-1])  # the best is between others
    return counts.min()


def noise_scales_on_the_way(x, y, seed):
    """The noise scale at points of a run to the target."""
    params, found = fresh(seed), []
    gradient = jax.jit(jax.value_and_grad(lambda p: CrossEntropy()(f(p, x), y)))
    for _ in range(400):
        value, slope = gradient(params)
        if value < TARGET:
            return found
        if value < 2.0 * 0.7 ** len(found):  # at equal ratios of the loss
            G = ntkdiag.gradient_kernel(f, params, x, y, loss="cross_entropy")
            found.append(float(ntkdiag.analysis.noise_scale(G).value))
        params = jax.tree.map(lambda p, g: p - 0.2 * g, params, slope)
    raise AssertionError("the target was not reached")


@pytest.mark.slow
def test_examples_needed_bend_below_the_noise_scale():
    """steps = S (1 + B_c / B): B_c of the fit is about half of the noise scale at the start.

    It grows twentyfold on the way, and its mean is seven times B_c. So it is no estimate of B_c to a
    factor of 2: large batches are limited by stability, too, before noise is what limits small ones.
    """
    digits = load_digits(0)
    x, y = (
        jnp.asarray(digits.x_train[:N].reshape(N, 64), jnp.float32),
        jnp.asarray(digits.y_train[:N]),
    )
    steps = np.array([[steps_needed(x, y, b, seed) for b in BATCHES] for seed in range(3)]).mean(
        axis=0
    )
    # Least squares of relative errors, of steps = S + E / B.
    design = np.stack([np.ones(len(BATCHES)), 1 / np.array(BATCHES)], axis=1)
    fewest_steps, fewest_examples = np.linalg.lstsq(design / steps[:, None], np.ones(len(BATCHES)))[
        0
    ]
    bend = fewest_examples / fewest_steps
    scales = np.array([noise_scales_on_the_way(x, y, seed) for seed in range(3)])
    scale = np.exp(np.log(scales).mean())
    print("steps", dict(zip(BATCHES, steps.round(1).tolist(), strict=True)))
    print(f"bend at {bend:.0f} examples, noise scale {scale:.0f}", scales.round(0).tolist())
    assert 0.3 < bend / np.exp(np.log(scales[:, 0]).mean()) < 1.0
    assert 0.1 < bend / scale < 0.5
    assert np.all(np.diff(steps) < 1)  # larger batches take no more steps
