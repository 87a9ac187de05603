"""`watch` made inside a compiled function or `inject_hyperparams`."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from monitor_problem import f, loss, naive, problem

import ntkdiag
from ntkdiag.monitor import InMemory, watch


def in_float32():
    params, x, y = problem()
    return jax.tree.map(jnp.float32, params), x.astype(np.float32), y


def training(x, y, **options):
    """A whole training of four steps, its optimizer made inside: the parameters after each, and the state."""
    options = {"every": 2, "loss": "mse", "instruments": "kernel", "top_k": 3, **options}

    def run(params, x, y):
        tx = watch(optax.sgd(0.1), f, train=(x, y), **options)

        def step(carry, _):
            params, state = carry
            updates, state = tx.update(jax.grad(loss)(params, x, y), state, params)
            params = optax.apply_updates(params, updates)
            return (params, state), params

        (_, state), trajectory = jax.lax.scan(step, (params, tx.init(params)), length=4)
        return trajectory, state

    return lambda params: jax.jit(run)(params, x, y)


@pytest.mark.slow
def test_made_inside_a_compiled_training():
    params, x, y = in_float32()
    memory = InMemory()
    trajectory, state = training(x, y, writers=memory, instruments=("kernel", "margin"))(params)
    jax.effects_barrier()
    assert memory.steps == [1, 2, 4]
    assert ntkdiag.record(state)["margin"] == memory.rows[-1]["margin"]
    for row in memory.rows:
        at = jax.tree.map(lambda leaf, step=row["step"]: leaf[step - 1], trajectory)
        expected = naive(at, params, x=x, y=y, learning_rate=0.1)
        np.testing.assert_allclose(row["eigenvalues"][0], expected["eigenvalues"][0], rtol=1e-3)
        np.testing.assert_allclose(row["margin"], expected["margin"], rtol=1e-2)
    assert memory.record["probe"] is None  # examples that are being traced have no values to hash
