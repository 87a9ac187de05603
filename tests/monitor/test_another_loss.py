"""The gradient that the optimizer got beside that of the loss that was named: said with the factor."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ntkdiag
from ntkdiag.monitor import InMemory

N, D, C = 24, 6, 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, D)).astype(np.float32)
Y = RNG.integers(0, C, N)
PARAMS = {"w": 0.1 * RNG.normal(size=(D, C)).astype(np.float32)}


def f(params, x):
    return jnp.tanh(x) @ params["w"]


def mean_cross_entropy(params):
    return optax.softmax_cross_entropy_with_integer_labels(f(params, X), Y).mean()


TRAINED = {
    "the same": mean_cross_entropy,
    "a sum": lambda params: N * mean_cross_entropy(params),
    "another": lambda params: jnp.abs(params["w"] - 1.0).sum(),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trained", "said", "scale"),
    [
        ("the same", "", 1.0),
        ("a sum", "the gradient is 24 times that of loss='cross_entropy'", N),
        ("another", "hardly along that of loss='cross_entropy'", None),
    ],
)
def test_another_loss_is_said_with_its_factor(trained, said, scale, caplog):
    memory = InMemory()
    tx = ntkdiag.watch(
        optax.sgd(1e-3),
        f,
        train=(X, Y),
        loss="cross_entropy",
        every=1,
        time_share=1.0,
        instruments="margin",
        writers=memory,
    )
    params, state = PARAMS, tx.init(PARAMS)
    step = jax.jit(tx.update)
    for _ in range(40):  # three measurements, as the plan has them
        updates, state = step(jax.grad(TRAINED[trained])(params), state, params)
        params = optax.apply_updates(params, updates)
    jax.block_until_ready(params)
    texts = [record.getMessage() for record in caplog.records]
    about_gradient = [text for text in texts if "the gradient is" in text]
    assert len(about_gradient) == bool(said)
    assert said in " ".join(about_gradient)
    if scale is not None:
        np.testing.assert_allclose(memory.rows[0]["gradient_scale"], scale, rtol=1e-4)
        np.testing.assert_allclose(memory.rows[0]["gradient_cosine"], 1.0, rtol=1e-4)
