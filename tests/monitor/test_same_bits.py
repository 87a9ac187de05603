"""`watch` trains the same parameters, to the last bit, in donated steps of the usual networks and optimizers.

XLA compiles one program of the step and `watch`, and is free to sum a gradient in another order where that is read
twice. It does so in networks with BatchNorm or PReLU under Adam without clipping: gradients of scales and slopes, sums
over the batch that cancel, differ by roundings. There each step is the same from the same state, up to roundings; over
many steps Adam makes large steps of a gradient that is nothing but rounding, that of a bias before the norm.

The fast tests of this are `test_the_same_bits` of `test_watched_optimizers.py`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from networks_in_training import OPTIMIZERS, Network

N_STEPS = 200
INSTRUMENTS = {"margin": "margin", "two tiers": ("economy", "spectral")}
TO_THE_BIT = ("relu", "tanh", "layer norm", "cnn", "transformer")
UP_TO_ROUNDINGS = ("batch norm", "cnn with batch norm", "scalars")


def trained(network, tx, n_steps):
    """Parameters and statistics after a training in donated buffers, and the state."""
    step = jax.jit(network.step(tx), donate_argnums=0)
    carry = network.start(tx)
    for batch in network.batches(n_steps):
        carry = step(carry, batch)
    return carry[:2], carry[2]


def check_same(name, optimizer, instruments, dtype, n_steps=N_STEPS):
    network = Network.of(name, dtype)
    plain, plain_state = trained(network, OPTIMIZERS[optimizer](), n_steps)
    tx = network.watched(OPTIMIZERS[optimizer](), every=10, instruments=instruments)
    with_watch, state = trained(network, tx, n_steps)
    assert int(state.ntk_measurements) == -(-n_steps // 10)
    assert jax.tree.leaves(plain)[0].dtype == dtype
    jax.tree.map(np.testing.assert_array_equal, plain, with_watch)
    jax.tree.map(np.testing.assert_array_equal, plain_state, state.ntk_inner)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam", "clipped adamw"])
def test_norms_of_layers_leave_every_bit(optimizer):
    check_same("tanh", optimizer, "layer_norms", jnp.float32, n_steps=40)


@pytest.mark.slow
@pytest.mark.parametrize("width", [32, 64])
@pytest.mark.parametrize("instruments", INSTRUMENTS)
@pytest.mark.parametrize("optimizer", ["adam", "clipped adamw"])
@pytest.mark.parametrize("name", TO_THE_BIT)
def test_every_bit(name, optimizer, instruments, width):
    with jax.enable_x64(width == 64):
        check_same(name, optimizer, INSTRUMENTS[instruments], jnp.dtype(f"float{width}"))


@pytest.mark.slow
@pytest.mark.parametrize("width", [32, 64])
@pytest.mark.parametrize("instruments", INSTRUMENTS)
@pytest.mark.parametrize("optimizer", ["adam", "clipped adamw"])
@pytest.mark.parametrize("name", UP_TO_ROUNDINGS)
def test_every_step_with_sums_that_cancel_is_the_same_up_to_roundings(
    name, optimizer, instruments, width
):
    """From the state of the plain training, step after step."""
    with jax.enable_x64(width == 64):
        network = Network.of(name, jnp.dtype(f"float{width}"))
        tx = OPTIMIZERS[optimizer]()
        watched = network.watched(tx, every=10, instruments=INSTRUMENTS[instruments])
        plain_step, watched_step = jax.jit(network.step(tx)), jax.jit(network.step(watched))
        carry, state = network.start(tx), network.start(watched)[2]
        for batch in network.batches(N_STEPS):
            params, statistics, plain_state = carry
            start = params, statistics, state._replace(ntk_inner=plain_state)
            *after, state = watched_step(start, batch)
            carry = plain_step(carry, batch)
            jax.tree.map(almost_same, carry, (*after, state.ntk_inner))
        assert int(state.ntk_measurements) == N_STEPS // 10


def almost_same(plain, array):
    """Up to four roundings of the largest number in an array."""
    plain, array = np.asarray(plain), np.asarray(array)
    if not np.issubdtype(plain.dtype, np.floating):
        np.testing.assert_array_equal(plain, array)
        return
    allowed = 4 * np.spacing(np.abs(plain).max())
    np.testing.assert_allclose(array, plain, rtol=0, atol=allowed)
