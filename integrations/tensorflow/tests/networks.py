"""Networks in TensorFlow, with inputs; their kernels by tf.GradientTape, which shares nothing."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

layers = tf.keras.layers


@dataclasses.dataclass
class Case:
    """A model, examples, and the variables that are trained.

    Attributes:
        model: What is handed to `functionalize`.
        x: Two examples or more.
        trained: Path -> variable.
        fixed: Paths of the variables that the call uses and that are not trained.
        call: The model as TensorFlow calls it in evaluation.
        options: Of `functionalize`.
    """

    model: Any
    x: np.ndarray
    trained: dict[str, tf.Variable]
    fixed: set[str]
    call: Callable[[Any], Any]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


def normal(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def of_keras(model, x, fixed=()):
    """A Keras model whose variables are random, also those that begin at zero and one."""
    rng = np.random.default_rng(1)
    for variable in model.variables:
        if variable.dtype.startswith("float"):
            variable.assign(0.2 + np.abs(rng.normal(size=variable.shape, scale=0.5)))
            if "moving" not in variable.path:
                variable.assign(rng.normal(size=variable.shape, scale=0.5))
    trained = {variable.path: variable.value for variable in model.trainable_variables}
    return Case(model, x, trained, set(fixed), lambda x: model(x, training=False))


def mlp():
    inputs = tf.keras.Input((3,))
    outputs = layers.Dense(2, name="out")(layers.Dense(5, "tanh", name="hidden")(inputs))
    return of_keras(tf.keras.Model(inputs, outputs), normal(4, 3))


def cnn_with_batch_norm():
    model = tf.keras.Sequential(
        [
            tf.keras.Input((8, 8, 3)),
            layers.Conv2D(4, 3, activation="relu", name="conv"),
            layers.BatchNormalization(name="norm"),
            layers.MaxPool2D(),
            layers.Dropout(0.5),
            layers.DepthwiseConv2D(2, name="depthwise"),
            layers.AveragePooling2D(2),
            layers.Flatten(),
            layers.Dense(3, name="out"),
        ],
        name="cnn",
    )
    statistics = ("cnn/norm/moving_mean", "cnn/norm/moving_variance")
    return of_keras(model, normal(3, 8, 8, 3), statistics)


def attention():
    x = tf.keras.Input((6, 8))
    h = layers.LayerNormalization(name="norm")(x)
    h = x + layers.MultiHeadAttention(2, 4, name="attention")(h, h)
    h = layers.Dense(8, "silu", name="up")(h)  # has a tf.custom_gradient
    h = layers.GlobalAveragePooling1D()(layers.Dense(8, "gelu", name="down")(h))
    return of_keras(tf.keras.Model(x, layers.Dense(3, name="out")(h)), normal(3, 6, 8))


class Subclassed(tf.keras.Model):
    def __init__(self):
        super().__init__(name="subclassed")
        self.hidden = layers.Dense(4, "tanh", name="hidden")
        self.drop = layers.Dropout(0.5)
        self.out = layers.Dense(2, name="out")

    def call(self, x, training=True):
        return self.out(self.drop(self.hidden(x), training=training))


def subclassed():
    model = Subclassed()
    model(normal(1, 3))
    case = of_keras(model, normal(4, 3))
    case.options = {"input_signature": tf.TensorSpec((None, 3))}
    return case


class Linear(tf.Module):
    def __init__(self, n_inputs, n_outputs, seed):
        super().__init__()
        self.w = tf.Variable(normal(n_inputs, n_outputs, seed=seed), name="w")
        self.b = tf.Variable(normal(n_outputs, seed=seed + 1), name="b")

    def __call__(self, x):
        return x @ self.w + self.b


class Tower(tf.Module):
    """Linear maps with a shared one, a variable that is not trained, and one nobody uses."""

    def __init__(self, n_inputs=3):
        super().__init__()
        self.input_shape = (None, n_inputs)  # as neural-tangents' prototype reads it
        self.layers = [Linear(n_inputs, 4, 0), Linear(4, 4, 2)]
        self.tied = self.layers[1]
        self.parts = {"out": Linear(4, 2, 4)}
        self.scale = tf.Variable(0.5, trainable=False, name="scale")
        self.unused = tf.Variable(1.0)
        self.calls = tf.Variable(0, trainable=False)

    def __call__(self, x):
        for layer in self.layers:
            x = tf.nn.tanh(layer(x))
        return self.parts["out"](self.tied(x)) * self.scale

    def counted(self, x):
        self.calls.assign_add(1)
        return self(x)


TOWER_PATHS = ("w", "b", "w_1", "b_1", "w_2", "b_2")


def module():
    model = Tower()
    linears = (*model.layers, model.parts["out"])
    variables = [variable for linear in linears for variable in (linear.w, linear.b)]
    return Case(
        model, normal(4, 3), dict(zip(TOWER_PATHS, variables, strict=True)), {"scale"}, model
    )


def function_of_captured():
    w = tf.Variable(normal(3, 2), name="w")
    frozen_w = tf.Variable(normal(3, 2, seed=1), name="frozen", trainable=False)

    @tf.function(input_signature=[tf.TensorSpec((None, 3))])
    def function(x):
        return tf.sin(x @ w) * tf.reduce_sum(x @ frozen_w, axis=1, keepdims=True)

    return Case(function, normal(4, 3), {"w": w}, {"frozen"}, function)


CASES = {
    case.__name__: case
    for case in (
        mlp,
        cnn_with_batch_norm,
        attention,
        subclassed,
        module,
        function_of_captured,
    )
}


def outputs_and_rows(call, variables, x):
    """Outputs `[n c]`, and the Jacobian of all of them `[n c p]`, by tf.GradientTape."""
    with tf.GradientTape(persistent=True) as tape:
        outputs = call(x)
    jacobians = tape.jacobian(outputs, variables, unconnected_gradients="zero")
    rows = []
    for jacobian in jacobians:
        if isinstance(jacobian, tf.IndexedSlices):
            jacobian = tf.convert_to_tensor(jacobian)
        rows.append(np.reshape(jacobian, (*outputs.shape, -1)))
    return outputs.numpy(), np.concatenate(rows, axis=-1)


def kernel_by_tape(call, variables, x1, x2=None):
    """The kernel `[n c m d]` by tf.GradientTape, summed in float64."""
    _, rows1 = outputs_and_rows(call, variables, x1)
    _, rows2 = outputs_and_rows(call, variables, x1 if x2 is None else x2)
    return np.einsum("ncp,mdp->ncmd", rows1.astype(np.float64), rows2.astype(np.float64))
