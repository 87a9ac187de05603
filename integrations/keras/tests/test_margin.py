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

from ntkdiag.monitor import InMemory

O = keras.optimizers  # noqa: E741, as short as the table below needs it
N = 24
X = models.examples((5,), n=N, dtype="float32")
Y = np.argmax(X[:, :3], axis=1)
TARGETS = models.examples((3,), n=N, seed=3, dtype="float32")


def responses(optimizer):
    """E by variable, as numbers or arrays, and b."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    rate = float(keras.ops.convert_to_numpy(optimizer.learning_rate))
    decay = rate * (optimizer.weight_decay or 0.0)
    if isinstance(optimizer, O.SGD):
        beta = optimizer.momentum
        gain = 1 + 2 * beta if optimizer.nesterov else 1
        return [rate * gain / (2 * (1 + beta))] * 4, decay
    if isinstance(optimizer, O.Adam):
        step = int(optimizer.iterations)
        beta = optimizer.beta_1
        rate *= np.sqrt(1 - optimizer.beta_2**step)  # without the bias of the young momentum
        rate *= (1 - beta) / (2 * (1 + beta))
        roots = [np.sqrt(np.float64(v)) + optimizer.epsilon for v in optimizer._velocities]
        return [rate / root for root in roots], decay
    if isinstance(optimizer, O.RMSprop):
        moments = optimizer._velocities
        rate /= 1 + optimizer.momentum
    else:
        moments = optimizer._accumulators
    roots = [np.sqrt(np.float64(v) + optimizer.epsilon) for v in moments]
    return [rate / 2 / root for root in roots], decay


def dense_margin(model, optimizer, loss):
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
        if loss == "mse":
            curvature = np.stack([2 * np.eye(c) / (n * c)] * n)
        response, decay = responses(optimizer)
        shaped = zip(response, weights, strict=True)
        root = np.sqrt(np.concatenate([np.broadcast_to(e, w.shape).ravel() for e, w in shaped]))
        hessian = np.einsum("ncp,ncd,ndq->pq", jacobian, curvature, jacobian)
        return np.linalg.eigvalsh(root[:, None] * hessian * root)[-1] + decay / 2


def trained(optimizer, loss="cross_entropy", softmax=False, epochs=50, **options):
    keras.utils.set_random_seed(0)
    model = models.mlp()
    if softmax:
        model = keras.Sequential([*model.layers, models.layers.Softmax()])
    crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=not softmax)
    model.compile(optimizer, "mse" if loss == "mse" else crossentropy)
    y = TARGETS if loss == "mse" else Y
    watch = NTKCallback(train=(X, y), **{"instruments": ["margin"], **options})
    # Full batches: the directions that are iterated on are found in so many measurements.
    model.fit(X, y, epochs=epochs, batch_size=N, verbose=0, callbacks=[watch])
    return model, watch


OPTIMIZERS = {
    "momentum, a schedule": lambda: O.SGD(O.schedules.ExponentialDecay(0.01, 10, 0.9), 0.9),
    "adamw": lambda: O.AdamW(0.002, weight_decay=0.5),
}
MORE_OPTIMIZERS = {
    "sgd": lambda: O.SGD(0.01),
    "nesterov": lambda: O.SGD(0.01, 0.9, nesterov=True),
    "sgd, weight decay": lambda: O.SGD(0.01, weight_decay=2.0),
    "sgd, accumulated": lambda: O.SGD(0.01, 0.5, gradient_accumulation_steps=3),
    "scaled loss": lambda: O.SGD(0.01, 0.9, loss_scale_factor=128.0),
    "dynamic scale": lambda: O.LossScaleOptimizer(O.SGD(0.01, 0.9), initial_scale=256.0),
    "averaged weights": lambda: O.SGD(0.01, use_ema=True, ema_momentum=0.0),
    "adam": lambda: O.Adam(0.002),
    "adam, accumulated": lambda: O.Adam(0.002, gradient_accumulation_steps=3),
    "rmsprop": lambda: O.RMSprop(0.001),
    "rmsprop, momentum": lambda: O.RMSprop(0.001, momentum=0.5),
    "adagrad": lambda: O.Adagrad(0.01),
}


@pytest.mark.parametrize(
    "make",
    [
        *[pytest.param(make, id=name) for name, make in OPTIMIZERS.items()],
        *[
            pytest.param(make, id=name, marks=pytest.mark.slow)
            for name, make in MORE_OPTIMIZERS.items()
        ],
    ],
)
def test_margin_is_that_of_a_dense_computation(make):
    optimizer = make()
    model, watch = trained(optimizer)
    assert watch.reason == ""
    expected = dense_margin(model, optimizer, "cross_entropy")
    assert float(watch.monitor.last.margin) == pytest.approx(expected, rel=2e-3)


@pytest.mark.slow
def test_margin_of_the_mean_squared_error_of_keras():
    optimizer = O.SGD(0.01)
    model, watch = trained(optimizer, "mse")
    expected = dense_margin(model, optimizer, "mse")
    assert float(watch.monitor.last.margin) == pytest.approx(expected, rel=2e-3)


def test_margin_behind_a_softmax_is_that_of_the_logits():
    optimizer = O.SGD(0.01)
    model, watch = trained(optimizer, softmax=True, output=log_probabilities)
    expected = dense_margin(model, optimizer, "cross_entropy")
    assert float(watch.monitor.last.margin) == pytest.approx(expected, rel=2e-3)


@pytest.mark.slow
def test_the_first_margins_of_adam_are_flagged():
    values = InMemory()
    trained(O.Adam(0.002), epochs=1, writers=values, instruments=["margin", "optimizer"])
    assert min(values.series("margin")) > 0
    assert values.series("optimizer_status") == [1, 1]


def mlp_with_constraints():
    model = models.mlp()
    model.layers[0].kernel.constraint = keras.constraints.MaxNorm(1.0)
    return model


@pytest.mark.parametrize(
    ("optimizer", "reason"),
    [
        (
            O.Lion(1e-3),
            "Lion is none of the optimizers that are read: SGD, Adam, AdamW, RMSprop, Adagrad.",
        ),
        (
            O.Adam(1e-3, global_clipnorm=1.0),
            "Adam has global_clipnorm=1.0, and whether a step is clipped is not known outside of "
            "it.",
        ),
        (
            O.SGD(1e-3, use_ema=True, ema_overwrite_frequency=5),
            "SGD overwrites the weights with their averages (ema_overwrite_frequency).",
        ),
        (
            O.SGD(lambda: 1e-3),
            "The learning rate of SGD is a function of nothing, which is not seen to change.",
        ),
    ],
)
def test_what_is_not_read_has_no_margin_and_a_reason(optimizer, reason):
    with pytest.warns(RuntimeWarning, match="NTKCallback: there is no margin"):
        _, watch = trained(optimizer, epochs=1)
    assert watch.reason == reason
    assert np.isnan(float(watch.monitor.last.margin))


def test_constraints_have_no_margin():
    model = mlp_with_constraints()
    model.compile(O.SGD(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    watch = NTKCallback(train=(X, Y), instruments=["margin"])
    with pytest.warns(RuntimeWarning, match="Weights have constraints, which act beside the"):
        history = model.fit(X, Y, epochs=1, verbose=0, callbacks=[watch])
    assert np.isnan(history.history["ntk_margin"]).all()
