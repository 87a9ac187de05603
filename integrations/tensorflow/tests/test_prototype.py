"""The calls of neural-tangents' prototype, beside tf.GradientTape's Jacobians."""

import functools

import networks
import numpy as np
import pytest
import tensorflow as tf
from networks import normal
from ntkdiag_tensorflow import empirical_ntk_fn_tf, get_apply_fn_and_params

from ntkdiag.errors import ExamplesInteractError, InvalidInputError

X1, X2 = tf.constant(normal(3, 3)), tf.constant(normal(2, 3, seed=1))


@functools.cache
def model_and_kernel():
    """A Keras model, its parameters, and its kernel `[n c m d]`."""
    case = networks.mlp()
    _, params = get_apply_fn_and_params(case.model)
    variables = list(case.trained.values())
    return case.model, params, networks.kernel_by_tape(case.call, variables, X1, X2)


def test_apply_fn_and_params():
    case = networks.cnn_with_batch_norm()
    apply_fn, params = get_apply_fn_and_params(case.model)
    assert set(params) == set(case.trained)  # and not the statistics
    outputs = apply_fn(params, tf.constant(case.x))
    np.testing.assert_allclose(outputs, case.call(case.x), rtol=1e-5, atol=1e-6)


# Axes -> the kernel from [n c m d]; the order of the axes is that of neural-tangents.
AXES = {
    "trace": ({}, lambda k: np.einsum("ncmc->nm", k) / 2),
    "full": ({"trace_axes": ()}, lambda k: k.transpose(0, 2, 1, 3)),
    "diagonal over outputs": (
        {"trace_axes": (), "diagonal_axes": (1,)},
        lambda k: np.einsum("ncmc->nmc", k),
    ),
}


@pytest.mark.parametrize("vmap_axes", [0, None])
@pytest.mark.parametrize("axes", AXES)
def test_keras(axes, vmap_axes):
    model, params, kernel = model_and_kernel()
    options, of_kernel = AXES[axes]
    ntk_fn = empirical_ntk_fn_tf(model, vmap_axes=vmap_axes, **options)
    result = ntk_fn(X1, X2, params)
    assert isinstance(result, tf.Tensor)
    np.testing.assert_allclose(result, of_kernel(kernel), rtol=1e-4, atol=1e-5)


def mixed(params, x):
    """As in the prototype's tests: parameters of any shape, and examples that interact."""
    return x * tf.reduce_mean(params**2) + tf.reduce_mean(x) ** 2


def test_function():
    signature = [tf.TensorSpec(None), tf.TensorSpec((None, 2, 3, 1))]
    f = tf.function(mixed, input_signature=signature)
    params = tf.Variable(normal(1, 2, 1, 4))
    x1, x2 = tf.constant(normal(2, 2, 3, 1)), tf.constant(normal(3, 2, 3, 1, seed=1))
    result = empirical_ntk_fn_tf(f, trace_axes=())(x1, x2, params)
    rows = []
    for x in (x1, x2):
        with tf.GradientTape() as tape:
            outputs = f(params, x)
        rows.append(tape.jacobian(outputs, params).numpy().reshape(*outputs.shape, -1))
    expected = np.einsum("nabcp,mdefp->nmadbecf", *rows)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-6)


def test_examples_that_interact():
    signature = [tf.TensorSpec(3), tf.TensorSpec((None, 3))]
    f = tf.function(lambda params, x: (x - tf.reduce_mean(x, 0)) * params, signature)
    with pytest.raises(ExamplesInteractError):
        empirical_ntk_fn_tf(f, vmap_axes=0)(X1, None, tf.ones(3))


@pytest.mark.parametrize("function", [empirical_ntk_fn_tf, get_apply_fn_and_params])
def test_refused_under_their_own_names(function):
    model = networks.Linear(3, 2, 0)
    with pytest.raises(InvalidInputError, match=r"set model.input_shape = \(None,") as raised:
        function(model)
    assert str(raised.value).startswith(f"{function.__name__}(f): ")
