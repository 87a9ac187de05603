"""`measure`: a measurement as a pure function of a training step, the same numbers as `watch`."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from monitor_problem import f, loss, naive, problem

from ntkdiag.monitor import measure, watch


def a_step(optimizer):
    """A watched step: everything that `measure` may be handed, and what `watch` measured."""
    params, x, y = problem()
    params, x = jax.tree.map(jnp.float32, params), jnp.float32(x)
    gradient = jax.grad(loss)(params, x, y)
    updates, opt_state = optimizer.update(gradient, optimizer.init(params), params)
    return params, opt_state, updates, gradient


def measured_with(instruments, optimizer, **options):
    _, x, y = problem()
    options = {"train": (jnp.float32(x), y), "loss": "mse", "top_k": 3, **options}
    return measure(f, optimizer=optimizer, instruments=instruments, **options)


@pytest.mark.slow
def test_the_economy_numbers_are_those_of_watch():
    _, x, y = problem()
    optimizer = optax.adam(1e-2)
    params, opt_state, updates, gradient = a_step(optimizer)
    tx = watch(optimizer, f, train=(jnp.float32(x), y), loss="mse", instruments="economy")
    _, state = jax.jit(tx.update)(gradient, tx.init(params), params)
    measured = jax.jit(measured_with("economy", optimizer))
    numbers = measured(params, opt_state, updates, gradient=gradient)
    assert all(jnp.ndim(number) == 0 for number in numbers.values())
    for name, value in state.ntk_numbers.items():
        name = name.removeprefix("ntk_")
        if value.ndim == 0:
            np.testing.assert_allclose(numbers[name], value, rtol=1e-5, err_msg=name)
        else:
            of_layers = [numbers[f"{name}/{layer}"] for layer in ("a", "b")]
            np.testing.assert_allclose(of_layers, value, rtol=1e-5, err_msg=name)
    assert int(numbers["status"]) == 1


def test_layer_norms_under_jit_are_scalars_by_layer():
    optimizer = optax.sgd(0.1)
    params, opt_state, updates, gradient = a_step(optimizer)
    measured = jax.jit(measured_with("layer_norms", optimizer))
    numbers = measured(params, opt_state, updates, gradient=gradient, step=3)
    trees = {"gradient": gradient, "update": updates, "parameter": params}
    expected = {
        f"layer_{name}/{layer}": np.linalg.norm(leaf)
        for name, tree in trees.items()
        for layer, leaf in tree.items()
    }
    squares = {name: sum((leaf**2).sum() for leaf in tree.values()) for name, tree in trees.items()}
    expected |= {f"{name}_norm": square**0.5 for name, square in squares.items()}
    expected["update_ratio"] = (squares["update"] / squares["parameter"]) ** 0.5
    for layer in params:
        of_layer = expected[f"layer_update/{layer}"], expected[f"layer_parameter/{layer}"]
        expected[f"layer_update_ratio/{layer}"] = of_layer[0] / of_layer[1]
    _, x, y = problem()
    expected["loss"] = loss(params, jnp.float32(x), y)
    assert int(numbers.pop("status")) == 1
    assert numbers.keys() == expected.keys()
    for name, number in numbers.items():
        np.testing.assert_allclose(number, expected[name], rtol=1e-5)


@pytest.mark.slow
def test_the_margin_of_a_state_alone():
    params, x, _ = problem()
    optimizer = optax.sgd(0.1, momentum=0.9)
    params, opt_state, updates, gradient = a_step(optimizer)
    measured = jax.jit(measured_with("spectral", optimizer))
    numbers = measured(params, opt_state, updates, gradient=gradient)
    expected = naive(params, params, x=x, learning_rate=0.1, tau=3.8)["margin"]
    np.testing.assert_allclose(numbers["margin"], expected, rtol=2e-3)
    assert "curvatures/0" in numbers
