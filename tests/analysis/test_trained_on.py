"""What is of examples that were trained on says so: there leave-one-out is far below the error."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ntkdiag import ntk
from ntkdiag.analysis import alignment, leave_one_out

N, D, WIDTH = 80, 20, 64
OF_TRAINED = (
    "of examples that were trained on, whose labels the kernel knows: this may be half of the true "
    "error, or far less; take held-out examples"
)
OF_HELD_OUT = "of examples that were not trained on"


def f(params, x):
    return (jax.nn.relu(x @ params["a"]) @ params["b"])[:, None]


@pytest.fixture(scope="module")
def trained():
    """A network of two layers trained on x_0 x_1 until it fits, examples and labels."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2 * N, D)).astype(np.float32)
    y = x[:, 0] * x[:, 1]
    params = {
        "a": jnp.asarray(0.2 * rng.normal(size=(D, WIDTH)), jnp.float32),
        "b": jnp.asarray(0.2 * rng.normal(size=WIDTH) / WIDTH**0.5, jnp.float32),
    }
    optimizer = optax.adam(0.01)

    def loss(params):
        return jnp.mean((f(params, x[:N])[:, 0] - y[:N]) ** 2)

    def step(_, carry):
        params, state = carry
        updates, state = optimizer.update(jax.grad(loss)(params), state)
        return optax.apply_updates(params, updates), state

    start = params, optimizer.init(params)
    params, _ = jax.jit(lambda carry: jax.lax.fori_loop(0, 1000, step, carry))(start)
    assert loss(params) < 1e-3
    return params, x, y


@pytest.mark.slow
def test_leave_one_out_of_examples_that_were_trained_on_is_a_fraction_of_the_error(trained):
    params, x, y = trained
    true_error = float(np.mean((f(params, x[N:])[:, 0] - y[N:]) ** 2))
    kernel = ntk(f, params, x[:N], reduction="full")
    kernel_held_out = ntk(f, params, x[N:], reduction="full")
    ridge = 1e-3 * float(np.trace(kernel.matrix)) / N
    of_trained = leave_one_out(kernel, y[:N], ridge, trained_on=True)
    of_held_out = leave_one_out(kernel_held_out, y[N:], ridge, trained_on=False)
    assert of_trained.mse / true_error < 0.5
    assert 0.6 < of_held_out.mse / true_error < 1.6
    assert OF_TRAINED in repr(of_trained)
    assert OF_HELD_OUT in repr(of_held_out)


def test_the_hash_of_the_examples_says_that_they_were_trained_on():
    linear = lambda w, x: x @ w
    w, x, y = np.ones((3, 1)), np.random.default_rng(0).normal(size=(12, 3)), np.arange(8.0)
    kernel = ntk(linear, w, x[:8])
    digest_of_others = ntk(linear, w, x[8:]).convention.probe
    found = leave_one_out(kernel, y, 1.0, trained_on=kernel.convention.probe)
    assert found.trained_on is True
    assert OF_TRAINED in repr(found)
    # Other examples may hold some of these all the same.
    assert leave_one_out(kernel, y, 1.0, trained_on=digest_of_others).trained_on is None
    bare = np.asarray(kernel.array)
    assert leave_one_out(bare, y, 1.0, trained_on=kernel.convention.probe).trained_on is None


def test_what_is_not_resolved_and_what_is_traced_say_so():
    singular = leave_one_out(np.ones((3, 3)), np.arange(3.0), 0.0, trained_on=False)
    assert repr(singular) == f"LeaveOneOut(not resolved: raise the ridge; {OF_HELD_OUT})"
    shown = []

    @jax.jit
    def inside(matrix):
        found = leave_one_out(matrix, jnp.ones(2), 1.0, trained_on=True)
        aligned = alignment(matrix, jnp.arange(2.0))
        shown.extend([repr(found), repr(aligned)])
        return found

    assert inside(jnp.diag(jnp.array([2.0, 1.0]))).trained_on is True
    assert shown == ["LeaveOneOut(traced or batched)", "Alignment(traced or batched)"]
