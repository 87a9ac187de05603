"""The margin of a checkpoint with optimizers of groups, and of micro-steps whose rate is zero."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ntkdiag

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(16, 3)).astype(np.float32), np.arange(16) % 2
START = {
    "a": RNG.normal(size=(3, 8)).astype(np.float32),
    "b": RNG.normal(size=(8, 2)).astype(np.float32),
}


def f(params, x):
    return jnp.tanh(jnp.asarray(x) @ params["a"]) @ params["b"]


def gradient_at(params):
    def loss(params):
        return optax.softmax_cross_entropy_with_integer_labels(f(params, X), Y).mean()

    return jax.grad(loss)(params)


def first_and_later(optimizer, steps):
    """What is measured before the first step, and after some."""
    params, state = START, optimizer.init(START)
    first = params, state
    for _ in range(steps):
        updates, state = optimizer.update(gradient_at(params), state, params)
        params = optax.apply_updates(params, updates)
    comparison = ntkdiag.compare(
        first,
        (params, state),
        model=f,
        train=(X, Y),
        loss="cross_entropy",
        optimizer=optimizer,
        progress=False,
    )
    return comparison.a, comparison.b


def test_two_groups_with_one_rule_are_read_like_one():
    """Their buffers lie in other places of the state."""
    adam = optax.adam(1e-2)
    groups = optax.multi_transform({"u": adam, "v": optax.adam(1e-2)}, {"a": "u", "b": "v"})
    for of_groups, of_one in zip(first_and_later(groups, 4), first_and_later(adam, 4), strict=True):
        np.testing.assert_allclose(of_groups.margin, of_one.margin, rtol=1e-4)
        assert of_groups.margin_status == of_one.margin_status


@pytest.mark.slow
def test_micro_steps_of_a_rate_of_zero_end_with_their_own_step():
    def warm_up(count):
        return jnp.where(count < 1, 0.0, 1e-2)

    first, later = first_and_later(optax.MultiSteps(optax.adam(warm_up), 4), 4)
    assert (first.learning_rate, first.update_norm) == (0.0, 0.0)
    assert np.isnan(first.margin)
    assert "made no update" in first.margin_status
    assert later.learning_rate == pytest.approx(1e-2, rel=1e-4)
    assert later.margin > 0
