"""`watch` trains the same parameters, to the last bit, in donated steps of the usual networks.

XLA compiles one program of the step and `watch`, and is free to sum a gradient in another order where that is read
twice. It does so in networks with BatchNorm under Adam without clipping: gradients of scales, sums over the batch that
cancel, differ by roundings. There each step is the same from the same state, up to roundings; over many steps Adam
makes large steps of a gradient that is nothing but rounding, that of a bias before the norm.
"""

import jax
import numpy as np
import pytest
from networks_in_training import OPTIMIZERS, Network

import ntkdiag

N_STEPS = 5


def trained(network, tx):
    """Parameters and statistics after a training in donated buffers, and the state."""
    step = jax.jit(network.step(tx), donate_argnums=0)
    carry = network.start(tx)
    for batch in network.batches(N_STEPS):
        carry = step(carry, batch)
    return carry[:2], carry[2]


@pytest.mark.slow
def test_every_bit():
    network, optimizer = Network.of("cnn"), OPTIMIZERS["clipped adamw"]()
    plain, plain_state = trained(network, optimizer)
    tx = network.watched(optimizer, every=2)
    with_watch, state = trained(network, tx)
    assert ntkdiag.record(state)["step"] == 4
    jax.tree.map(np.testing.assert_array_equal, plain, with_watch)
    jax.tree.map(np.testing.assert_array_equal, plain_state, state.ntk_inner)


@pytest.mark.slow
def test_every_step_with_sums_that_cancel_is_the_same_up_to_roundings():
    """From the state of the plain training, step after step."""
    network, tx = Network.of("cnn with batch norm"), OPTIMIZERS["adam"]()
    watched = network.watched(tx, every=2)
    plain_step, watched_step = jax.jit(network.step(tx)), jax.jit(network.step(watched))
    carry, state = network.start(tx), network.start(watched)[2]
    for batch in network.batches(N_STEPS):
        params, statistics, plain_state = carry
        start = params, statistics, state._replace(ntk_inner=plain_state)
        *after, state = watched_step(start, batch)
        carry = plain_step(carry, batch)
        jax.tree.map(almost_same, carry, (*after, state.ntk_inner))
    assert ntkdiag.record(state)["step"] == 4


def almost_same(plain, array):
    """Up to four roundings of the largest number in an array."""
    plain, array = np.asarray(plain), np.asarray(array)
    if not np.issubdtype(plain.dtype, np.floating):
        np.testing.assert_array_equal(plain, array)
        return
    allowed = 4 * np.spacing(np.abs(plain).max())
    np.testing.assert_allclose(array, plain, rtol=0, atol=allowed)
