"""`measure`: a measurement as a pure function of a point of training."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from monitor_problem import f, loss, naive, problem

from ntkdiag import Monitor
from ntkdiag.monitor import measure


def a_point(optimizer):
    """Parameters after a step, the state of the optimizer, and the gradient of the step."""
    params, x, y = problem()
    params, x = jax.tree.map(jnp.float32, params), jnp.float32(x)
    gradient = jax.grad(loss)(params, x, y)
    updates, opt_state = optimizer.update(gradient, optimizer.init(params), params)
    return optax.apply_updates(params, updates), opt_state, gradient


def measured_with(instruments, optimizer):
    _, x, y = problem()
    options = {"train": (jnp.float32(x), y), "loss": "mse", "optimizer": optimizer}
    return measure(f, instruments=instruments, **options)


def test_norms_under_jit_are_scalars_by_layer():
    optimizer = optax.sgd(0.1)
    params, opt_state, gradient = a_point(optimizer)
    numbers = jax.jit(measured_with("norms", optimizer))(params, opt_state, gradient, step=3)
    update = jax.tree.map(lambda leaf: -0.1 * leaf, gradient)
    trees = {"gradient": gradient, "update": update, "parameter": params}
    norms = {
        f"layer_{name}/{layer}": np.linalg.norm(leaf)
        for name, tree in trees.items()
        for layer, leaf in tree.items()
    }
    of_trees = {name: optax.tree.norm(tree) for name, tree in trees.items()}
    expected = norms | {f"{name}_norm": norm for name, norm in of_trees.items()}
    expected["update_ratio"] = of_trees["update"] / of_trees["parameter"]
    _, x, y = problem()
    expected |= {"loss": loss(params, jnp.float32(x), y), "batch_loss": np.nan}
    assert int(numbers.pop("status")) == 1
    assert numbers.keys() == expected.keys()
    for name, number in numbers.items():
        np.testing.assert_allclose(number, expected[name], rtol=1e-5)


@pytest.mark.slow
def test_all_numbers_are_those_of_the_first_row_of_a_monitor():
    optimizer = optax.sgd(0.1, momentum=0.9)
    params, opt_state, gradient = a_point(optimizer)
    numbers = jax.jit(measured_with("auto", optimizer))(params, opt_state, gradient)
    _, x, y = problem()
    options = {"loss": "mse", "optimizer": optimizer, "every": 1}
    monitor = Monitor(f, train=(jnp.float32(x), y), **options)
    row = monitor(0, params, opt_state, gradient=gradient).values()
    for name in row.keys() - {"drift", "drift_lower", "drift_upper"}:
        if np.ndim(row[name]) == 0 and not name.startswith("margin_residual"):
            np.testing.assert_allclose(numbers[name], row[name], rtol=1e-4, err_msg=name)
    np.testing.assert_allclose(numbers["eigenvalues/0"], row["eigenvalues"][0], rtol=1e-4)
    expected = naive(params, params, x=x, learning_rate=0.1, tau=3.8)["margin"]
    np.testing.assert_allclose(numbers["margin"], expected, rtol=2e-3)
    assert "drift" not in numbers
