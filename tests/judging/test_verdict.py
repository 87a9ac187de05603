"""The verdict: dead and collapsed networks first, then the regime and the task, each by itself."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from internals import loss_of_constant_outputs, regime_of, task_of

from ntkdiag import compare
from ntkdiag.analysis import Alignment
from ntkdiag.losses import CrossEntropy

N, C = 20, 10
X = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32)
Y = np.arange(N) % C


def mlp(params, x):
    hidden = jax.nn.relu(x @ params["w1"] + params["b1"])
    return hidden @ params["w2"] + params["b2"]


def start():
    rng = np.random.default_rng(0)
    params = {
        "w1": rng.normal(size=(4, 12)) / 2,
        "b1": np.zeros(12),
        "w2": rng.normal(size=(12, C)) / 4,
        "b2": np.zeros(C),
    }
    return {name: value.astype(np.float32) for name, value in params.items()}


def compared(a, b, **options):
    settings = {"loss": "cross_entropy", "descent": 0.1, **options}
    return compare(a, b, model=mlp, train=(X, Y), **settings)


@pytest.mark.slow
def test_a_network_with_dead_units_is_dead_before_all_else():
    """All hidden units are off: only the last bias moves the outputs, those of all examples alike."""
    dead = compared(start(), {**start(), "b1": np.full(12, -100, np.float32)})
    assert dead.verdict.state == "dead"
    assert dead.verdict.name == dead.verdict.headline == "DEAD"
    np.testing.assert_allclose(dead.b["loss"], math.log(C), rtol=1e-6)
    np.testing.assert_allclose(dead.b["constant_loss"], math.log(C), rtol=1e-6)
    assert dead.b["equal_outputs"]


def test_a_kernel_of_zero_is_dead():
    nothing = jax.tree.map(np.zeros_like, start())
    held = lambda params, x: mlp(jax.lax.stop_gradient(params), x) + 0 * params["b2"]
    found = compare(start(), nothing, model=held, train=(X, None))
    assert found.verdict.name == "DEAD"


@pytest.mark.slow
def test_outputs_that_hardly_spread_have_collapsed_where_the_loss_says_so():
    """A thousandth of the spread at A, and the loss of constant outputs."""
    flat = {**start(), "w2": start()["w2"] / 1000}
    found = compared(start(), flat)
    assert found.verdict.name == "COLLAPSED"
    assert not found.b["equal_outputs"]
    # Without a loss it may be what was asked for.
    assert compared(start(), flat, loss=None, descent=None).verdict.state == "alive"


def test_no_constant_outputs_have_a_lower_loss():
    """Found by descent on the constants instead."""
    loss, y = CrossEntropy(), Y // 2
    labels = loss.read(y, (N, C))
    of_constants = lambda c: loss(jnp.broadcast_to(c, (N, C)), labels)
    step = lambda _, c: c - 4.0 * jax.grad(of_constants)(c)
    constants = jax.jit(lambda c: jax.lax.fori_loop(0, 5000, step, c))(jnp.zeros(C))
    found = loss_of_constant_outputs(loss, y, (N, C))
    np.testing.assert_allclose(found, of_constants(constants), rtol=1e-3)
    assert found <= of_constants(constants) * (1 + 1e-6)


def test_constant_outputs_are_equal_over_positions_too():
    """A table of positions would have no loss at all."""
    y = np.tile(np.arange(C), (N, 1))  # one class at each position
    found = loss_of_constant_outputs(CrossEntropy(), y, (N, C, C))
    np.testing.assert_allclose(found, math.log(C), rtol=1e-6)


REGIMES = [
    (0.05, 0.005, "lazy"),
    (0.05, 0.05, "between"),
    (0.05, 0.5, "between"),  # the kernel turned, where it did not matter
    (0.3, 0.05, "between"),
    (0.3, 0.2, "nonlinear"),
    (0.99, 0.0, "nonlinear"),  # the kernel grew, and did not turn: after silent alignment
    (9.0, 0.8, "nonlinear"),  # a language model
    (9.0, math.nan, "nonlinear"),
    (0.05, math.nan, "unknown"),
    (None, 0.0, "unchanged"),
]


def test_regime():
    for e1, distance, regime in REGIMES:
        assert regime_of(e1, distance) == regime, (e1, distance)


TASKS = [
    (0.05, 0.3, 0.03, "grew"),
    (0.3, 0.05, 0.03, "fell"),
    (0.55, 0.8, 0.1, "grew"),  # cannot double
    (0.9, 0.95, 0.1, "grew"),  # half of what was left
    (0.55, 0.56, 0.1, "same"),
    (0.03, 0.2, 0.03, "grew"),  # from chance itself: there is no ratio
    (0.02, 0.025, 0.03, "same"),  # both below chance
    (0.9961, 0.9962, 0.996, "same"),  # random tokens, reduced: chance is next to 1
    (math.nan, 0.3, 0.03, "unknown"),
    (0.3, math.nan, 0.03, "unknown"),
    (0.05, 1.0, 0.03, "grew"),
    (0.5, 0.9, 1.0, "unknown"),  # of two examples: there is no chance level
]


def test_task():
    assert task_of(None, None) == "unknown"
    for before, after, chance, task in TASKS:
        found = task_of(aligned(before, chance), aligned(after, chance))
        assert found == task, (before, after, chance)


def aligned(value, chance, deviation=0.001):
    return Alignment(value, chance, deviation, reduction="full")


def test_growth_within_the_luck_of_a_draw_is_none():
    assert task_of(aligned(0.03, 0.03, 0.02), aligned(0.06, 0.03, 0.02)) == "same"
    assert task_of(aligned(0.03, 0.03, 0.01), aligned(0.06, 0.03, 0.01)) == "grew"
    assert task_of(aligned(0.104, 0.06, 0.021), aligned(0.13, 0.06, 0.021)) == "same"
    assert task_of(aligned(0.13, 0.06, 0.021), aligned(0.104, 0.06, 0.021)) == "same"
