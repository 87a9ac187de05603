"""With `every="auto"` a Monitor compiles its first measurement beside the training loop."""

import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ntkdiag.monitor import InMemory, Monitor

N, D = 16, 3
X = np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)
Y = X[:, :1]


def f(params, x):
    return jnp.tanh(x @ params["w"])


def start():
    return {"w": jnp.full((D, 1), 0.3)}


@pytest.fixture(autouse=True)
def warnings_are_no_errors():
    """Where they are, as in these tests, the filters of the thread would be those of the loop."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.filters[:] = [filter for filter in warnings.filters if filter[0] != "error"]
        yield


@pytest.fixture
def held_back(monkeypatch):
    """Measurements wait for this event."""
    event = threading.Event()
    measure = Monitor._measure

    def waiting(self, *args, **kwargs):
        event.wait(60)
        return measure(self, *args, **kwargs)

    monkeypatch.setattr(Monitor, "_measure", waiting)
    return event


def trained(monitor, steps):
    """Train as everybody does, with buffers donated."""
    optimizer = optax.adamw(1e-2)

    def step_of(params, state):
        gradient = jax.grad(lambda params: jnp.mean((f(params, X) - Y) ** 2))(params)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    step_of = jax.jit(step_of, donate_argnums=(0, 1))
    params, state = start(), optimizer.init(start())
    for step in range(steps):
        monitor(step, params, state)
        params, state = step_of(params, state)


def of_two_steps(monitor):
    trained(monitor, 2)
    return monitor.last


def monitored(**options):
    options = {"train": (X, Y), "instruments": "norms", "optimizer": optax.adamw(1e-2), **options}
    return Monitor(f, **options)


@pytest.mark.slow
def test_training_goes_on_and_the_first_step_is_measured(held_back):
    log = InMemory()
    monitor = monitored(writers=log)
    trained(monitor, 50)  # while nothing could be measured
    assert not log.rows
    assert monitor.cost.measurements == 0
    held_back.set()
    last = monitor.last  # waits
    assert int(last.step) == 0
    monitor.close()
    assert [row["step"] for row in log.rows] == [0]
    # Of the parameters that were there at step 0, whose buffers were donated since.
    at_start = monitored(every=1)(0, start(), optax.adamw(1e-2).init(start()))
    assert last.parameter_norm == pytest.approx(at_start.parameter_norm, rel=1e-6)


@pytest.mark.slow
def test_what_goes_wrong_in_it_is_said_once(monkeypatch):
    def broken(self, *args, **kwargs):
        raise ValueError("broken in the thread")

    monkeypatch.setattr(Monitor, "_measure", broken)
    monitor = monitored()
    with pytest.warns(RuntimeWarning, match="step 0 could not be measured: ValueError: broken in"):
        measured = of_two_steps(monitor)
    assert measured is None
    trained(monitor, 1)
