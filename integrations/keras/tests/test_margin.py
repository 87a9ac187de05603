"""The margin of Keras optimizers against dense computations in float64.

margin = lambda_max(E^1/2 J^T (d^2 L / df^2) J E^1/2) + b / 2, with E and b written here from the
formulas of each optimizer and its variables after training, and J of the network written in NumPy.
"""

import jax
import jax.numpy as jnp
import keras
import models
import numpy as np
import pytest
from ntkdiag_keras import NTKCallback, log_probabilities
from ntkdiag_keras.optimizers import as_optax, objection, state_of

O = keras.optimizers  # noqa: E741, as short as the table below needs it
N = 24
X = models.examples((5,), n=N, dtype="float32")
Y = np.argmax(X[:, :3], axis=1)


def responses(optimizer):
    """E by variable, as numbers or arrays, and b."""
    rate = float(keras.ops.convert_to_numpy(optimizer.learning_rate))
    decay = rate * (optimizer.weight_decay or 0.0)
    if isinstance(optimizer, O.SGD):
        beta = optimizer.momentum
        gain = 1 + 2 * beta if optimizer.nesterov else 1
        return [rate * gain / (2 * (1 + beta))] * 4, decay
    step = int(optimizer.iterations)
    beta = optimizer.beta_1
    rate *= np.sqrt(1 - optimizer.beta_2**step)  # without the bias of the young momentum
    rate *= (1 - beta) / (2 * (1 + beta))
    roots = [np.sqrt(np.float64(v)) + optimizer.epsilon for v in optimizer._velocities]
    return [rate / root for root in roots], decay


def dense_margin(model, optimizer):
    with jax.enable_x64(True):
        weights = [jnp.asarray(np.float64(v)) for v in model.trainable_variables]

        def outputs(weights):
            hidden = jnp.tanh(X.astype("float64") @ weights[0] + weights[1])
            return hidden @ weights[2] + weights[3]

        f = outputs(weights)
        n, c = f.shape
        jacobian = [np.reshape(leaf, (n, c, -1)) for leaf in jax.jacrev(outputs)(weights)]
        jacobian = np.concatenate(jacobian, axis=2)
        p = np.asarray(jax.nn.softmax(f))
        curvature = np.stack([np.diag(row) - np.outer(row, row) for row in p]) / n
        response, decay = responses(optimizer)
        shaped = zip(response, weights, strict=True)
        root = np.sqrt(np.concatenate([np.broadcast_to(e, w.shape).ravel() for e, w in shaped]))
        hessian = np.einsum("ncp,ncd,ndq->pq", jacobian, curvature, jacobian)
        return np.linalg.eigvalsh(root[:, None] * hessian * root)[-1] + decay / 2


def trained(optimizer, epochs=50):
    keras.utils.set_random_seed(0)
    model = models.mlp()
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    watch = NTKCallback(train=(X, Y), loss="cross_entropy", instruments=["margin"])
    # Full batches: the directions that are iterated on are found in so many measurements.
    model.fit(X, Y, epochs=epochs, batch_size=N, verbose=0, callbacks=[watch])
    return model, watch


OPTIMIZERS = {
    "momentum, a schedule": lambda: O.SGD(O.schedules.ExponentialDecay(0.01, 10, 0.9), 0.9),
    "nesterov": lambda: O.SGD(0.01, 0.9, nesterov=True),
    "sgd, weight decay": lambda: O.SGD(0.01, weight_decay=2.0),
    "adam": lambda: O.Adam(0.002),
    "adamw": lambda: O.AdamW(0.002, weight_decay=0.5),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_are_those_of_keras(name):
    optimizer = OPTIMIZERS[name]()
    transform = as_optax(optimizer)
    variables = {variable.path: variable for variable in models.mlp().trainable_variables}
    random = np.random.default_rng(0)
    for step in range(4):
        gradient = {}
        for path, variable in variables.items():
            gradient[path] = random.normal(size=variable.shape).astype("float32")
        before = {path: jnp.array(variable.value) for path, variable in variables.items()}
        if step > 0:  # the optimizer has its variables from the first step on
            state = state_of(optimizer, transform, before)
            updates, _ = transform.update(gradient, state, before)
        optimizer.apply(list(gradient.values()), list(variables.values()))
        if step > 0:
            for path, variable in variables.items():
                expected = variable.value - before[path]
                np.testing.assert_allclose(updates[path], expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(OPTIMIZERS["adamw"], id="adamw"),
        pytest.param(
            lambda: O.SGD(0.01, 0.5, gradient_accumulation_steps=3),
            id="accumulated",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_margin_is_that_of_a_dense_computation(make):
    optimizer = make()
    model, watch = trained(optimizer)
    assert watch.reason == ""
    expected = dense_margin(model, optimizer)
    assert float(watch.monitor.last.margin) == pytest.approx(expected, rel=2e-3)


def test_log_probabilities_are_logits_of_the_same_loss():
    logits = models.examples((3,), seed=2, dtype="float32")
    probabilities = np.asarray(jax.nn.softmax(logits))
    got = log_probabilities(probabilities)
    np.testing.assert_allclose(jax.nn.softmax(got), probabilities, rtol=1e-5)
    assert np.isfinite(log_probabilities(np.array([0.0, 1.0], "float32"))).all()


def constrained():
    model = models.mlp()
    model.layers[0].kernel.constraint = keras.constraints.MaxNorm(1.0)
    return model.trainable_variables


@pytest.mark.parametrize(
    ("optimizer", "variables", "reason"),
    [
        (O.Lion(1e-3), [], "Lion is none of the optimizers that are read: SGD, Adam, AdamW."),
        (
            O.Adam(1e-3, global_clipnorm=1.0),
            [],
            "Adam has global_clipnorm=1.0, and its effect is not known outside of a step.",
        ),
        (
            O.SGD(0.01),
            constrained(),
            "Weights have constraints, which act beside the optimizer.",
        ),
    ],
)
def test_what_is_not_read_has_a_reason(optimizer, variables, reason):
    assert objection(optimizer, variables) == reason


def test_what_is_not_read_has_no_margin():
    with pytest.warns(UserWarning, match="NTKCallback: there is no margin. Lion is none of"):
        _, watch = trained(O.Lion(1e-3), epochs=1)
    assert watch.reason.startswith("Lion is none")
    assert np.isnan(float(watch.monitor.last.margin))
