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
