"""The warning of a spike on public cases: Adam on a quadratic, and a run that is lowered in time."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ntkdiag
from ntkdiag.monitor import Findings, SpikeAhead


@pytest.mark.slow
def test_adam_on_a_quadratic():
    """Adam spikes on x^2 / 2 as v falls more slowly than the gradient (arXiv 2506.04805)."""
    x = jnp.array([[1.0], [-1.0]] * 4)
    found = []
    tx = ntkdiag.watch(
        optax.adam(0.1, b1=0.0, b2=0.99),
        lambda w, x: w * x,
        train=(x, jnp.zeros((8, 1))),
        loss="mse",
        every=5,
        on_finding=found.append,
        time_share=None,
    )

    @jax.jit
    def step(w, state):
        loss, gradient = jax.value_and_grad(lambda w: 0.5 * jnp.sum(w**2))(w)
        updates, state = tx.update(gradient, state, w)
        return optax.apply_updates(w, updates), state, loss

    w = jnp.array([0.3])
    state, losses = tx.init(w), []
    for _ in range(420):
        w, state, loss = step(w, state)
        losses.append(float(loss))
    jax.effects_barrier()
    losses = np.array(losses)
    # Local maxima that the loss rose a hundredfold to.
    spikes = [
        t
        for t in range(60, 400)
        if losses[t] == losses[t - 40 : t + 40].max()
        and losses[t] > max(1e-3, 100 * losses[t - 60 : t].min())
    ]
    assert len(spikes) >= 3
    warned = {finding.step for finding in found if finding.id in ("spike-ahead", "margin-rises")}
    for spike in spikes:
        assert any(15 <= spike - step <= 60 for step in warned), (spike, sorted(warned))


def test_the_threshold_is_an_argument():
    rows = [{"step": k, "margin": 0.5, "update_norm": 1.0} for k in range(8)]
    assert SpikeAhead().check(rows) is None
    finding = SpikeAhead(threshold=0.01).check(rows)
    assert finding.id == "spike-ahead"
    assert finding.threshold == 0.01
    with pytest.raises(ntkdiag.errors.InvalidInputError, match="threshold"):
        SpikeAhead(threshold=0.0)
    with pytest.raises(ntkdiag.errors.InvalidInputError, match="from 0 to 1"):
        SpikeAhead(threshold=5.0)


def test_a_cold_start_of_adam_is_no_warning():
    """Second moments that are one step old make margins in the hundreds."""
    margins = [628.0, 60.0, 9.0, 0.6, 0.5, 0.5]
    rows = [{"step": k, "margin": m, "update_norm": 1.0} for k, m in enumerate(margins)]
    assert all(SpikeAhead().check(rows[:k]) is None for k in range(1, len(rows) + 1))


def test_it_is_among_the_rules_that_are_the_default():
    assert any(isinstance(rule, SpikeAhead) for rule in Findings().rules)
