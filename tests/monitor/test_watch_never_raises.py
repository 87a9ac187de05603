"""`watch` never hurts: with faults at every boundary the training goes on, to the same bits, with one warning."""

import asyncio
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from internals import Status
from monitor_problem import f, loss, problem

from ntkdiag.monitor import InMemory, Monitor, record, watch

ONCE = "Later failures are not reported; training continues."
STEPS = 50


def kernel_watch(model, **options):
    """`watch` of the kernel, round an optimizer that gives updates back as they are."""
    _, x, y = problem()
    return watch(optax.identity(), model, train=(x, y), instruments="kernel", top_k=3, **options)


def steps(tx, count):
    """Steps outside of jit: each update comes back as it went in."""
    params, _, _ = problem()
    state = tx.init(params)
    for _ in range(count):
        updates, state = tx.update(params, state, params)
        assert updates is params
    return state


class Breaking:
    """A model that runs while it is built, and then no more."""

    def __init__(self, error):
        self.error, self.is_broken = error, False

    def __call__(self, params, x):
        if self.is_broken:
            raise self.error
        return f(params, x)


def cancelled(step):
    raise asyncio.CancelledError("gone")


def test_outside_jit_nothing_is_raised_into_the_loop():
    with pytest.warns(RuntimeWarning) as caught:
        state = steps(kernel_watch(f, every=cancelled), 3)
    (warning,) = caught
    start = "watch(optimizer, f): step 1 could not be measured: CancelledError: gone. "
    assert str(warning.message).startswith(start)
    assert int(state.ntk_count) == 3
    assert record(state)["status"] == Status.UNMEASURED


def test_what_has_failed_once_is_said_once_and_not_tried_again():
    params, _, _ = problem()
    model, memory = Breaking(ValueError("broken")), InMemory()
    tx = kernel_watch(model, every=1, writers=memory)
    state = tx.init(params)

    def three_updates(state):
        for _ in range(3):
            _, state = tx.update(params, state, params)
        return state

    model.is_broken = True
    with pytest.warns(RuntimeWarning, match=f"step 1 could not be .*broken.*{ONCE}") as caught:
        state = three_updates(state)
    assert len(caught) == 1
    model.is_broken = False
    assert int(three_updates(state).ntk_count) == 6
    assert memory.steps == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_who_ends_the_run_ends_it(error):
    params, x, y = problem()
    model = Breaking(error())
    monitor = Monitor(model, train=(x, y), instruments="kernel", every=1)
    tx = kernel_watch(model)
    state = tx.init(params)
    model.is_broken = True
    with pytest.raises(error):
        monitor(0, params)
    with pytest.raises(error):
        tx.update(params, state, params)


@pytest.mark.slow
def test_warnings_turned_into_errors_do_not_end_training():
    params, x, y = problem()

    def warning(params, x):
        if watched:
            warnings.warn("of the model", UserWarning, stacklevel=1)
        return f(params, x)

    watched = False
    tx = kernel_watch(warning)
    monitor = Monitor(warning, train=(x, y), instruments="kernel", every=1)
    state = tx.init(params)
    watched = True
    update = jax.jit(tx.update)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("error")
        before = list(warnings.filters)
        _, state = update(params, state, params)
        assert monitor(0, params).status == Status.MEASURED
        assert warnings.filters == before
        with pytest.raises(UserWarning):  # they still are for everybody else
            warnings.warn("of the user", UserWarning, stacklevel=1)
    assert record(state)["status"] == Status.MEASURED
    assert "of the model" in {str(warning.message) for warning in shown}


# From here on: steps of training with a fault at one boundary, beside the same without `watch`.


def test_an_update_without_the_parameters_passes_through():
    params, _, _ = problem()
    memory = InMemory()
    tx = kernel_watch(f, every=1, writers=memory)
    state = tx.init(params)
    with pytest.warns(RuntimeWarning, match="came without the parameters") as caught:
        made = [tx.update(params, state) for _ in range(3)]
    assert len(caught) == 1
    for updates, after in made:
        assert updates is params
        assert int(after.ntk_count) == 1
    assert memory.steps == []


class Faulty:
    """An instrument that measures until it is told to fail."""

    def __init__(self, measured):
        self.measured, self.is_broken = measured, False

    def __call__(self, context):
        return self.measured(context) if self.is_broken else {"faulty": 1.0}


def raising(context):
    raise ZeroDivisionError("of the user")


def other_shape(context):
    return {"faulty": jnp.ones(3)}


def optimizer():
    return optax.adam(1e-2)


def train(tx, before=None):
    """The parameters after every step; `before` is called once the state is made."""
    params, x, y = problem()
    params, x = jax.tree.map(jnp.float32, params), jnp.float32(x)
    gradient_of, update = jax.jit(jax.grad(loss)), jax.jit(tx.update)
    state = tx.init(params)
    if before is not None:
        before()
    trajectory = []
    for _ in range(STEPS):
        updates, state = update(gradient_of(params, x, y), state, params)
        params = optax.apply_updates(params, updates)
        trajectory.append(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)]))
    jax.effects_barrier()
    return trajectory, state


def watched(inner, model=f, **options):
    _, x, y = problem()
    options = {"every": 10, "loss": "mse", "instruments": "norms", **options}
    return watch(inner, model, train=(jnp.float32(x), y), **options)


def check_same_bits(tx, plain, before):
    """Train with a watched optimizer and without: the same; the warnings, and the last state."""
    expected, _ = train(plain)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        trajectory, state = train(tx, before)
    np.testing.assert_array_equal(trajectory, expected)
    assert int(state.ntk_count) == STEPS
    ours = [str(warning.message) for warning in shown]
    return [text for text in ours if text.startswith("watch(") and "XLA" not in text], state


@pytest.mark.parametrize("measured", [raising, other_shape])
def test_an_instrument_that_fails_during_training(measured):
    instrument = Faulty(measured)

    def break_it():
        instrument.is_broken = True

    tx = watched(optimizer(), instruments=("norms", instrument))
    said, state = check_same_bits(tx, optimizer(), break_it)
    (text,) = said
    assert "could not be measured" in text
    assert np.isnan(record(state)["faulty"])
