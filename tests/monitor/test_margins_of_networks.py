"""The margin in networks as they are: biases before norms, biases of keys, single numbers; against dense float64."""

import jax
import optax
import pytest
from networks_in_training import (
    CLIP,
    DECAY,
    N_PROBE,
    OPTIMIZERS,
    RATE,
    Network,
    adam_in,
    adam_response,
    dense_margin_of,
)

get = optax.tree_utils.tree_get
N_READINGS, EVERY = 10, 12


def readings(name, optimizer):
    """Margin, its upper end and the dense one, at ten steps of a training."""
    network = Network.of(name)
    tx = network.watched(OPTIMIZERS[optimizer](), every=EVERY, instruments="margin")
    step = jax.jit(network.step(tx))
    gradient_of = jax.jit(network.gradient)
    dense = dense_margin_of(network.outputs, network.cross_entropy)
    probe = network.x[:N_PROBE]
    decay = 0.0 if optimizer == "adam" else RATE * DECAY
    carry, found = network.start(tx), []
    for t, batch in enumerate(network.batches(EVERY * (N_READINGS - 1) + 1)):
        params, statistics, _ = carry
        carry = step(carry, batch)
        if t % EVERY:
            continue
        factor = 1.0
        if optimizer == "clipped adamw":
            norm = float(optax.tree.norm(gradient_of(params, statistics, batch)[0]))
            factor = min(1.0, CLIP / norm)
        response = adam_response(adam_in(carry[2].ntk_inner), RATE, factor)
        want = dense(params, probe, response) + decay / 2
        found.append(
            (float(get(carry[2], "ntk_margin")), float(get(carry[2], "ntk_margin_upper")), want)
        )
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        ("batch norm", "clipped adamw"),
        ("cnn with batch norm", "adam"),
        ("transformer", "adamw"),
        ("scalars", "adam"),
    ],
)
def test_ten_of_ten_margins(name, optimizer):
    found = readings(name, optimizer)
    assert len(found) == N_READINGS
    ratios = [margin / dense for margin, _, dense in found]
    for margin, upper, dense in found:
        assert margin > 0.92 * dense or upper >= dense, ratios
    assert all(0.97 < ratio < 1.03 for ratio in ratios), ratios
